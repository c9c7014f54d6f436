"""A wheel of vLLM, read in place."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from mrv2_fixes import record
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets.target import Target, metadata_version

# Encrypted members and unknown ways of compression are among what zipfile raises RuntimeError for.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)
LARGEST = 16 << 20  # bytes; a hundred times the largest of vLLM's Python files


class Files(Mapping[str, bytes]):
    """The Python files of the package in a wheel, and our record, by path; read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with zipfile.ZipFile(path) as archive:
            self._names = {
                name: None
                for name in archive.namelist()
                if name.startswith("vllm/") and (name.endswith(".py") or name == record.PATH)
            }

    def __getitem__(self, path: str) -> bytes:
        if path not in self._names:
            raise KeyError(path)
        try:
            with zipfile.ZipFile(self._path) as archive:
                return _read(archive, path)
        except DAMAGED as error:
            raise TargetUnusable(f"{self._path}: {path} in it is damaged: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read(path: Path) -> Target:
    """The vLLM in the wheel `path`."""
    if path.suffix != ".whl":
        raise TargetUnusable(f"{path}: neither a folder nor a wheel (.whl)")
    try:
        with zipfile.ZipFile(path) as archive:
            metadata = [
                name
                for name in archive.namelist()
                if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
            ]
            text = _read(archive, metadata[0]).decode(errors="replace") if metadata else ""
        files = Files(path)
    except DAMAGED as error:
        raise TargetUnusable(f"{path}: not a whole wheel: {error}; get it again") from error
    version = metadata_version(text)
    if version is None:
        raise TargetUnusable(f"{path}: not a wheel of vLLM")
    return Target("wheel", str(path), version, files)


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > LARGEST:
        raise zipfile.BadZipFile(f"{name} is larger than any file of vLLM")
    return archive.read(name)
