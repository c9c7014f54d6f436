"""The patched wheel: an official one with the plan in it, under a version of its own.

What the plan does not change is copied as it lies there. What is changed besides says so: the
version in METADATA, in vLLM's `_version.py`, in the names of the file and its folders; RECORD; and
our record of what was written.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from mrv2_fixes import known, program_version, record
from mrv2_fixes.deliver import archive, wheel_version
from mrv2_fixes.deliver.wheel_version import VERSION_FILE
from mrv2_fixes.errors import Drifted, Mrv2Error, TargetUnusable
from mrv2_fixes.plan import Plan, State
from mrv2_fixes.record import Record
from mrv2_fixes.series import Series
from mrv2_fixes.targets import Target, wheel_record
from mrv2_fixes.targets.target import MARK
from mrv2_fixes.targets.wheel import Wheel


@dataclass(frozen=True)
class Patched:
    """A patched wheel, ready to be written.

    name: of the file.
    """

    name: str
    _source: Wheel
    _pieces: archive.Pieces

    def write(self, folder: Path) -> None:
        """Write it into `folder`. Raises Mrv2Error when it cannot be, such as for want of room."""
        path = folder / self.name
        try:
            archive.write(self._source.file, self._pieces, path)
        except OSError as error:
            fault = f"cannot be written: {error.strerror}: name another --output"
            raise Mrv2Error(f"{self.name}: {fault}") from error
        except zipfile.BadZipFile as error:
            raise TargetUnusable(f"{self._source.path}: {error}: get it again") from error


def patched(
    plan: Plan, target: Target, series: Series, progress: Callable[[str], None]
) -> Patched | None:
    """What `plan` makes of the wheel that `target` was read from; None when it was from none.

    All files of a wheel that the user names are compared with its RECORD; of a release, which pip
    compared with the package index when it was downloaded, those that are read.
    Raises TargetUnusable when a file is another than RECORD says or the wheel is signed, patched
    already or at odds with itself, Drifted when the version does not stand where it should.
    """
    wheel = target.wheel
    if wheel is None:
        return None
    lines = wheel_record.read(wheel)
    own = wheel_record.name(wheel)
    metadata = own.replace("/RECORD", "/METADATA")
    read = [metadata, VERSION_FILE, *plan.before]
    for path in read:
        if path not in wheel.members:
            raise TargetUnusable(f"{wheel.path}: no {path} in it: get the official wheel")
    if record.PATH in wheel.members:
        raise TargetUnusable(f"{wheel.path}: patched by this series before: get the official wheel")
    old = _version(wheel, target.version or "")
    new = wheel_version.with_local(old, _segments(plan, series))
    wheel_record.verify(wheel, lines, lines if target.kind == "wheel" else read, progress)

    try:
        version_file = wheel_version.in_version_file(wheel.read(VERSION_FILE), old, new)
    except ValueError as error:
        raise Drifted(f"{wheel.path}: {VERSION_FILE}: {error}") from error
    contents = {
        **plan.after,
        metadata: wheel_version.in_metadata(wheel.read(metadata), new),
        VERSION_FILE: version_file,
        record.PATH: _record(plan, new),
    }
    # RECORD is the last, in itself and in the archive.
    paths = [path for path in {**wheel.members, **contents} if path != own] + [own]
    renamed = wheel_version.renamed(paths, own.removesuffix(".dist-info/RECORD"), new)
    contents[own] = wheel_record.serialize(
        wheel_record.line(renamed[path], contents[path])
        if path in contents
        else (renamed[path], *lines[path][1:])
        for path in paths
    )
    mark = wheel.members[MARK]
    members = (
        archive.Member(wheel.members.get(path, mark), renamed[path], contents.get(path))
        for path in paths
    )
    try:
        pieces = archive.layout(wheel.file, members, wheel.archive.comment)
    except zipfile.BadZipFile as error:
        raise TargetUnusable(f"{wheel.path}: {error}: get the official wheel") from error
    return Patched(wheel_version.file_name(wheel.path.name, new), wheel, pieces)


def _version(wheel: Wheel, text: str) -> Version:
    """The wheel's version. Raises TargetUnusable when its names do not say the same."""
    distribution = wheel.dist_infos[0].removesuffix(".dist-info")
    try:
        version = Version(text)
        name, named, _, _ = parse_wheel_filename(wheel.path.name)
        folder, _, numbered = distribution.partition("-")
        if (canonicalize_name(folder), Version(numbered), version) == (name, named, named):
            return version
    except (InvalidVersion, InvalidWheelFilename):
        pass
    says = f"its name is not that of {distribution}, version {text}, which it holds"
    raise TargetUnusable(f"{wheel.path}: {says}: name it as it was")


def _segments(plan: Plan, series: Series) -> str:
    """What the local version gets: another for each wheel that can be made of one base."""
    revision = f"mrv2.{series.revision}"
    slugs = [step.patch.slug for step in plan.steps]
    published = plan.release and all(step.state is not State.APPLIED for step in plan.steps)
    if published and slugs == [patch.slug for patch in series.core]:
        return revision
    what = [*_patches(plan), *(known.digest(text) for _, text in sorted(plan.after.items()))]
    # With a letter in front: a segment of digits alone would lose its zeros.
    return f"{revision}.s{known.digest(' '.join(what).encode())[:8]}"


def _patches(plan: Plan) -> tuple[str, ...]:
    return tuple(step.patch.slug for step in plan.needed())


def _record(plan: Plan, version: Version) -> bytes:
    """What makes `mrv2 status` of the installed wheel say `applied`."""
    files = {path: known.digest(text) for path, text in sorted(plan.after.items())}
    return record.encode(Record("wheel", program_version(), _patches(plan), files, str(version)))
