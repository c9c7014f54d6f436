"""What the repository claims by its results is not older than what they describe."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from mrv2_fixes import series, verify
from mrv2_fixes.maintain import figures, readme, results
from mrv2_fixes.report import matrix
from mrv2_fixes.report.matrix import Proof
from mrv2_fixes.verify import Result

CELLS = matrix.read(results.FOLDER)
MATRIX = matrix.make(series.load(), CELLS)


def names(*proofs: Proof) -> list[str]:
    return [f"{one.release} --patch {one.patch.slug}" for one in MATRIX.entries(*proofs)]


def test_every_kept_run_is_of_the_patch_as_it_stands_and_proves_it() -> None:
    """Otherwise `mrv2 verify … --output results`, and then `make report`."""
    assert names(Proof.OLD, Proof.NOT_PROVEN) == []
    assert MATRIX.strays == ()
    tests = {(job.release, job.patch.slug, reproducer.test)
             for job in verify.jobs(series.load().patches, ())
             for reproducer in job.reproducers}  # fmt: skip
    assert {(one.release, one.patch, one.reproducer) for one in CELLS} <= tests


def test_all_that_there_is_to_prove_was_run() -> None:
    """Otherwise `make results report`."""
    assert names(Proof.NOT_RUN) == []


def test_what_is_kept_holds_nothing_of_vllm_or_the_machine() -> None:
    """Otherwise `python -m mrv2_fixes.maintain.results`."""
    assert [results.cleaned(cell) for cell in CELLS] == CELLS
    text = (results.FOLDER / "verify.json").read_text()
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|Users|work)/\S*", text) == []


OUTPUTS = [
    (
        "the source of others goes, ours stays",
        "   tail of a line\nvllm/v1/a.py:10: in f\n    return g(\n           ^^\n"
        "tests/v1/worker/test_a.py:7: in test_b\n    assert x == 1\nvllm/v1/b.py:2: in g\n"
        "    raise ValueError\nE   ValueError: no",
        "vllm/v1/a.py:10: in f\ntests/v1/worker/test_a.py:7: in test_b\n    assert x == 1\n"
        "vllm/v1/b.py:2: in g\nE   ValueError: no",
    ),
    ("a last line", "1 passed in 2 s", "1 passed in 2 s"),
    ("a folder of the machine", "E   ValueError: '/tmp/tiny-x/config.json' is wrong",
     "E   ValueError: 'config.json' is wrong"),
    ("a folder behind a colon", "E   No such file:/tmp/a@b/x.py, and file:///tmp/a//b/y.py",
     "E   No such file:x.py, and y.py"),
    ("an address", "https://example.org/a/b", "https://example.org/a/b"),
    ("a place in ours", "tests/v1/worker/test_a.py:7: in f", "tests/v1/worker/test_a.py:7: in f"),
]  # fmt: skip


@pytest.mark.parametrize(("why", "output", "kept"), OUTPUTS, ids=[case[0] for case in OUTPUTS])
def test_of_an_output_the_places_and_our_own_lines_are_kept(
    why: str, output: str, kept: str
) -> None:
    side = verify.Side(verify.Result.FAILS, (), 1.0, output, {}, (), output)
    cell = verify.Cell("p", "1", "t", side.result, side.result, 1.0, "now", "", (side, side))
    assert [one.output for one in results.cleaned(cell).sides] == [kept] * 2, why
    assert "/tmp" not in str(results.cleaned(cell))
    assert results.cleaned(results.cleaned(cell)) == results.cleaned(cell)


@pytest.mark.parametrize("result", [Result.DID_NOT_RUN, Result.FAILS_OTHERWISE])
def test_of_a_run_that_ended_otherwise_no_output_is_kept(result: Result) -> None:
    """It may be anything, such as a traceback in a log, with the source that stands in it."""
    output = "(EngineCore) ERROR     return self.model(\nE   ValueError: no"
    side = verify.Side(result, (), 1.0, "did not end in time", {}, (), output)
    cell = verify.Cell("p", "1", "t", result, result, 1.0, "now", "", (side, side))
    assert [(one.detail, one.output) for one in results.cleaned(cell).sides] == [
        ("did not end in time", "")
    ] * 2


@pytest.mark.parametrize("status", [0, 1])
def test_make_results_cleans_what_is_not_all_proven_too(tmp_path: Path, status: int) -> None:
    """And ends as `mrv2 verify` does."""
    root = series.load().root
    called = tmp_path / "called"
    for name, ends in (("mrv2", status), ("python", 0)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "$@" >>{called}\nexit {ends}\n')
        program.chmod(0o755)
    command = ["make", "results", f"VENV={tmp_path}", f"--old-file={tmp_path}/complete"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is (status != 0), done.stderr
    assert called.read_text().splitlines() == [
        "verify --series all --output results",
        "-m mrv2_fixes.maintain.results",
    ]


@pytest.mark.parametrize("made", [readme, figures], ids=["README.md", "docs/benchmarks.md"])
def test_the_pages_say_what_the_results_say(made: ModuleType) -> None:
    """Otherwise `make report`."""
    page = made.PAGE.read_text()
    assert made.renewed(page) == page


def test_the_page_of_figures_has_every_benchmark() -> None:
    for path in readme.BENCHMARKS.glob("*.json"):
        assert f"<!-- {path.stem}: as far as here -->" in figures.PAGE.read_text()


def test_the_readme_has_its_plot_and_every_number() -> None:
    """Otherwise `make bench report`."""
    assert {path.stem for path in readme.BENCHMARKS.glob("*.json")} >= set(readme.NUMBERS)
    assert readme.PLOT.is_file()


FIGURES = {
    "metadata_cost": {"0.22.1": {"curves": [
        {"backend": "TRITON_MLA", "step": "decode of a draft", "unit": "bytes",
         "max_model_len": [1, 2], "growth": {"without": 9, "with": 9}},
        {"backend": "TRITON_MLA", "step": "decode of a draft", "unit": "programs",
         "max_model_len": [1024, 1048576], "growth": {"without": 1023.96, "with": 1.25}},
    ]}},
    "prepare_attn": {"0.24.0": {"prepare_attn; hybrid state, 0 drafts": {"ratio": 0.876}}},
}  # fmt: skip


def test_the_numbers_are_those_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kept in FIGURES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"figures": kept}))
    monkeypatch.setattr(readme, "BENCHMARKS", tmp_path)
    proven, draft, hybrid = readme.numbers(MATRIX)
    assert f"**{len(MATRIX.entries(Proof.PROVEN))} of {len(MATRIX.entries())}**" in proven
    assert "**1,024 times** the programs at a `max_model_len` of 1,048,576" in draft
    assert "at 1,024, for one batch; with the series 1.25 times (0.22.1)" in draft
    assert "**0.88 times**" in hybrid


def test_the_readme_of_other_results_would_say_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matrix, "read", lambda folder: [])
    text = readme.renewed(readme.PAGE.read_text())
    assert f"**0 of {len(MATRIX.entries())}**" in text
    assert "✓ |" not in text
