"""The patched wheel: an official one with the plan in it, under a version of its own.

What the plan does not change is copied as it lies there. What is changed besides says so: the
version in METADATA, in vLLM's `_version.py`, in the names of the file and its folders; RECORD; and
our record of what was written.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from mrv2_fixes import known, record
from mrv2_fixes.deliver import archive
from mrv2_fixes.errors import Drifted, Mrv2Error, TargetUnusable
from mrv2_fixes.plan import Plan, State
from mrv2_fixes.record import Record
from mrv2_fixes.series import Series
from mrv2_fixes.targets import Target, wheel_record
from mrv2_fixes.targets.target import MARK
from mrv2_fixes.targets.wheel import Wheel

VERSION_FILE = "vllm/_version.py"
VERSION_NAMES = {"__version__", "version", "__version_tuple__", "version_tuple"}


@dataclass(frozen=True)
class Patched:
    """A patched wheel, ready to be written.

    name: of the file.
    """

    name: str
    _source: Wheel
    _layout: archive.Layout

    def write(self, folder: Path) -> None:
        """Write it into `folder`. Raises Mrv2Error when it cannot be, such as for want of room."""
        path = folder / self.name
        try:
            archive.write(self._source.file, self._layout, self._source.archive.comment, path)
        except OSError as error:
            raise Mrv2Error(f"{self.name}: cannot be written: {error.strerror}") from error
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
    new = _with_local(old, _segments(plan, series))
    wheel_record.verify(wheel, lines, lines if target.kind == "wheel" else read, progress)

    contents = {
        **plan.after,
        metadata: _in_metadata(wheel.read(metadata), new),
        VERSION_FILE: _in_version_file(wheel.read(VERSION_FILE), old, new),
        record.PATH: _record(plan),
    }
    # RECORD is the last, in itself and in the archive.
    paths = [path for path in {**wheel.members, **contents} if path != own] + [own]
    renamed = _renamed(paths, own.removesuffix(".dist-info/RECORD"), new)
    contents[own] = wheel_record.serialize(
        wheel_record.line(renamed[path], contents[path])
        if path in contents
        else lines[path]._replace(path=renamed[path])
        for path in paths
    )
    mark = wheel.members[MARK]
    members = (
        archive.Member(wheel.members.get(path, mark), renamed[path], contents.get(path))
        for path in paths
    )
    try:
        laid_out = archive.layout(wheel.file, members)
    except zipfile.BadZipFile as error:
        raise TargetUnusable(f"{wheel.path}: {error}: get the official wheel") from error
    return Patched(_file_name(wheel.path, new), wheel, laid_out)


def _version(wheel: Wheel, text: str) -> Version:
    """The wheel's version. Raises TargetUnusable when its names do not say the same."""
    distribution = wheel.dist_infos[0].removesuffix(".dist-info")
    try:
        version = Version(text)
        name, named, _, _ = parse_wheel_filename(wheel.path.name)
        folder, _, folder_version = distribution.partition("-")
        same = (name, version, version) == (
            canonicalize_name(folder),
            named,
            Version(folder_version),
        )
    except (InvalidVersion, InvalidWheelFilename):
        same = False
    if not same:
        says = f"is named so, and holds {distribution} that says version {text}"
        raise TargetUnusable(f"{wheel.path}: {says}: name it as it was")
    return version


def _segments(plan: Plan, series: Series) -> str:
    """What follows in the local version: one for each wheel that can be made of one base."""
    revision = f"mrv2.{series.revision}"
    slugs = [step.patch.slug for step in plan.steps]
    if plan.release and slugs == [patch.slug for patch in series.core]:
        return revision
    what = [*_patches(plan), *(known.digest(text) for _, text in sorted(plan.after.items()))]
    # With a letter in front: a segment of digits alone would lose its zeros.
    return f"{revision}.s{known.digest(' '.join(what).encode())[:8]}"


def _with_local(version: Version, segments: str) -> Version:
    return Version(f"{version}{'.' if version.local else '+'}{segments}")


def _patches(plan: Plan) -> tuple[str, ...]:
    return tuple(step.patch.slug for step in plan.steps if step.state is State.NEEDED)


def _record(plan: Plan) -> bytes:
    files = {path: known.digest(text) for path, text in sorted(plan.after.items())}
    program = importlib.metadata.version("vllm-mrv2-fixes")
    written = msgspec.json.encode(Record("wheel", program, _patches(plan), files))
    return msgspec.json.format(written, indent=2) + b"\n"


def _in_metadata(content: bytes, version: Version) -> bytes:
    """METADATA with another version; it is known to have one."""
    return re.sub(
        rb"^(Version:[ \t]*)[^\r\n]*",
        rb"\g<1>%b" % str(version).encode(),
        content,
        count=1,
        flags=re.M,
    )


def _in_version_file(content: bytes, old: Version, new: Version) -> bytes:
    """vLLM's `_version.py` with another version, which setuptools-scm wrote as two literals.

    Raises Drifted when they are not there, or of another version; they may lack its local part.
    """
    try:
        nodes = [node for node in ast.parse(content).body if isinstance(node, ast.Assign)]
    except (SyntaxError, ValueError) as error:
        raise Drifted(f"{VERSION_FILE}: not to be read: {error}") from error
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = set()
    for node in reversed(nodes):
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if not names & VERSION_NAMES:
            continue
        found |= names
        try:
            literal = _literal(ast.literal_eval(node.value), old, new)
        except (ValueError, TypeError):
            stands = ast.unparse(node)
            raise Drifted(f"{VERSION_FILE}: sought version {old}, found {stands!r}") from None
        first = starts[node.value.lineno - 1] + node.value.col_offset
        last = starts[(node.value.end_lineno or 0) - 1] + (node.value.end_col_offset or 0)
        content = content[:first] + literal.encode() + content[last:]
    missing = {"__version__", "__version_tuple__"} - found
    if missing:
        raise Drifted(f"{VERSION_FILE}: sought an assignment to {min(missing)}, found none")
    return content


def _literal(value: object, old: Version, new: Version) -> str:
    """What stands for `new` where `value` stands for `old`. Raises ValueError when it does not."""
    for version in (old, Version(old.public)):
        if value == str(version):
            return repr(str(new))
        if value == _fields(version):
            return repr(_fields(new))
    raise ValueError(value)


def _fields(version: Version) -> tuple[int | str, ...]:
    """A version as setuptools-scm takes it apart."""
    pre = "".join(map(str, version.pre or ()))
    post = f"post{version.post}" if version.post is not None else ""
    dev = f"dev{version.dev}" if version.dev is not None else ""
    return (*version.release, *filter(None, (pre, post, dev, version.local)))


def _renamed(paths: Iterable[str], old: str, new: Version) -> dict[str, str]:
    """Path to what it is called under another version; `old` is what the folders' names begin with.

    An installer finds a wheel's folders by its name and version.
    """
    name = old.partition("-")[0]
    prefixes = {f"{old}.{kind}/": f"{name}-{new}.{kind}/" for kind in ("dist-info", "data")}
    renamed = {}
    for path in paths:
        folder = path.partition("/")[0] + "/"
        renamed[path] = prefixes.get(folder, folder) + path[len(folder) :] if "/" in path else path
    return renamed


def _file_name(path: Path, version: Version) -> str:
    """The wheel's name under another version: its build number and tags stay."""
    name, _, *rest = path.name.split("-")
    return "-".join([name, str(version), *rest])
