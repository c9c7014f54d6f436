"""`vllm serve`, with every process that belongs to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from mrv2_fixes.engine import Environment

from . import traffic

BOOT = 300.0
STOP = 60.0
"""Seconds, on a machine that does other things too."""
# Engine and worker have processes of their own, which any core may run: there may be more servers.
PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
PACE = 0.1
"""Seconds between two looks at whether it answers."""
TAIL = 80
"""Lines of the output that a failure shows."""
# Few rows, few blocks and short chunks: requests wait, join, and take over what others had.
OPTIONS = [
    *("--skip-tokenizer-init", "--enforce-eager", "--no-enable-prefix-caching"),
    *("--dtype", "float32", "--seed", "0", "--block-size", "32", "--max-model-len", "128"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "48", "--num-gpu-blocks-override", "16"),
]


class Server:
    """One that has been started."""

    def __init__(self, process: subprocess.Popen[str], socket: Path) -> None:
        self.socket = socket
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """What all its processes have printed so far."""
        return "".join(self._lines)

    def wait_until_ready(self) -> None:
        """Until it answers. Fails with the end of its output when it ends, or takes too long."""
        began = time.monotonic()
        while not self._answers():
            assert time.monotonic() - began < BOOT, f"the server does not start:\n{self._tail()}"
            assert not self._wait_for_the_end(PACE), f"the server did not start:\n{self._tail()}"

    def wait_until_ended(self) -> int:
        """Until it and all its children have ended; its exit status."""
        assert self._wait_for_the_end(STOP), f"processes are left:\n{self._tail()}"
        return self._process.wait(STOP)

    def stop(self) -> int:
        """Ask the one process to end, as a service manager does; the exit status."""
        self._process.terminate()
        return self.wait_until_ended()

    def kill(self) -> None:
        """End what is left of it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(STOP)

    def _answers(self) -> bool:
        try:
            return traffic.get(self.socket, "/health")[0] == http.client.OK
        except OSError:
            return False

    def _wait_for_the_end(self, seconds: float) -> bool:
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def _tail(self) -> str:
        return "\n".join(self.output.splitlines()[-TAIL:])

    def _read(self) -> None:
        # The output ends when the last process that can write to it has: no child is left then.
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)


@contextlib.contextmanager
def serve(environment: Environment, model: Path, variables: Mapping[str, str]) -> Iterator[Server]:
    """A server of `model` that listens; none of its processes outlives the block."""
    with tempfile.TemporaryDirectory(prefix="mrv2-") as folder:
        socket = Path(folder) / "server"
        script = environment.python.with_name("vllm")
        process = subprocess.Popen(
            [environment.python, script, "serve", model, "--uds", socket, *OPTIONS],
            cwd=folder,
            env={**variables, **PROCESSES, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        server = Server(process, socket)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.kill()
