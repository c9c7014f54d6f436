"""A step of the target and one of a draft, as far as their attention metadata goes."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch
from tests.v1.worker.tiny_models import Layers, Row, make_batch, write_config
from vllm.config import CUDAGraphMode
from vllm.utils.math_utils import cdiv
from vllm.v1.worker.gpu.block_table import BlockTables

from benchmarks.inside.sides import twin

with contextlib.suppress(ImportError):
    # From 0.23.0 on, what vLLM itself puts in the place of a GPU's memory.
    import vllm.v1.worker.cpu.shm  # noqa: F401

K = 3
"""Draft tokens per step, where there are drafts."""
HYBRID = ("vllm.v1.worker.gpu.model_states.mamba_hybrid", "MambaHybridModelState")
DEFAULT = ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState")
EAGLE = ("vllm.v1.worker.gpu.spec_decode.eagle.speculator", "EagleSpeculator")

Step = Callable[[], dict[str, Any]]
Sides = Mapping[str, type]


def eagle() -> dict[str, Any]:
    """What configures a draft; its model is not loaded, the target's layers stand in for it."""
    return {"method": "eagle", "model": write_config("llama"), "num_speculative_tokens": K}


def ngram() -> dict[str, Any]:
    """What configures drafts without a model."""
    found = {"prompt_lookup_max": 2, "prompt_lookup_min": 1}
    return {"method": "ngram", "num_speculative_tokens": K, **found}


def cache(layers: Layers, batch: Any) -> BlockTables:
    """Block tables as wide as the runner makes them, in which each request has its own blocks."""
    scheduler = layers.vllm_config.scheduler_config
    sizes, widths, kernel_sizes = [], [], []
    for group, groups in zip(
        layers.kv_cache_config.kv_cache_groups, layers.attn_groups, strict=True
    ):
        spec = group.kv_cache_spec
        recurrent = not hasattr(spec, "head_size")
        sizes.append(spec.block_size)
        kernel_sizes.append(groups[0].get_metadata_builder(0).kv_cache_spec.block_size)
        blocks = cdiv(layers.vllm_config.model_config.max_model_len, spec.block_size)
        widths.append(1 + K if recurrent else blocks)
    tables = BlockTables(
        block_sizes=sizes,
        max_num_reqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_blocks_per_group=widths,
        device=layers.device,
        kernel_block_sizes=kernel_sizes,
    )
    for table, size in zip(tables.input_block_tables, kernel_sizes, strict=True):
        first = 1
        for row, length in zip(table, batch.seq_lens.tolist(), strict=False):
            used = min(cdiv(length + K, size), len(row))
            row[:used] = torch.arange(first, first + used)
            first += used
    return tables


def target_steps(layers: Layers, sides: Sides, batch: Any, tables: BlockTables) -> dict[str, Step]:
    """`prepare_attn` of each side for one batch; the sides share all that they hold."""
    state = sides["without"](layers.vllm_config, layers.model, None, layers.device)
    count = batch.num_reqs
    arguments = (
        batch,
        CUDAGraphMode.NONE,
        tuple(table[:count] for table in tables.input_block_tables),
        tables.slot_mappings[:, : batch.num_tokens],
        layers.attn_groups,
        layers.kv_cache_config,
    )
    return {
        side: functools.partial(twin(of, state).prepare_attn, *arguments)
        for side, of in sides.items()
    }


def speculators(layers: Layers, sides: Sides, tables: BlockTables) -> dict[str, Any]:
    """A speculator of each side for the layers, without a model; they share all that they hold."""
    original = sides["without"](layers.vllm_config, layers.device)
    original.draft_attn_layer_names = {
        name for groups in layers.attn_groups for group in groups for name in group.layer_names
    }
    original.set_attn(None, layers.kv_cache_config, tables)
    original.init_cudagraph_manager(CUDAGraphMode.NONE)
    return {side: twin(of, original) for side, of in sides.items()}


@contextlib.contextmanager
def without_model(speculators: Iterable[Any]) -> Iterator[None]:
    """Leave out the speculators' passes through their model, by the names of all releases."""
    with contextlib.ExitStack() as stack:
        for speculator in speculators:
            for name in ("prefill", "generate_draft", "_prefill", "_generate_draft"):
                if hasattr(speculator, name):
                    stack.enter_context(patch.object(speculator, name, _pass))
        yield


def _pass(*arguments: object, **options: object) -> None:
    pass


def proposal(
    speculator: Any, batch: Any, metadata: dict[str, Any], slots: dict[str, Any]
) -> Callable[[], Any]:
    """A call of `propose` for a batch, nothing of which was rejected.

    metadata, slots: the target's, by layer; the draft's first pass takes them again.
    """
    zeros = functools.partial(torch.zeros, device=batch.seq_lens.device)
    count = speculator.max_num_reqs
    return functools.partial(
        speculator.propose,
        batch,
        metadata,
        slots,
        zeros(batch.num_tokens, speculator.hidden_size, dtype=speculator.dtype),
        None,
        num_sampled=torch.ones_like(batch.seq_lens),
        num_rejected=torch.zeros_like(batch.seq_lens),
        last_sampled=zeros(count, 1, dtype=torch.int64),
        next_prefill_tokens=zeros(count, dtype=torch.int32),
        temperature=zeros(count, dtype=torch.float32),
        seeds=zeros(count, dtype=torch.int64),
    )


def draft_steps(speculators: Mapping[str, Any], batch: Any) -> dict[str, Step]:
    """The metadata of one draft step of each side, after a `propose` for this batch."""
    with without_model(speculators.values()):
        for speculator in speculators.values():
            proposal(speculator, batch, {}, {})()
    count = batch.num_reqs
    return {
        side: functools.partial(speculator._build_draft_attn_metadata, count, count, count)
        for side, speculator in speculators.items()
    }


def decodes(count: int, device: torch.device, drafts: int = 0) -> Any:
    """A batch of `count` decodes over 20 to 400 tokens, each with `drafts` tokens to verify."""
    rows = [Row(20 + i * 380 // count, 1 + drafts, num_draft_tokens=drafts) for i in range(count)]
    return make_batch(rows, device)
