"""What `prepare_attn` and `propose` take per call, without the series and with it.

    .venv/bin/python -m benchmarks.prepare_attn

Real code of each release, for decodes of 1 to 256 requests, in one process: the sides take turns,
call by call, and share layers, builders and batch. `again` is the code without the series, loaded
a second time: how far its ratio is from 1 is what the others are good for. Triton kernels are not
run, as a GPU's host does not wait for them. `prepare_attn` is measured whole, with the builders of
the CPU, and then without any builder: what is left of it; so is `propose`, first with the passes
of a one-layer draft. What the series leaves alone on a release is not measured there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import measure, real_vllm

RUNS = 1000


def over_batches(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """For each kind of call its ratio with the series: median, least and most of all batches.

    That of the same code loaded again is over all calls.
    """
    ratios: dict[str, list[float]] = {"without": [1.0], "the same again": []}
    for row in rows:
        call = f"{row['call']}; {row['state']} state, {row['drafts']} drafts"
        ratios.setdefault(call, []).append(row["sides"]["with"]["ratio"])
        ratios["the same again"].append(row["sides"]["again"]["ratio"])
    return {
        name: {"ratio": statistics.median(of), "least": min(of), "most": max(of)}
        for name, of in ratios.items()
    }


def main() -> None:
    """Measure all releases, and keep what was seen."""
    calls = {
        release: real_vllm.run(release, "prepare_attn", RUNS) for release in real_vllm.RELEASES
    }
    ratios = {release: over_batches(rows) for release, rows in calls.items()}
    measure.write("prepare_attn", {**ratios, "calls": calls}, real_vllm.measured(Path(__file__)))
    for release, of in ratios.items():
        for name, ratio in of.items():
            print(release, name, ratio)


if __name__ == "__main__":
    main()
