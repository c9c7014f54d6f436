# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Requests begin without a recurrent state, on blocks that other requests had."""

import torch

from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu.input_batch import InputBatch


def clear_old_states(
    input_batch: InputBatch,
    block_tables: tuple[torch.Tensor, ...],
    kv_cache_config: KVCacheConfig,
    vllm_config: VllmConfig,
) -> None:
    """Zero the state of each request whose first chunk may run as a decode.

    A prefill ignores what its block holds; a decode goes on from it. Builders take a
    chunk that is no longer than a decode for one, be it a request's first or not.

    block_tables: [num_reqs, max_num_blocks] of each KV cache group; on the way to the
    first token the state is in a request's first block.
    """
    num_tokens = input_batch.num_scheduled_tokens
    seq_lens = input_batch.seq_lens_cpu_upper_bound[: input_batch.num_reqs].numpy()
    begins = input_batch.is_prefilling_np & (seq_lens == num_tokens)
    is_short = num_tokens <= 1 + vllm_config.num_speculative_tokens
    (rows,) = (begins & is_short).nonzero()
    if not rows.size:
        return
    layers = vllm_config.compilation_config.static_forward_context
    for group, block_table in zip(
        kv_cache_config.kv_cache_groups, block_tables, strict=True
    ):
        index = torch.from_numpy(rows).to(block_table.device, non_blocking=True)
        blocks = block_table[index, 0]
        for name in group.layer_names:
            if isinstance(layers[name], MambaBase):
                for state in layers[name].kv_cache:
                    # A plain 0 would be copied from the host, which waits for the GPU.
                    state[blocks] = state.new_zeros(())
