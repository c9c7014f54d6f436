"""vLLM built anew from the branch, without compiling, by the lines of the README."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrv2_fixes import plan, series
from mrv2_fixes.targets import release
from mrv2_fixes.targets import wheel as wheels

from . import sdist
from .conftest import commit_release
from .test_readme import REBUILD

pytestmark = pytest.mark.releases

RELEASE = "0.24.0"
# What a source distribution has besides the repository's files.
GENERATED = ("PKG-INFO", "setup.cfg", "vllm.egg-info", "vllm/_version.py")
COMPILED = (".so", "/vllm-rs")


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that is gone afterwards: what a build copies about is large."""
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


@pytest.fixture
def official(folder: Path) -> Path:
    """The release's wheel with the start of each compiled file: the rest would only take time."""
    whole = release.official_wheel(RELEASE, say)
    with zipfile.ZipFile(whole) as there, zipfile.ZipFile(folder / whole.name, "w") as short:
        for entry in there.infolist():
            with there.open(entry) as file:
                content = file.read(1024 if entry.filename.endswith(COMPILED) else -1)
            short.writestr(entry, content, zipfile.ZIP_STORED)
    return folder / whole.name


@pytest.fixture
def clone(folder: Path) -> Path:
    """The release's repository, as far as its source distribution has it, with its tag."""
    with tarfile.open(sdist.sdist(RELEASE, say)) as archive:
        archive.extractall(folder, filter="data")
    root = (folder / f"vllm-{RELEASE}").rename(folder / "clone")
    exclude = "".join(f"/{path}\n" for path in GENERATED)
    (root / ".git" / "info").mkdir(parents=True)
    (root / ".git" / "info" / "exclude").write_text(exclude)
    return commit_release(root, RELEASE)


def test_rebuilt_without_compiling(folder: Path, clone: Path, official: Path) -> None:
    """The release's own wheel but for the patched files: not a compiled part or a table is lost."""
    (folder / "here").mkdir()
    lines = "\n".join(["set -e", f".venv/bin/mrv2 branch {clone}", *REBUILD])
    for name, meant in {
        "CLONE": clone,
        "=WHEEL": f"={official}",
        ".venv/bin": Path(sys.executable).parent,
    }.items():
        lines = lines.replace(name, str(meant))
    done = subprocess.run(
        ["bash", "-c", lines],
        cwd=folder / "here",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    (rebuilt,) = (folder / "here" / "dist").glob("*.whl")

    target = wheels.read(rebuilt)
    assert target.version == f"{RELEASE}+mrv2"
    made = plan.make(series.load().core, wheels.read(official).files)
    now = plan.make(series.load().core, target.files)
    slugs = {step.patch.slug for step in made.steps if step.state is plan.State.NEEDED}
    assert slugs == {step.patch.slug for step in now.steps if step.state is plan.State.APPLIED}
    assert {path: target.files[path] for path in made.after} == made.after

    before, after = members(official), members(rebuilt)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed - set(made.after) <= {"vllm/_version.py", "vllm/vllm_flash_attn/.gitkeep"}
    assert any(name.endswith(COMPILED) for name in after)


def members(wheel: Path) -> dict[str, int]:
    """Name to checksum of what a wheel has in `vllm/`."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            entry.filename: entry.CRC
            for entry in archive.infolist()
            if entry.filename.startswith("vllm/")
        }
