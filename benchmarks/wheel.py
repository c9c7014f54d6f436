"""What a patched wheel costs, beside a copy of the file and the usual way of changing one.

    python -m benchmarks.wheel [RELEASE]

`patched wheel` is all that it takes to get from the official wheel to the patched one but for the
plan: reading the directory, comparing what is read with RECORD, writing. `wheel unpack, wheel pack`
are the two commands of the package wheel with the same changes between them, its RECORD and
compression included.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import measure
from mrv2_fixes import plan, series
from mrv2_fixes.deliver import wheel
from mrv2_fixes.targets import release

RUNS = 9


def say(line: str) -> None:
    print(line, file=sys.stderr)


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

    def build(into: Path) -> None:
        patched = wheel.patched(made, release.read(number, say), chosen, lambda _: None)
        assert patched is not None
        patched.write(into)

    def copy(into: Path) -> None:
        subprocess.run(["cp", "--reflink=never", official, into], check=True)

    def sample(action: Callable[[Path], None], into: Path) -> float:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        return measure.timed(partial(action, into))

    dist = measure.ROOT / "dist"
    dist.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dist) as temporary:
        into, tool = Path(temporary) / "out", install_wheel(Path(temporary) / "tool")
        quick = {
            name: partial(sample, action, into)
            for name, action in {"cp": copy, "patched wheel": build}.items()
        }
        whole = partial(sample, partial(unpack_and_pack, tool, official, made), into)
        figures = {
            "wheel": measure.compared(measure.sampled(quick, RUNS), to="cp"),
            "by hand": measure.compared(
                measure.sampled({**quick, "wheel unpack, wheel pack": whole}, 1), to="cp"
            ),
            "bytes": official.stat().st_size,
        }
    of = [Path(__file__), *measure.program("deliver", "targets")]
    measure.write("wheel", figures, of, {"vllm": number, "zlib": zlib.ZLIB_RUNTIME_VERSION})


if __name__ == "__main__":
    main(*sys.argv[1:])
