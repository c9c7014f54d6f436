"""A folder that holds `vllm/`: an unpacked source, a site-packages, or the package itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mrv2_fixes import record
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets.target import MARK, Target, distribution


class Files(Mapping[str, bytes]):
    """The Python files of the package below `root`, and our record; read when asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, path: str) -> bytes:
        if not self.__contains__(path):
            raise KeyError(path)
        try:
            return (self._root / path).read_bytes()
        except OSError as error:
            raise TargetUnusable(f"{self._root / path}: {error.strerror}") from error

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and path.startswith("vllm/") and (self._root / path).is_file()

    def __iter__(self) -> Iterator[str]:
        for path in sorted((self._root / "vllm").rglob("*.py")):
            if path.is_file():
                yield path.relative_to(self._root).as_posix()
        if record.PATH in self:
            yield record.PATH

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read(path: Path) -> Target:
    """The vLLM in `path`, or of which `path` is the package folder."""
    root = root_of(path)
    return Target("folder", str(path), _version(root), Files(root), _elsewhere(root))


def root_of(path: Path) -> Path:
    """The folder that holds `vllm/`; `path` is that folder, the package, or a link to either."""
    given = Path(os.path.abspath(path))
    if given.name == "vllm" and (given.parent / MARK).is_file() and not (given / MARK).is_file():
        return given.parent.resolve()
    return given.resolve()


def _elsewhere(root: Path) -> str:
    package = root / "vllm"
    return f"vllm/ is a link: its files are in {package.resolve()}" if package.is_symlink() else ""


def distributions(root: Path) -> set[tuple[str, str]]:
    """Name and version of each distribution of vLLM beside the package."""
    metadata = root.glob("vllm*.dist-info/METADATA")
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in metadata)
    return {found for text in texts if (found := distribution(text))}


def _version(root: Path) -> str | None:
    """Of what is installed beside the package; None when nothing is, or of several versions."""
    versions = {version for _, version in distributions(root)}
    return versions.pop() if len(versions) == 1 else None
