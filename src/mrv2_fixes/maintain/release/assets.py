"""The files that people download: of each vLLM release, and of this package.

All lie in one folder, so each has a name of its own. Beside them stands the provenance of each lot.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from mrv2_fixes import DISTRIBUTION, known, plan, series, targets
from mrv2_fixes.deliver import artifacts
from mrv2_fixes.engine.uv import uv
from mrv2_fixes.errors import WrongCall
from mrv2_fixes.maintain.release import provenance

FOLDER = Path("dist/release")


def releases() -> list[str]:
    """The published releases that a patch of the series affects by its header, oldest first."""
    patches = series.load().patches
    return [number for number in known.releases() if any(one.affects(number) for one in patches)]


def of_vllm(number: str, output: Path, root: Path, say: Callable[[str], None]) -> list[Path]:
    """Write what there is for one vLLM release into `output`.

    That is the core of the series where something of it is needed, and all of the series: of each
    the patched wheel, and an archive of the rest that `mrv2 build` makes.
    root: the repository that this runs from, for the provenance.
    Raises WrongCall for a release that no patch affects, and what `provenance.commit` and
    `artifacts.build` do.
    """
    if number not in releases():
        raise WrongCall(f"{number}: no patch affects it: make releases prints those with one")
    commit = provenance.commit(root)
    opened = targets.open_target(number, say)
    assert opened.wheel is not None
    made = []
    with _scratch(output) as temporary:
        for group in series.GROUPS:
            patches = series.load().select(group=group)
            steps = plan.make(patches, opened.files, version=opened.version)
            steps.check(opened.where)
            built = artifacts.build(steps, opened, Path(temporary) / group, say)
            if built.note:
                say(built.note)
            if built.files:
                made += _assets(built.files, f"mrv2-fixes-{number}-{group}", output)
    command = ["make", "release", f"VLLM={number}"]
    materials = [commit, provenance.file(opened.wheel.path)]
    name = f"mrv2-fixes-{number}"
    return [*made, provenance.write(output, name, made, command, materials)]


def of_package(output: Path, root: Path) -> list[Path]:
    """Write this package into `output`: source distribution, and the wheel that is built from it.

    Raises EngineError when uv cannot build it, and what `provenance.commit` does.
    """
    commit = provenance.commit(root)
    with _scratch(output) as temporary:
        uv("build", "--out-dir", temporary, str(root), about=DISTRIBUTION)
        found = sorted(path for path in Path(temporary).iterdir() if path.name.startswith("vllm_"))
        made = [path.replace(output / path.name) for path in found]
    name = made[0].name.removesuffix(".tar.gz").partition("-py3")[0]
    return [*made, provenance.write(output, name, made, ["make", "package"], [commit])]


def _scratch(output: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder on the same disk, for what is not whole yet."""
    output.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=output.parent)


def _assets(built: Iterable[Path], name: str, output: Path) -> list[Path]:
    """Move the wheel into `output`, and the other files into an archive there."""
    wheels = [path for path in built if path.suffix == ".whl"]
    archive = output / f"{name}.tar"
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as packed:
        for path in sorted(set(built) - set(wheels)):
            # Of name and content alone: a date, an owner or a compressor would change the bytes.
            entry = tarfile.TarInfo(f"{name}/{path.name}")
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                packed.addfile(entry, file)
    return [*(path.replace(output / path.name) for path in wheels), archive]
