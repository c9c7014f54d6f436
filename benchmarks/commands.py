"""What `mrv2 status`, `apply` and `revert` cost, beside what people would type instead.

    python -m benchmarks.commands [RELEASE]

Each is a whole process, and does the same work on the same installed wheel: the core patches of
RELEASE are looked for, put in, taken out. `fork` is a vLLM whose files are those of no release, so
that LibCST makes the plan; `python` and `import libcst` are what no program in Python, and none
with LibCST, gets below.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import measure
from mrv2_fixes import plan, printing, series
from mrv2_fixes.targets import folder, release

RUNS = 7
Command = Sequence[str | Path]


def run(command: Command, site: Path) -> None:
    """Run a command in `site`; it may say that something is needed."""
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(site.parent)}  # no repository of ours
    done = subprocess.run(command, cwd=site, env=outside, capture_output=True, check=False)
    if done.returncode not in (0, 1) or (done.returncode and "status" not in command):
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.decode().strip()}")


def sample(site: Path, command: Command, ahead: Command = (), behind: Command = ()) -> float:
    """Seconds that a command takes in `site`; what is ahead and behind is not counted."""
    if ahead:
        run(ahead, site)
    seconds = measure.timed(partial(run, command, site))
    if behind:
        run(behind, site)
    return seconds


def install(wheel: Path, site: Path) -> None:
    """Install vLLM, of which the files that patches touch are no links to those of uv's cache."""
    uv = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--no-deps"]
    subprocess.run([*uv, "--target", site, wheel], check=True)
    for path in {path for patch in series.load().patches for path in patch.header.touches}:
        file = site / path
        if file.exists():
            content = file.read_bytes()
            file.unlink()
            file.write_bytes(content)


def main(number: str = "0.24.0") -> None:
    wheel = release.official_wheel(number, lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as scratch:
        site, fork, change = (Path(scratch) / name for name in ("official", "fork", "change.diff"))
        for one in (site, fork):
            install(wheel, one)
        made = plan.make(series.load().core, folder.read(site).files)
        change.write_text(printing.diff(made), errors="surrogateescape", newline="")
        for path, content in made.before.items():
            (fork / path).write_bytes(content + b"# ours\n")
        mrv2, patch = Path(sys.executable).with_name("mrv2"), ("patch", "-p1", "-i", change)
        ways: dict[str, tuple[Path, Command, Command, Command]] = {
            "git apply": (
                site,
                ("git", "apply", "--check", change),
                ("git", "apply", change),
                ("git", "apply", "-R", change),
            ),
            "patch": (site, (*patch, "--dry-run"), patch, (*patch, "-R")),
        }
        for name, where in {"mrv2": site, "mrv2 on a fork": fork}.items():
            ways[name] = (where, (mrv2, "status", "."), (mrv2, "apply", "."), (mrv2, "revert", "."))
        groups: dict[str, dict[str, Callable[[], float]]] = {
            "look": {},
            "put in": {},
            "take out": {},
        }
        for name, (where, look, do, undo) in ways.items():
            groups["look"][name] = partial(sample, where, look)
            groups["put in"][name] = partial(sample, where, do, behind=undo)
            groups["take out"][name] = partial(sample, where, undo, ahead=do)
        for name, code in {"python": "", "import libcst": "import libcst"}.items():
            groups["look"][name] = partial(sample, site, (sys.executable, "-c", code))
        figures = {
            name: measure.compared(measure.sampled(samples, RUNS), to="git apply")
            for name, samples in groups.items()
        }
    git = subprocess.run(["git", "--version"], check=True, capture_output=True, text=True).stdout
    of = [Path(__file__), *measure.program("edit", "deliver", "targets", "plan.py", "known.py")]
    measure.write("commands", figures, of, {"vllm": number, "git": git.split()[2]})


if __name__ == "__main__":
    main(*sys.argv[1:])
