"""Run tests in a release's environment, on its real engine, and read back what happened."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from mrv2_fixes.engine.environments import Environment
from mrv2_fixes.engine.errors import EngineError

SITE = Path(__file__).parent / "site"
LIVE: list[subprocess.Popen[bytes]] = []
STOPPED = threading.Event()
TAIL = 60
"""Lines of the output that are kept."""
FOREIGN = ("VLLM_", "MRV2_", "PYTHON", "PYTEST_", "TRITON_", "TORCH")
"""Beginnings of variables of the caller that would change what is observed."""

Outcome = Literal["passed", "failed", "error", "skipped", "unfinished", "did not run"]
# worst first: what several tests together come to
_ORDER: tuple[Outcome, ...] = ("unfinished", "error", "failed", "skipped", "passed")


class Frame(msgspec.Struct, frozen=True):
    """One frame of a traceback; `file` is relative to where it is imported from."""

    file: str
    line: int
    function: str
    source: str


class Failure(msgspec.Struct, frozen=True):
    """The exception that a failure goes back to, and the end of what pytest said of it."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    """The innermost is the last."""
    tail: tuple[str, ...]


class Test(msgspec.Struct, frozen=True):
    """What happened to one test; a file that cannot be collected is listed like a test."""

    id: str
    outcome: Outcome
    seconds: float
    reason: str | None = None
    """Why it was skipped."""
    failure: Failure | None = None


class Report(msgspec.Struct, frozen=True):
    """What a run did: as written in the environment, and as seen from outside."""

    versions: Mapping[str, str] = {}
    vllm: str | None = None
    """The folder of the vllm package that was in use."""
    lifted: tuple[str, ...] = ()
    """The refusals of vLLM that the engine really dropped."""
    tests: tuple[Test, ...] = ()
    seconds: float = 0.0
    returncode: int | None = None
    """What pytest ended with; None when it was stopped."""
    timed_out: bool = False
    output: str = ""
    """The end of what was printed."""

    def of(self, node_id: str) -> tuple[Test, ...]:
        """The tests that `node_id` names: one, those of a file, or those of its parameters."""
        return tuple(
            test
            for test in self.tests
            if test.id == node_id or test.id.startswith((f"{node_id}::", f"{node_id}["))
        )

    def outcome(self, node_id: str) -> Outcome:
        """What the tests that `node_id` names come to; "did not run" when there is none."""
        outcomes = {test.outcome for test in self.of(node_id)}
        return next((outcome for outcome in _ORDER if outcome in outcomes), "did not run")


def run_tests(
    environment: Environment,
    tree: Path,
    tests_root: Path,
    node_ids: Sequence[str],
    *,
    lift_hybrid: bool = False,
    timeout: float,
    threads: int = 1,
) -> Report:
    """Run the tests `node_ids` with the vLLM of `tree` and report them.

    tree: from `patched_tree`.
    tests_root: the folder `tests`; node ids are relative to the folder that holds it.
    lift_hybrid: let hybrid models through where the release refuses them.
    timeout: in seconds; then every process of the run is ended.
    threads: that torch may use.
    Raises EngineError when pytest cannot be started at all.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        returncode = run_command(
            _command(environment, tests_root, node_ids, folder),
            tests_root.parent,
            variables(environment, [tree], threads=threads) | _for_tests(lift_hybrid),
            folder / "output",
            timeout,
        )
        written = folder / "report.json"
        report = Report()
        if written.is_file():
            report = msgspec.json.decode(written.read_bytes(), type=Report)
        lines = (folder / "output").read_text(errors="replace").splitlines()
    return msgspec.structs.replace(
        report,
        seconds=time.monotonic() - began,
        returncode=returncode,
        timed_out=returncode is None,
        output="\n".join(lines[-TAIL:]),
    )


def variables(
    environment: Environment, folders: Sequence[Path] = (), *, threads: int = 1
) -> dict[str, str]:
    """The variables that start a process of `environment`, and its children, on the engine.

    They are the caller's own but for those that would change what is observed.
    folders: modules are looked for in them before all else.
    threads: that torch may use.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, [*folders, SITE])),
        "MRV2_ENGINE": "cpu",
        "OMP_NUM_THREADS": str(threads),
        # what vLLM remembers of its models is not the same in every release
        "VLLM_CACHE_ROOT": str(environment.folder / "vllm-cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }


def stop() -> None:
    """End every run that is under way in this process, and let none begin."""
    STOPPED.set()
    for process in tuple(LIVE):
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _command(
    environment: Environment, tests_root: Path, node_ids: Sequence[str], folder: Path
) -> list[str]:
    # the caller's settings and conftest files are not those of the tests: they stay out
    settings = folder / "pytest.ini"
    settings.write_text("[pytest]\n")
    return [
        *(str(environment.python), "-m", "pytest", "-q", "-c", str(settings)),
        *(f"--rootdir={tests_root.parent}", f"--basetemp={folder / 'temporary'}"),
        *("--noconftest", "-p", "no:cacheprovider", "-p", "mrv2_engine.pytest_report"),
        # what a failure says, not what vLLM logged up to it
        *("--tb=short", "--show-capture=no", "--disable-warnings"),
        *(f"--engine-report={folder / 'report.json'}", *node_ids),
    ]


def _for_tests(lift_hybrid: bool) -> dict[str, str]:
    # what is installed beside vLLM or pytest must not change what is observed
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "VLLM_PLUGINS": ""}
    return alone | ({"MRV2_ENGINE_LIFT": "hybrid"} if lift_hybrid else {})


def run_command(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], output: Path, timeout: float
) -> int | None:
    """Run a command in `folder`; the exit status, or None when `timeout` seconds were too few.

    No process of the run is left behind. What they all print is written to the file `output`.
    Raises EngineError when the command cannot be started at all.
    """
    with output.open("wb") as written:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"{command[0]}: {error.strerror}: no test was run") from error
        LIVE.append(process)
        try:
            if STOPPED.is_set():
                raise EngineError("stopped: no test was run")
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)
            LIVE.remove(process)
