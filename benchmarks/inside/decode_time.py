"""Run in a release's environment on a GPU: how long a draft's decode takes, by `max_model_len`.

python -m benchmarks.inside.decode_time TEXTS RESULT RUNS BACKEND,… LENGTH …
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.v1.worker.tiny_models import BLOCK_SIZE, build_layers
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from benchmarks import measure
from benchmarks.inside import decode, sides, steps

ROWS = 8


def seconds(action: Callable[[], object]) -> float:
    """Seconds that the device takes for an action."""
    if not current_platform.is_cuda():
        return measure.timed(action)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def memory(action: Callable[[], object]) -> int | None:
    """Bytes of the device that an action takes at most; None where that is not kept."""
    if not current_platform.is_cuda():
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return int(torch.cuda.max_memory_allocated()) - before


def points(
    texts: Path, runs: int, backends: list[str], lengths: list[int]
) -> Iterator[dict[str, Any]]:
    """One for each backend and `max_model_len`."""
    of = sides.load(texts, *steps.EAGLE)
    for name in backends:
        kind = "deepseek" if AttentionBackendEnum[name].get_class().is_mla() else "llama"
        for length in lengths:
            with build_layers(
                kind,
                attention_backend=name,
                dtype="bfloat16",
                max_model_len=length,
                max_num_seqs=16,
                max_num_batched_tokens=512,
                num_gpu_blocks_override=max(lengths) // BLOCK_SIZE + 64,
                hf_overrides={"max_position_embeddings": max(lengths)},
                speculative_config=steps.eagle(),
            ) as layers:
                layers.vllm_config.cache_config.num_gpu_blocks = layers.kv_cache_config.num_blocks
                batch = steps.decodes(ROWS, layers.device)
                speculators = steps.speculators(layers, of, steps.cache(layers, batch))
                actions = {
                    side: decode.of_first_layer(layers, step())
                    for side, step in steps.draft_steps(speculators, batch).items()
                }
                bytes_ = {side: memory(action) for side, action in actions.items()}
                timed = {side: functools.partial(seconds, of) for side, of in actions.items()}
                taken = measure.compared(measure.sampled(timed, runs), "without")
                yield {
                    "backend": name,
                    "max_model_len": length,
                    "sides": {
                        side: figures | {"bytes": bytes_[side]} for side, figures in taken.items()
                    },
                }


def main(texts: str, result: str, runs: str, backends: str, *lengths: str) -> None:
    """Write what was measured."""
    with torch.inference_mode():
        every = list(
            points(Path(texts), int(runs), backends.split(","), [int(each) for each in lengths])
        )
    Path(result).write_text(json.dumps(every))


if __name__ == "__main__":
    main(*sys.argv[1:])
