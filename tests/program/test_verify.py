"""What counts as proof, and what does not."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mrv2_fixes import cli, engine, series, verify
from mrv2_fixes.engine import run
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.verify import Result

REPRODUCER = series.Reproducer(
    "tests/v1/test_a.py::test_b", series.Failure("backends/mamba_attn.py", "assert seq_lens_cpu")
)
DECLARED = engine.Failure(
    "AssertionError",
    "",
    (
        engine.Frame("tests/v1/test_a.py", 1, "test_b", "llm.generate()"),
        engine.Frame("vllm/v1/attention/backends/mamba_attn.py", 2, "f", "assert seq_lens_cpu"),
    ),
    (),
)
ELSEWHERE = engine.Failure("AssertionError", "assert seq_lens_cpu", DECLARED.frames[:1], ())
OTHER_LINE = engine.Failure(
    "IndexError",
    "out of range",
    (engine.Frame("vllm/v1/attention/backends/mamba_attn.py", 9, "f", "x[1]"),),
    (),
)


def ran(outcome: Any, failure: engine.Failure | None = None, name: str = "") -> run.Test:
    return run.Test(REPRODUCER.test + name, outcome, 1.0, None, failure)


CASES = [
    ("passes", [ran("passed")], Result.PASSES),
    ("fails as declared", [ran("failed", DECLARED)], Result.FAILS),
    ("each parameter fails as declared",
     [ran("failed", DECLARED, "[a]"), ran("failed", DECLARED, "[b]")], Result.FAILS),
    ("the message from another file", [ran("failed", ELSEWHERE)], Result.FAILS_OTHERWISE),
    ("another line of the file", [ran("failed", OTHER_LINE)], Result.FAILS_OTHERWISE),
    ("one parameter fails otherwise",
     [ran("failed", DECLARED, "[a]"), ran("failed", ELSEWHERE, "[b]")], Result.FAILS_OTHERWISE),
    ("one parameter passes",
     [ran("failed", DECLARED, "[a]"), ran("passed", None, "[b]")], Result.FAILS_OTHERWISE),
    ("skipped", [ran("skipped")], Result.DID_NOT_RUN),
    ("one parameter skipped", [ran("passed", None, "[a]"), ran("skipped", None, "[b]")],
     Result.DID_NOT_RUN),
    ("the process died", [ran("unfinished")], Result.DID_NOT_RUN),
    ("not collected", [], Result.DID_NOT_RUN),
    ("another test", [run.Test("tests/v1/test_a.py::test_bc", "passed", 1.0)], Result.DID_NOT_RUN),
]  # fmt: skip


@pytest.mark.parametrize(("why", "tests", "result"), CASES, ids=[case[0] for case in CASES])
def test_only_the_declared_failure_and_a_whole_pass_count(
    why: str, tests: list[run.Test], result: Result
) -> None:
    passed = all(test.outcome == "passed" for test in tests)
    report = engine.Report(tests=tuple(tests), returncode=0 if passed else 1)
    assert verify.judge(report, REPRODUCER)[0] is result, why


@pytest.mark.parametrize("tests", [[ran("passed")], [ran("failed", DECLARED)]])
def test_an_engine_that_dies_at_the_end_proves_nothing(tests: list[run.Test]) -> None:
    report = engine.Report(tests=tuple(tests), returncode=-11)
    result, detail = verify.judge(report, REPRODUCER)
    assert (result, detail) == (Result.DID_NOT_RUN, "pytest ended with -11")


def test_what_needed_a_refusal_lifted_proves_nothing_when_there_was_none() -> None:
    reproducer = msgspec.structs.replace(REPRODUCER, lift="hybrid/mamba models")
    report = engine.Report(tests=(ran("passed"),), returncode=0)
    assert verify.judge(report, reproducer)[0] is Result.DID_NOT_RUN


def test_a_run_that_was_stopped_proves_nothing() -> None:
    report = engine.Report(tests=(ran("passed"),), timed_out=True)
    assert verify.judge(report, REPRODUCER)[0] is Result.DID_NOT_RUN


@pytest.mark.parametrize("without", Result)
@pytest.mark.parametrize("with_", Result)
def test_proven_is_fails_without_and_passes_with(without: Result, with_: Result) -> None:
    cell = verify.Cell("p", "1", "t", without, with_, 1.0, "now", "", ())  # type: ignore[arg-type]
    assert cell.proven is ((without, with_) == (Result.FAILS, Result.PASSES))


def cell(patch: str, release: str, seconds: float) -> verify.Cell:
    side = verify.Side(Result.FAILS, (), seconds, "", {}, (), "")
    return verify.Cell(
        patch, release, "t", Result.FAILS, Result.PASSES, seconds, "now", "", (side, side)
    )


def test_cells_are_kept_beside_those_of_other_runs(tmp_path: Path) -> None:
    """By release, the oldest first; one that this program does not know of is kept too."""
    verify.write([cell("c", "0.99.0.rc", 1), cell("b", "0.32.0", 1)], tmp_path)
    path = verify.write([cell("a", "0.22.0", 1), cell("b", "0.32.0", 2)], tmp_path)
    kept = [(row["patch"], row["seconds"]) for row in json.loads(path.read_text())]
    assert kept == [("a", 1), ("b", 2), ("c", 1)]


def test_what_is_kept_stays_when_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = verify.write([cell("a", "0.22.0", 1)], tmp_path)
    before, whole = path.read_bytes(), Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        whole(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left"):
        verify.write([cell("b", "0.22.0", 1)], tmp_path)
    assert path.read_bytes() == before


def test_where_nothing_can_be_kept_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "run", lambda *_: pytest.fail("an engine is run"))
    with pytest.raises(OSError, match="/proc/none"):
        cli.cli.main(["verify", "0.24.0", "--output", "/proc/none"], standalone_mode=False)


def test_what_is_changed_during_the_runs_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("patches", "tests/v1", "vllm"):
        shutil.copytree(series.root() / folder, tmp_path / folder)
    copied = series.load(tmp_path)
    patch = copied.patch("batch-max-seq-len")
    ran_with = verify.digest(patch, copied)

    def changing(*_: Any) -> engine.Report:
        with (patch.folder / "edit.py").open("a") as edit:
            edit.write("# another one\n")
        return engine.Report()

    monkeypatch.setattr(engine, "environment", lambda release, progress: None)
    monkeypatch.setattr(verify, "_run", changing)
    cells = verify.run(verify.jobs([patch], ["0.22.1"]), copied, lambda line: None)
    assert {cell.digest for cell in cells} == {ran_with} != {verify.digest(patch, copied)}


def test_every_patch_and_affected_release_has_a_cell() -> None:
    cells = {(job.patch.slug, job.release) for job in verify.jobs(series.load().core, ())}
    old = ["0.21.0", "0.22.0", "0.22.1"]
    batch, *others = (patch.slug for patch in series.load().core)
    assert cells == {(batch, release) for release in old} | {
        (slug, release) for slug in others for release in [*old, "0.23.0", "0.24.0"]
    }


CHANGES = [
    ("its edit", "patches/one-token-prompt-is-a-prefill/edit.py", "# x\n", True),
    ("what it adds", "vllm/v1/worker/gpu/recycled_mamba_state.py", "# x\n", True),
    ("how it is to fail", "patches/one-token-prompt-is-a-prefill/patch.toml",
     '[[reproducers]]\ntest = "t"\nfailure = {file = "f", message = "m"}\n', True),
    ("an edit that it does not require", "patches/batch-max-seq-len/edit.py", "# x\n", False),
    ("a remark", "patches/one-token-prompt-is-a-prefill/patch.toml", "# x\n", False),
]  # fmt: skip


@pytest.mark.parametrize(("what", "path", "added", "old"), CHANGES, ids=[one[0] for one in CHANGES])
def test_a_proof_is_old_once_what_it_is_about_has_changed(
    tmp_path: Path, what: str, path: str, added: str, old: bool
) -> None:
    slug = "one-token-prompt-is-a-prefill"
    before = series.load()
    for folder in ("patches", "tests/v1", "vllm"):
        shutil.copytree(series.root() / folder, tmp_path / folder)
    with (tmp_path / path).open("a") as file:
        file.write(added)
    after = series.load(tmp_path)
    digests = [verify.digest(one.patch(slug), one) for one in (before, after)]
    assert (digests[0] != digests[1]) is old, what


def test_a_proof_is_old_once_what_it_requires_has_changed(tmp_path: Path) -> None:
    for folder in ("patches", "tests/v1", "vllm"):
        shutil.copytree(series.root() / folder, tmp_path / folder)
    copied = series.load(tmp_path)
    patch = copied.patch("gate-speculative-tensors")
    before = verify.digest(patch, copied)
    (required,) = patch.header.requires
    with (copied.patch(required).folder / "edit.py").open("a") as edit:
        edit.write("# another one\n")
    assert verify.digest(patch, copied) != before


def test_a_file_of_another_form_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "verify.json"
    path.write_text('[{"patch": "of another version"}]')
    with pytest.raises(TargetUnusable, match="take it away"):
        verify.write([], tmp_path)
    assert path.read_text() == '[{"patch": "of another version"}]'
