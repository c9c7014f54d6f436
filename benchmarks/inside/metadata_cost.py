"""Run in a release's environment: what a step's metadata costs, by `max_model_len`.

python -m benchmarks.inside.metadata_cost TEXTS RESULT RUNS LENGTH …
"""

import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tests.v1.worker.tiny_models import BLOCK_SIZE, Layers, Row, build_layers, make_batch
from vllm.platforms import current_platform
from vllm.v1.attention.backends.mla.prefill import flash_attn as prefill
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from benchmarks import measure
from benchmarks.inside import decode, sides, steps
from benchmarks.inside.counting import taken

DECODES = [Row(23 + 53 * i, 1) for i in range(8)]
EXTEND = Row(100, 64, True)
COMPUTE_UNITS = 132
"""Of an H100 or H200, which bounds the splits of Triton MLA; a CPU has no such number."""
ATTENTION = {"llama": False, "deepseek": True}
"""Models that take every backend of the registry: whether those for latent attention (MLA)."""
RECURRENT = ("lfm2", "jamba", "granite", "qwen3_next")
LATENT = AttentionBackendEnum.TRITON_MLA


@contextmanager
def layers_of(kind: str, max_model_len: int, longest: int) -> Iterator[Layers]:
    """A model's layers and builders; the cache has room for `longest` tokens whatever the rest."""
    with ExitStack() as stack:
        if ATTENTION.get(kind):
            # The CPU's platform refuses latent attention; of that only what needs no GPU is run.
            for place, name, value in (
                (current_platform, "get_attn_backend_cls", lambda *given, **too: LATENT.get_path()),
                (current_platform, "num_compute_units", lambda *device: COMPUTE_UNITS),
                (prefill, "flash_attn_varlen_func", NotImplemented),
            ):
                stack.enter_context(patch.object(place, name, value))
        layers = stack.enter_context(
            build_layers(
                kind,
                max_model_len=max_model_len,
                max_num_seqs=16,
                max_num_batched_tokens=512,
                num_gpu_blocks_override=longest // BLOCK_SIZE + 64,
                hf_overrides={"max_position_embeddings": longest},
                speculative_config=None if kind in RECURRENT else steps.eagle(),
            )
        )
        # Otherwise the engine core sets it.
        layers.vllm_config.cache_config.num_gpu_blocks = layers.kv_cache_config.num_blocks
        yield layers


@functools.cache
def registry() -> dict[str, type | Exception]:
    """The class of each backend that vLLM knows, or what keeps it from being imported."""
    classes: dict[str, type | Exception] = {}
    for backend in AttentionBackendEnum:
        try:
            classes[backend.name] = backend.get_class()
        except Exception as error:
            # Some ask for their device, its libraries or its operations as soon as they are read.
            classes[backend.name] = error
    return classes


def backends(kind: str) -> dict[str, type | Exception | None]:
    """What can build a model's metadata, by name; None where the model has builders of its own."""
    if kind in RECURRENT:
        return {kind: None}
    return {
        name: of
        for name, of in registry().items()
        if isinstance(of, Exception) or of.is_mla() == ATTENTION[kind]
    }


def give_builders(groups: list[list[Any]], backend: type, layers: Layers) -> None:
    """Have the groups' metadata built by a backend."""
    for group in (group for same_cache in groups for group in same_cache):
        size = group.get_metadata_builder(0).kv_cache_spec.block_size
        group.backend = backend
        group.create_metadata_builders(layers.vllm_config, layers.device, size)


def one_line(error: Exception) -> str:
    """An error and where it was raised, without any folder."""
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    said = " ".join(str(error).split())[:120]
    return f"{type(error).__name__} in {code.co_qualname}: {said}".rstrip(": ")


