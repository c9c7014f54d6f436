"""How long a patched wheel takes, beside copying the file and beside the usual way of changing one.

    .venv/bin/python benchmarks/wheel.py [RELEASE]

Medians of interleaved runs, in seconds and as ratios to `cp`, as JSON. `build` is all that it takes
to get from the official wheel to the patched one but for the plan, which has its own benchmark:
reading the directory, comparing what is read with RECORD, writing. `build, open` is without opening
the wheel, which a plan has done. `unpack and pack` are the two commands of the package wheel with
the same changes between them, its RECORD and compression included.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from mrv2_fixes import plan, series
from mrv2_fixes.deliver import wheel
from mrv2_fixes.targets import Target, release

ROUNDS = 3
RUNS = 7  # of each in a round, but for the slow one


def say(line: str) -> None:
    print(line, file=sys.stderr)


def seconds(action: Callable[[], object], into: Path) -> float:
    """How long `action` takes to fill the folder `into`, which is made empty before."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def install_wheel(into: Path) -> list[str]:
    """The command of the package wheel, in an environment of its own."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, into], check=True)
    python = str(into / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, "wheel"], check=True)
    return [python, "-m", "wheel"]


def unpack_and_pack(tool: list[str], official: Path, made: plan.Plan, into: Path) -> None:
    """Do what `mrv2 build` does with the package wheel."""
    subprocess.run([*tool, "unpack", "--dest", into, official], stdout=sys.stderr, check=True)
    (root,) = into.iterdir()
    (metadata,) = root.glob("*.dist-info/METADATA")
    version = root.name.partition("-")[2]
    for name, content in made.after.items():
        (root / name).write_bytes(content)
    for path in (metadata, root / "vllm" / "_version.py"):
        path.write_text(path.read_text().replace(version, f"{version}+mrv2.1", 1))
    metadata.parent.rename(root / f"{root.name}+mrv2.1.dist-info")
    subprocess.run([*tool, "pack", "--dest-dir", into, root], stdout=sys.stderr, check=True)


def main(number: str = "0.24.0") -> None:
    official = release.official_wheel(number, say)
    chosen = series.load()
    target = release.read(number, say)
    made = plan.quick(chosen.core, target.files, version=target.version)

    def build(opened: Target) -> None:
        patched = wheel.patched(made, opened, chosen, lambda _: None)
        assert patched is not None
        patched.write(into)

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as temporary:
        into, tool = Path(temporary) / "out", install_wheel(Path(temporary) / "tool")
        quick: dict[str, Callable[[], object]] = {
            "cp": lambda: subprocess.run(["cp", "--reflink=never", official, into], check=True),
            "build": lambda: build(release.read(number, say)),
            "build, open": lambda: build(target),
        }
        slow = {"unpack and pack": lambda: unpack_and_pack(tool, official, made, into)}
        taken: dict[str, list[float]] = {name: [] for name in (*quick, *slow)}
        for _ in range(ROUNDS):
            for actions, runs in ((quick, RUNS), (slow, 1)):
                for _ in range(runs):
                    for name, action in actions.items():
                        taken[name].append(seconds(action, into))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    answer = {
        "release": number,
        "bytes": official.stat().st_size,
        "python": platform.python_version(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "cores": os.cpu_count(),
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "ratio to cp": {name: round(value / medians["cp"], 2) for name, value in medians.items()},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
