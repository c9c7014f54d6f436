"""The benchmarks of what the fixes are worth measure what they say, on the real code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import gpu, metadata_cost, prepare_attn, real_vllm

from mrv2_fixes import engine

LENGTHS = (1024, 16384)
BLOCK_SIZE = 32
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
@pytest.mark.parametrize(("step", "rows"), [("target", 9), ("draft", 8)])
def test_what_flex_attention_still_adds_is_its_inverse_of_the_whole_block_table(
    points: list[dict[str, Any]], step: str, rows: int
) -> None:
    with_ = of(points, backend="FLEX_ATTENTION", step=step, side="with")
    shorter, longer = (with_[length]["bytes"] for length in LENGTHS)
    columns = (LENGTHS[1] - LENGTHS[0]) // BLOCK_SIZE
    # For each column a mask, a block, its index and the block again, wider; two rows of indices.
    assert longer - shorter == columns * (rows * (1 + 4 + 8 + 8) + 2 * 8)


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


@pytest.mark.engine
def test_what_a_gpu_is_asked_from_end_to_end_is_answered_here(tmp_path: Path) -> None:
    environment = engine.environment("0.22.1")
    variables = engine.variables(environment) | {"VLLM_PLUGINS": ""}
    write = [str(environment.python), "-m", "benchmarks.inside.long_models", str(tmp_path)]
    subprocess.run(write, cwd=real_vllm.ROOT, env=variables, check=True)
    small = "--dtype float32 --block-size 32 --num-gpu-blocks-override 128 --max-num-seqs 2"
    small += " --max-num-batched-tokens 64 --input-len 8 --output-len 4 --batch-size 2"
    small += " --num-iters-warmup 0 --num-iters 1"
    assert gpu.latency(environment.python, variables, tmp_path, 2048, small.split()) > 0


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
