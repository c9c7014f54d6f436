"""What the attention metadata of one step costs, by `max_model_len`, for a batch that stays.

    .venv/bin/python -m benchmarks.metadata_cost

Real code of each release without the series and with it: `prepare_attn` of a hybrid model's state,
and a draft step's `_build_draft_attn_metadata` after a `propose`, hand `max_seq_len` to each
backend whose builder runs without a GPU. Eight decodes, and for the target 64 tokens of a ninth
request (two decodes for latent attention), the longest of 395 tokens, in a cache that has room for
1M tokens throughout. Seconds are medians of interleaved builds; bytes are those of all tensors that
one build makes; for Triton MLA also what one layer's decode makes and launches, in Triton's
interpreter, with the 132 compute units of an H100. `slope` is that of a straight line through the
values, per 1024 tokens of `max_model_len`; `growth` is the last value over the first.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure, real_vllm

LENGTHS = tuple(1 << power for power in range(10, 21, 2))
RUNS = 15
SIDES = ("without", "with")
UNITS = ("seconds", "bytes", "programs")


def curves(points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One for each model, backend, step and unit that both sides, or the one with it, came to."""
    grouped: dict[tuple[str, ...], dict[str, dict[int, Any]]] = {}
    for point in points:
        for unit in (unit for unit in UNITS if unit in point):
            of = (point["model"], point["backend"], point["step"], unit)
            sides = grouped.setdefault(of, {})
            sides.setdefault(point["side"], {})[point["max_model_len"]] = point[unit]
    names = ("model", "backend", "step", "unit")
    return [{**dict(zip(names, of, strict=True)), **curve(sides)} for of, sides in grouped.items()]


def curve(sides: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """The values of each side by `max_model_len`, and how they grow with it."""
    lengths = sorted({length for values in sides.values() for length in values})
    values = {side: [of[length] for length in lengths] for side, of in sides.items()}
    answer: dict[str, Any] = {"max_model_len": lengths}
    answer |= {side: [measure.rounded(value) for value in of] for side, of in values.items()}
    answer["slope"] = {side: slope(lengths, of) for side, of in values.items()}
    answer["growth"] = {side: measure.rounded(of[-1] / of[0]) for side, of in values.items()}
    if len(values) == len(SIDES):
        pairs = zip(values["with"], values["without"], strict=True)
        answer["ratio"] = [measure.rounded(one / other) for one, other in pairs]
    return answer


def slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    """That of the straight line through the values, per 1024 tokens."""
    thousands = [length / 1024 for length in lengths]
    return measure.rounded(statistics.linear_regression(thousands, values).slope)


def figures(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one release: the curves, what fails without the series, and what wants a device."""
    failing = {
        f"{point['model']}, {point['backend']}, {point['step']}, {point['side']}": point["fails"]
        for point in points
        if "fails" in point
    }
    refused = {point["backend"]: point["refused"] for point in points if "refused" in point}
    return {"curves": curves(points), "fails": failing, "wants a device": refused}


def main() -> None:
    """Measure all releases, and keep what was seen."""
    measured = {}
    for release in real_vllm.RELEASES:
        points = real_vllm.run(release, "metadata_cost", RUNS, *LENGTHS)
        measured[release] = figures(points) | {"note": real_vllm.NOTES.get(release, "")}
        for one in measured[release]["curves"]:
            print(
                release,
                *(one[name] for name in ("model", "backend", "step", "unit")),
                one["growth"],
            )
    measure.write("metadata_cost", measured, real_vllm.measured(Path(__file__)))


if __name__ == "__main__":
    main()
