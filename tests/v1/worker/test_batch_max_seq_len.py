# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Model Runner V2: attention builders get the batch's own `max_seq_len`.

With `max_model_len` in its place backends size workspaces and loops by it, and one
that walks block tables as far as it says reads entries that no request has filled.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vllm import LLM
from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import AttentionSpec
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

from .tiny_models import (
    Layers,
    Row,
    assert_same,
    build_layers,
    engine,
    generate,
    make_batch,
    model_runner,
    prepare_attn,
    record_builds,
    write_model,
)

ROWS = [Row(40, 1), Row(7, 1), Row(99, 1)]


@pytest.fixture(scope="module")
def layers() -> Iterator[Layers]:
    # Attention alone, for both model states: what max_seq_len is for.
    with build_layers("llama") as layers:
        yield layers


@pytest.fixture(params=[DefaultModelState, MambaHybridModelState])
def model_state(request: pytest.FixtureRequest, layers: Layers) -> DefaultModelState:
    return request.param(layers.vllm_config, layers.model, None, layers.device)


@pytest.mark.parametrize(
    ("rows", "longest"),
    [
        pytest.param(ROWS, 100, id="decodes"),
        pytest.param([Row(40, 1), Row(60, 35, True)], 95, id="mixed"),
        pytest.param([Row(0, 3, True)], 3, id="short"),
    ],
)
def test_longest_of_the_batch(
    layers: Layers,
    model_state: DefaultModelState,
    rows: list[Row],
    longest: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = make_batch(rows, layers.device)
    # What stands behind the requests of this batch is none of its business.
    bound = torch.cat([batch.seq_lens_cpu_upper_bound, torch.tensor([900])]).int()
    batch = dataclasses.replace(batch, seq_lens_cpu_upper_bound=bound)
    builds = record_builds(layers.builders, monkeypatch)

    prepare_attn(layers, model_state, batch)

    assert [build.common.max_seq_len for build in builds] == [longest]
    # Kernels take it as a launch argument.
    assert type(builds[0].common.max_seq_len) is int


def test_longest_of_a_padded_batch(
    layers: Layers, model_state: DefaultModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = record_builds(layers.builders, monkeypatch)
    batch = make_batch(ROWS, layers.device, padding=2)
    prepare_attn(layers, model_state, batch, CUDAGraphMode.FULL)
    assert [build.common.max_seq_len for build in builds] == [100]


def test_capture_is_valid_for_any_replay(
    layers: Layers, model_state: DefaultModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = record_builds(layers.builders, monkeypatch)
    batch = make_batch(ROWS, layers.device)
    prepare_attn(layers, model_state, batch, CUDAGraphMode.FULL, for_capture=True)
    max_model_len = layers.vllm_config.model_config.max_model_len
    assert [build.common.max_seq_len for build in builds] == [max_model_len]


# Far outside every KV cache: who follows such an entry faults.
OUTSIDE = 2**30


def poison_unused_blocks(llm: LLM, patch: pytest.MonkeyPatch) -> list[int]:
    """Point the block-table entries that no request fills outside the cache.

    Returns the numbers of entries that were changed, one per forward pass to come.
    """
    runner = model_runner(llm)
    model_state_prepare_attn = runner.model_state.prepare_attn
    poisoned = []

    def poison(input_batch: Any, mode: Any, block_tables: Any, *args, **kwargs) -> Any:
        count = 0
        lengths = input_batch.seq_lens_cpu_upper_bound.tolist()
        for table, group, block_size in zip(
            block_tables,
            runner.kv_cache_config.kv_cache_groups,
            runner.block_tables.kernel_block_sizes,
            strict=True,
        ):
            if isinstance(group.kv_cache_spec, AttentionSpec):
                for row, length in zip(table, lengths, strict=False):
                    unused = row[cdiv(length, block_size) :]
                    unused.fill_(OUTSIDE)
                    count += unused.numel()
        poisoned.append(count)
        return model_state_prepare_attn(
            input_batch, mode, block_tables, *args, **kwargs
        )

    patch.setattr(runner.model_state, "prepare_attn", poison)
    return poisoned


@pytest.mark.skipif(not current_platform.is_cuda(), reason="attention kernels of a GPU")
@pytest.mark.parametrize("kind", ["llama", "lfm2"])
@pytest.mark.parametrize(
    "backend", ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"]
)
def test_unused_block_table_entries_are_not_followed(
    backend: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(range(1, 6)), list(range(5, 75)), list(range(50, 60))]
    max_tokens = [3, 40, 5]
    try:
        context = engine(
            write_model(kind).folder,
            attention_backend=backend,
            # What FlashAttention and FlashInfer have kernels for.
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=32768,
            num_gpu_blocks_override=2048,
        )
        with context as llm:
            expected = generate(llm, prompts, max_tokens)
            poisoned = poison_unused_blocks(llm, monkeypatch)
            assert_same(generate(llm, prompts, max_tokens), expected)
            assert poisoned
            assert min(poisoned) > 0
    except (ImportError, ValueError) as error:
        if isinstance(error, ValueError) and backend not in str(error):
            raise
        pytest.skip(f"{backend} is not for this machine: {error}")
