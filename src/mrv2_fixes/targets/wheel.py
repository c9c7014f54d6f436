"""A wheel of vLLM, read in place."""

from __future__ import annotations

import re
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from mrv2_fixes import record
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets.target import Target, distribution

# Encrypted members and unknown ways of compression are among what zipfile raises RuntimeError for.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)
DRIVE, ODD = re.compile(r"[A-Za-z]:"), re.compile(r"[\\\x00-\x1f]")
LARGEST = 16 << 20  # bytes; a hundred times the largest of vLLM's Python files


class Wheel:
    """An open wheel: a zip archive that names each of its files once and within itself.

    path: what to call it to people, and where it was when it was opened.
    members: name to entry of each file in it, in the order in which they lie there.
    Raises TargetUnusable when it is not a whole archive, or names a file as no wheel may.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Kept open: what is delivered is what was read, though the name may pass to another.
            self.file = path.open("rb")
            self.archive = zipfile.ZipFile(self.file)
        except DAMAGED as error:
            raise TargetUnusable(f"{path}: not a whole wheel: {error}; get it again") from error
        entries = sorted(self.archive.infolist(), key=lambda entry: entry.header_offset)
        _check_names(path, [entry.orig_filename for entry in entries])
        self.members = {entry.filename: entry for entry in entries if not entry.is_dir()}

    def read(self, name: str) -> bytes:
        """The file `name`. Raises TargetUnusable when it is damaged or larger than LARGEST."""
        try:
            if self.members[name].file_size > LARGEST:
                raise zipfile.BadZipFile("larger than any file of vLLM")
            return self.archive.read(name)
        except DAMAGED as error:
            raise TargetUnusable(f"{self.path}: {name} in it is damaged: {error}") from error

    @cached_property
    def dist_infos(self) -> list[str]:
        """The folders that hold metadata, of which a wheel has one."""
        found = (name.partition("/")[0] for name in self.members if "/" in name)
        return list(dict.fromkeys(name for name in found if name.endswith(".dist-info")))


class Files(Mapping[str, bytes]):
    """The Python files of the package in a wheel, and our record, by path; read when asked for."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._names = {
            name: None
            for name in wheel.members
            if name.startswith("vllm/") and (name.endswith(".py") or name == record.PATH)
        }

    def __getitem__(self, path: str) -> bytes:
        if path not in self._names:
            raise KeyError(path)
        return self._wheel.read(path)

    def __contains__(self, path: object) -> bool:
        return path in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read(path: Path) -> Target:
    """The vLLM in the wheel `path`."""
    if path.suffix != ".whl":
        raise TargetUnusable(f"{path}: neither a folder nor a wheel (.whl)")
    wheel = Wheel(path)
    metadata = [f"{folder}/METADATA" for folder in wheel.dist_infos]
    texts = [
        wheel.read(name).decode(errors="replace") for name in metadata if name in wheel.members
    ]
    found = [distribution(text) for text in texts]
    if len(found) != 1 or found[0] is None:
        raise TargetUnusable(f"{path}: not a wheel of vLLM")
    return Target("wheel", str(path), found[0][1], Files(wheel), wheel=wheel)


def _check_names(path: Path, names: list[str]) -> None:
    """Raise TargetUnusable for a name that would be written elsewhere, or over another one."""
    files: dict[str, str] = {}
    for name in names:
        # As a file system would that keeps no case, or keeps names normalised.
        key = unicodedata.normalize("NFC", name).casefold()
        fault = _fault(name) or (key in files and f"is one file with {files[key]!r}")
        if fault:
            raise TargetUnusable(f"{path}: {name!r} in it {fault}: get the official wheel")
        files[key] = name
    folders = {key.rpartition("/")[0] for key in files}
    while folders:
        for folder in folders & files.keys():
            fault = f"{files[folder]!r} in it is a file and a folder"
            raise TargetUnusable(f"{path}: {fault}: get the official wheel")
        folders = {folder.rpartition("/")[0] for folder in folders} - {""}


def _fault(name: str) -> str:
    """What keeps a name from being that of a file of a wheel; empty when nothing does."""
    if name.startswith("/") or DRIVE.match(name):
        return "is an absolute path"
    if ODD.search(name):
        return "has a backslash or a control character"
    if not {"", ".", ".."}.isdisjoint(name.removesuffix("/").split("/")):
        return "leads elsewhere than it reads"
    return ""