class MaxSeqLen:
    """What the builders of some groups were last given."""

    def __init__(self, groups: list[list[Any]]) -> None:
        self.value = 0
        for group in (group for same_cache in groups for group in same_cache):
            builder = group.get_metadata_builder(0)
            builder.build = self._seen(builder.build)

    def _seen(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def seen(common_prefix_len: int, common_attn_metadata: Any, **options: Any) -> Any:
            self.value = common_attn_metadata.max_seq_len
            return build(
                common_prefix_len=common_prefix_len,
                common_attn_metadata=common_attn_metadata,
                **options,
            )

        return seen


def measured(actions: dict[str, steps.Step], groups: Any, runs: int) -> dict[str, dict[str, Any]]:
    """For each side of a step: what it hands over, its seconds and bytes, or why it fails."""
    seen, answer = MaxSeqLen(groups), {}
    for side, action in actions.items():
        try:
            # The first build makes what the builder keeps.
            action()
            _, counted = taken(action)
            answer[side] = {"max_seq_len": seen.value, "bytes": counted.bytes}
        except Exception as error:
            answer[side] = {"fails": one_line(error)}
    runnable = {side: action for side, action in actions.items() if "fails" not in answer[side]}
    for side, seconds in measure.interleaved(runnable, runs).items():
        answer[side]["seconds"] = statistics.median(seconds)
    return answer


def decoded(layers: Layers, actions: dict[str, steps.Step]) -> dict[str, dict[str, Any]]:
    """What a layer's decode makes and launches by the metadata of each side of a step."""
    answer, outputs = {}, []
    for side, action in actions.items():
        output, counted = taken(decode.of_first_layer(layers, action()))
        outputs.append(output)
        answer[side] = dataclasses.asdict(counted)
    for output in outputs:
        # However it is split, the attention is one.
        torch.testing.assert_close(output, outputs[0])
    return answer


def of_backend(
    layers: Layers, backend: type | None, state: steps.Sides, eagle: steps.Sides, runs: int
) -> Iterator[dict[str, Any]]:
    """The figures of one backend, or of the model's own."""
    latent = bool(backend and backend.is_mla())
    # Latent attention pins memory for prefills, which takes a GPU; and Triton's interpreter runs
    # its decodes, which is slow: the longest two are enough.
    decodes = make_batch(DECODES[-2:] if latent else DECODES, layers.device)
    batch = decodes if latent else make_batch([*DECODES, EXTEND], layers.device)
    try:
        if backend:
            give_builders(layers.attn_groups, backend, layers)
        tables = steps.cache(layers, batch)
        target = steps.target_steps(layers, state, batch, tables)
        measuring = {"target": (target, layers.attn_groups)}
        if backend:
            drafts = steps.speculators(layers, eagle, tables)
            groups = drafts["without"].attn_groups
            give_builders(groups, backend, layers)
            measuring["draft"] = (steps.draft_steps(drafts, decodes), groups)
    except Exception as error:
        # Whatever keeps a backend from building without its device.
        yield {"refused": one_line(error)}
        return
    for name, (step, groups) in measuring.items():
        for side, figures in measured(step, groups, runs).items():
            yield {"step": name, "side": side} | figures
        if name == "draft" and backend.get_name() == LATENT.name:
            for side, figures in decoded(layers, step).items():
                yield {"step": "decode of a draft", "side": side} | figures


def points(texts: Path, runs: int, lengths: list[int]) -> Iterator[dict[str, Any]]:
    """One for each model, backend, kind of step, `max_model_len` and side."""
    state, eagle = (sides.load(texts, *place) for place in (steps.HYBRID, steps.EAGLE))
    del state["again"], eagle["again"]
    for kind in (*ATTENTION, *RECURRENT):
        # The models' own builders read no `max_model_len`: its ends are enough.
        for length in lengths if kind in ATTENTION else (lengths[0], lengths[-1]):
            with layers_of(kind, length, max(lengths)) as layers:
                for name, backend in backends(kind).items():
                    where = {"model": kind, "backend": name, "max_model_len": length}
                    if isinstance(backend, Exception):
                        yield where | {"refused": one_line(backend)}
                        continue
                    for figures in of_backend(layers, backend, state, eagle, runs):
                        yield where | figures


def main(texts: str, result: str, runs: str, *lengths: str) -> None:
    """Write what was measured."""
    with torch.inference_mode():
        every = list(points(Path(texts), int(runs), [int(length) for length in lengths]))
    Path(result).write_text(json.dumps(every))


if __name__ == "__main__":
    main(*sys.argv[1:])
