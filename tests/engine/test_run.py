"""Runs and their reports, with this Python's own environment in the place of a release's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2_fixes.engine import EngineError, Environment, Report, run_tests

THIS = Environment("none", Path(sys.prefix), f"{sys.version_info[0]}.{sys.version_info[1]}")
SOURCE = """
import json
import os
import pytest

def deep():
    raise KeyError("the first")

def test_passes(tmp_path):
    assert not [name for name in os.environ if "FROM_CALLER" in name]
    assert os.environ["VLLM_PLUGINS"] == ""

def test_fails():
    try:
        deep()
    except KeyError as error:
        raise RuntimeError("the last") from error

def test_fails_elsewhere():
    json.loads("{")

def test_skips():
    pytest.skip("no such thing here")

@pytest.fixture
def broken():
    raise OSError("no")

def test_errs(broken):
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_many(n):
    assert n == 1

def test_dies():
    os._exit(3)
"""
FILE = "tests/v1/test_some.py"
Run = Callable[..., Report]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "root" / "tests" / "v1"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(SOURCE)
    (folder / "test_unreadable.py").write_text("import nowhere_to_be_found\n")
    # settings and conftest files around the tests are not theirs
    (tmp_path / "root" / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (folder / "conftest.py").write_text("raise RuntimeError\n")
    tree = tmp_path / "tree"
    tree.mkdir()

    def run_some(*node_ids: str, timeout: float = 100) -> Report:
        return run_tests(THIS, tree, folder.parent, node_ids, timeout=timeout)

    return run_some


def test_every_outcome_has_its_word(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FROM_CALLER", "1")
    monkeypatch.setenv("MRV2_FROM_CALLER", "1")
    names = ("passes", "fails", "skips", "errs", "many")
    report = run(*(f"{FILE}::test_{name}" for name in names))
    assert [report.outcome(f"{FILE}::test_{name}") for name in names] == [
        "passed",
        "failed",
        "skipped",
        "error",
        "failed",
    ]
    assert len(report.of(f"{FILE}::test_many")) == 2
    assert report.of(f"{FILE}::test_skips")[0].reason == "Skipped: no such thing here"
    assert (report.returncode, report.timed_out, report.lifted) == (1, False, ())
    assert report.versions["python"].startswith(THIS.python_version)


def test_a_failure_is_the_exception_that_it_goes_back_to(run: Run) -> None:
    failure = run(f"{FILE}::test_fails").of(FILE)[0].failure
    assert failure is not None
    assert (failure.type, failure.message) == ("KeyError", "'the first'")
    assert failure.frames[-1].file == FILE
    assert failure.frames[-1].function == "deep"
    assert failure.frames[-1].source == 'raise KeyError("the first")'
    assert "RuntimeError: the last" in "\n".join(failure.tail)


def test_what_is_kept_of_a_failure_names_no_folder_of_this_machine(run: Run) -> None:
    failure = run(f"{FILE}::test_fails_elsewhere").of(FILE)[0].failure
    assert failure is not None
    said = "\n".join(failure.tail)
    assert f"{FILE}:" in said
    assert "\njson/decoder.py:" in said
    assert os.pardir not in said
    assert str(Path(json.__file__).parents[1]) not in said


def test_what_did_not_run_is_not_taken_for_failed(run: Run) -> None:
    report = run(f"{FILE}::test_no_such")
    assert report.outcome(f"{FILE}::test_no_such") == "did not run"
    assert "test_no_such" in report.output


def test_a_file_that_cannot_be_collected_is_an_error(run: Run) -> None:
    unreadable = "tests/v1/test_unreadable.py"
    report = run(unreadable)
    assert report.outcome(unreadable) == "error"
    failure = report.of(unreadable)[0].failure
    assert failure is not None
    assert failure.type == "ModuleNotFoundError"


def test_a_process_that_dies_leaves_what_it_had_seen(run: Run) -> None:
    report = run(f"{FILE}::test_passes", f"{FILE}::test_dies", f"{FILE}::test_fails")
    outcomes = [report.outcome(f"{FILE}::test_{name}") for name in ("passes", "dies", "fails")]
    assert outcomes == ["passed", "unfinished", "did not run"]
    assert report.returncode == 3


def test_a_run_out_of_time_is_stopped(run: Run) -> None:
    report = run(f"{FILE}::test_passes", timeout=0)
    assert report.timed_out
    assert report.returncode is None
    assert report.outcome(f"{FILE}::test_passes") == "did not run"


def test_no_interpreter_is_an_error_of_the_engine(tmp_path: Path) -> None:
    nowhere = Environment("none", tmp_path / "nowhere", "3.11")
    with pytest.raises(EngineError, match="no test was run"):
        run_tests(nowhere, tmp_path, tmp_path / "tests", [], timeout=10)
