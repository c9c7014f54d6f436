"""A pytest plugin that writes what happened as JSON.

    -p mrv2_engine.pytest_report --engine-report=FILE

The file is written anew after each step, so that a run that crashes or is stopped leaves what it
had seen; the test that it was in is then "unfinished".
"""

import json
import linecache
import os
import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from . import refusal

TAIL = 30
"""Lines of a failure's text that are kept."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --engine-report."""
    parser.addoption("--engine-report", metavar="FILE", help="write the engine's report here")


def pytest_configure(config: pytest.Config) -> None:
    """Register the reporter when a file is asked for."""
    if file := config.getoption("--engine-report"):
        config.pluginmanager.register(_Reporter(Path(file), config.rootpath))


class _Reporter:
    def __init__(self, file: Path, root: Path) -> None:
        self.file = file
        self.root = root
        # as it is before pytest adds the folders of the tests to it; the longest is the nearest
        self.folders = sorted({str(root), *filter(None, sys.path)}, key=len, reverse=True)
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report = yield
        self._add(report, report.duration, call.excinfo)
        if report.when == "teardown" and self.tests[report.nodeid]["outcome"] == "unfinished":
            self.tests[report.nodeid]["outcome"] = "passed"
        self.write()
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        report = yield
        if report.outcome != "passed":
            self._add(report, 0.0, report.call.excinfo)
            self.write()
        return report

    def pytest_sessionfinish(self) -> None:
        self.write()

    def _add(self, report: Any, seconds: float, excinfo: Any) -> None:
        test = self.tests.setdefault(
            report.nodeid, {"id": report.nodeid, "outcome": "unfinished", "seconds": 0.0}
        )
        test["seconds"] += seconds
        if report.skipped:
            test["outcome"] = "skipped"
            where = report.longrepr
            test["reason"] = where[2] if isinstance(where, tuple) else str(where)
        elif report.failed and "failure" not in test:
            # as pytest says it: "failed" is the test's own code, "error" what surrounds it
            test["outcome"] = "failed" if getattr(report, "when", None) == "call" else "error"
            test["failure"] = _failure(excinfo.value if excinfo else None, self.folders)
            test["failure"]["tail"] = self._tail(report.longreprtext)

    def _tail(self, text: str) -> list[str]:
        """Its last lines, files named as one imports them."""
        for folder in self.folders:
            for written in (folder, os.path.relpath(folder, self.root)):
                if written != os.curdir:
                    text = text.replace(f"{written}/", "")
        return text.splitlines()[-TAIL:]

    def write(self) -> None:
        vllm = find_spec("vllm")
        report = {
            "versions": _versions(),
            "vllm": str(Path(vllm.origin).parent) if vllm and vllm.origin else None,
            "lifted": refusal.lifted,
            "tests": list(self.tests.values()),
        }
        # whole or not at all
        temporary = self.file.with_suffix(".part")
        temporary.write_text(json.dumps(report, indent=1))
        temporary.replace(self.file)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("vllm", "torch", "triton", "transformers"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _failure(error: BaseException | None, folders: list[str]) -> dict[str, Any]:
    error = _original(error)
    return {
        "type": type(error).__name__ if error else "",
        "message": str(error) if error else "",
        "frames": _frames(error.__traceback__, folders) if error else [],
    }


def _original(error: BaseException | None) -> BaseException | None:
    """The exception that everything followed from."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            break
        error = before
    return error


def _frames(traceback: TracebackType | None, folders: list[str]) -> list[dict[str, Any]]:
    """File, line, function and source line of each frame, innermost last."""
    frames = []
    while traceback is not None:
        code, line = traceback.tb_frame.f_code, traceback.tb_lineno
        frames.append(
            {
                "file": _relative(code.co_filename, folders),
                "line": line,
                "function": code.co_name,
                "source": linecache.getline(code.co_filename, line).strip(),
            }
        )
        traceback = traceback.tb_next
    return frames


def _relative(file: str, folders: list[str]) -> str:
    """As one imports it, or seen from the tests' root, or as it is."""
    for folder in folders:
        if file.startswith(f"{folder}/"):
            return file[len(folder) + 1 :]
    return file
