"""Run in a release's environment: `prepare_attn` and `propose`, without the series and with it.

python -m benchmarks.inside.prepare_attn TEXTS RESULT RUNS
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.v1.worker import tiny_models
from vllm.config import CUDAGraphMode
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer

from benchmarks import measure
from benchmarks.inside import sides, steps
from benchmarks.inside.counting import no_kernels

BATCHES = (1, 4, 16, 64, 256)
SIZES: dict[str, Any] = {
    "max_model_len": 1024,
    "max_num_seqs": max(BATCHES),
    "max_num_batched_tokens": max(BATCHES) * (1 + steps.K),
    "num_gpu_blocks_override": 1 << 13,
}
# For each of the two states a model whose builders run without the series too.
MODELS = {"default": ("llama", steps.DEFAULT), "hybrid": ("qwen3_next", steps.HYBRID)}

Calls = Mapping[str, Callable[[], Any]]


def compared(calls: Calls, runs: int) -> dict[str, dict[str, float]]:
    """Microseconds of each side's call, and its ratio to the one without the series."""
    for call in calls.values():
        call()
    taken = measure.interleaved(calls, runs)
    return {
        side: {
            "microseconds": measure.rounded(figures["seconds"] * 1e6),
            "ratio": figures["ratio"],
        }
        for side, figures in measure.compared(taken, "without").items()
    }


@contextmanager
def no_builders(groups: list[list[Any]]) -> Iterator[None]:
    """Nobody builds metadata of the groups' common metadata."""
    kept = [list(same_cache) for same_cache in groups]
    for same_cache in groups:
        same_cache.clear()
    yield
    for same_cache, its in zip(groups, kept, strict=True):
        same_cache.extend(its)


def of_target(texts: Path, runs: int) -> Iterator[dict[str, Any]]:
    """`prepare_attn` of both model states, without drafts and with them."""
    for state, (kind, place) in MODELS.items():
        of = sides.load(texts, *place)
        for drafts in (0, steps.K):
            config = steps.ngram() if drafts else None
            with tiny_models.build_layers(kind, speculative_config=config, **SIZES) as layers:
                for count in BATCHES:
                    batch = steps.decodes(count, layers.device, drafts)
                    tables = steps.cache(layers, batch)
                    calls = steps.target_steps(layers, of, batch, tables)
                    where = {"state": state, "drafts": drafts, "rows": count}
                    yield where | {"call": "prepare_attn", "sides": compared(calls, runs)}
                    with no_builders(layers.attn_groups):
                        alone = compared(calls, runs)
                    yield where | {"call": "prepare_attn, no builders", "sides": alone}


def of_draft(texts: Path, runs: int) -> Iterator[dict[str, Any]]:
    """`propose` of an engine with an EAGLE draft; nobody waits for its Triton kernels."""
    of = sides.load(texts, *steps.EAGLE)
    if of["with"] is of["without"]:
        return
    folder = tiny_models.write_model("llama").folder
    config = steps.eagle() | {"model": tiny_models.write_eagle_draft(folder)}
    with tiny_models.engine(folder, speculative_config=config, **SIZES) as llm:
        runner = tiny_models.model_runner(llm)
        tables = runner.block_tables
        speculators = {side: sides.twin(each, runner.speculator) for side, each in of.items()}
        for count in BATCHES:
            batch = steps.decodes(count, runner.device, steps.K)
            slots = tables.slot_mappings[:, : batch.num_tokens]
            metadata = runner.model_state.prepare_attn(
                batch,
                CUDAGraphMode.NONE,
                tuple(table[:count] for table in tables.input_block_tables),
                slots,
                runner.attn_groups,
                runner.kv_cache_config,
            )
            by_layer = build_slot_mappings_by_layer(slots, runner.kv_cache_config)
            calls = {
                side: steps.proposal(speculator, batch, metadata, by_layer)
                for side, speculator in speculators.items()
            }
            for call in calls.values():
                call()
            where = {"state": "default", "drafts": steps.K, "rows": count}
            with no_kernels():
                yield where | {"call": "propose", "sides": compared(calls, max(runs // 10, 1))}
            with no_kernels(), steps.without_model(speculators.values()):
                yield where | {"call": "propose, no model", "sides": compared(calls, runs)}
                with no_builders(runner.speculator.attn_groups):
                    alone = compared(calls, runs)
                yield where | {"call": "propose, no model, no builders", "sides": alone}


def main(texts: str, result: str, runs: str) -> None:
    """Write what was measured."""
    with torch.inference_mode():
        every = [*of_target(Path(texts), int(runs)), *of_draft(Path(texts), int(runs))]
    Path(result).write_text(json.dumps(every))


if __name__ == "__main__":
    main(*sys.argv[1:])
