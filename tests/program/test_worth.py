"""The benchmarks of what the fixes are worth measure what they say, on the real code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import metadata_cost, prepare_attn, real_vllm

LENGTHS = (1024, 16384)
LONGEST = 395


@pytest.fixture(scope="module")
def points() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = real_vllm.run("0.22.1", "metadata_cost", 1, *LENGTHS)
    return made


def of(points: list[dict[str, Any]], **where: str) -> dict[int, dict[str, Any]]:
    """The points of one curve by `max_model_len`."""
    return {point["max_model_len"]: point for point in points if where.items() <= point.items()}


@pytest.mark.engine
@pytest.mark.parametrize(("step", "most"), [("target", LONGEST), ("draft", LONGEST + 3)])
def test_the_sides_hand_over_what_they_do_when_serving(
    points: list[dict[str, Any]], step: str, most: int
) -> None:
    for backend in ("FLASH_ATTN", "FLEX_ATTENTION", "CPU_ATTN"):
        without, with_ = (
            [
                point["max_seq_len"]
                for point in of(points, backend=backend, step=step, side=side).values()
            ]
            for side in metadata_cost.SIDES
        )
        assert without == list(LENGTHS)
        assert with_ == [most] * len(LENGTHS)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("backend", "step", "unit"),
    [
        # The target's rows are decodes and 64 tokens that each look at their whole block table.
        ("FLEX_ATTENTION", "target", "bytes"),
        ("FLEX_ATTENTION", "draft", "bytes"),
        ("TRITON_MLA", "decode of a draft", "bytes"),
        ("TRITON_MLA", "decode of a draft", "programs"),
    ],
)
def test_what_grows_without_the_series_grows_less_with_it(
    points: list[dict[str, Any]], backend: str, step: str, unit: str
) -> None:
    (curve,) = (
        one
        for one in metadata_cost.figures(points)["curves"]
        if (one["backend"], one["step"], one["unit"]) == (backend, step, unit)
    )
    assert curve["without"][0] < curve["without"][1]
    assert curve["slope"]["with"] < curve["slope"]["without"] / 2
    if backend == "TRITON_MLA":
        assert curve["with"][0] == curve["with"][1]


@pytest.mark.engine
def test_hybrids_that_cannot_start_without_the_series_are_named(
    points: list[dict[str, Any]],
) -> None:
    fails = metadata_cost.figures(points)["fails"]
    assert {where.split(",")[0] for where in fails} >= {"lfm2", "granite", "jamba"}
    assert all(where.endswith("without") for where in fails)
    assert all("AssertionError" in reason for reason in fails.values())


@pytest.mark.engine
def test_calls_are_measured_on_each_side() -> None:
    rows = real_vllm.run("0.24.0", "prepare_attn", 1)
    assert {row["rows"] for row in rows} == {1, 4, 16, 64, 256}
    # 0.24.0 has the fix of the drafts: there is nothing to compare.
    calls = {name.partition(";")[0] for name in prepare_attn.over_batches(rows)}
    assert calls == {"without", "the same again", "prepare_attn", "prepare_attn, no builders"}


@pytest.mark.engine
def test_what_a_gpu_runs_runs_here_but_for_its_kernels() -> None:
    rows = real_vllm.run("0.22.1", "decode_time", 1, "CPU_ATTN", *LENGTHS)
    assert [(row["backend"], row["max_model_len"]) for row in rows] == [
        ("CPU_ATTN", length) for length in LENGTHS
    ]


def test_a_slope_is_per_1024_tokens() -> None:
    curve = metadata_cost.curve(
        {"without": {1024: 10.0, 2048: 13.0, 4096: 19.0}, "with": {1024: 5.0, 2048: 5.0, 4096: 5.0}}
    )
    assert curve["slope"] == {"without": 3.0, "with": 0.0}
    assert curve["growth"] == {"without": 1.9, "with": 1.0}
    assert curve["ratio"] == [0.5, 0.3846, 0.2632]


@pytest.mark.parametrize("driver", [None, "exit 9"])
def test_without_a_gpu_it_says_so(tmp_path: Path, driver: str | None) -> None:
    if driver:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(f"#!/bin/sh\n{driver}\n")
        fake.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=real_vllm.ROOT,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin" if driver else str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "no GPU was found (nvidia-smi names none): nothing was measured on one\n"
    assert (done.returncode, done.stderr) == (0, "")
