"""A git clone of vLLM, read at its HEAD; the work tree only to say that it differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mrv2_fixes import git, known
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets.target import Target


class Files(Mapping[str, bytes]):
    """The files of `vllm/` in one commit, by path; read when asked for."""

    def __init__(self, root: Path, commit: str) -> None:
        self._root = root
        listing = git.run("ls-tree", "-r", "-z", "--full-tree", commit, "vllm/", folder=root)
        self._blobs = {}
        for entry in filter(None, listing.decode(errors="surrogateescape").split("\0")):
            information, path = entry.split("\t", 1)
            self._blobs[path] = information.split()[2]

    def __getitem__(self, path: str) -> bytes:
        return git.run("cat-file", "blob", self._blobs[path], folder=self._root)

    def __contains__(self, path: object) -> bool:
        return path in self._blobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)


def is_clone(path: Path) -> bool:
    """Whether `path` is the top of a git repository, bare or not."""
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def read(path: Path) -> Target:
    """The vLLM at HEAD of the clone `path`."""
    try:
        commit = git.run("rev-parse", "--verify", "HEAD^{commit}", folder=path).decode().strip()
    except git.GitError as error:
        if "not installed" in str(error):
            raise
        raise TargetUnusable(f"{path}: no commit to read: {error}") from error
    files = Files(path, commit)
    note = f"read at HEAD, {commit[:12]}"
    if (path / ".git").exists() and any(_differs(path, files, name) for name in _looked_at()):
        note += "; the work tree has changes in vllm/ that this does not see"
    return Target("clone", str(path), _version(path), files, note)


def _looked_at() -> list[str]:
    return known.paths(known.releases())


def _differs(path: Path, files: Files, name: str) -> bool:
    """Whether a file of the work tree is another than in the commit.

    `git status` would tell of all files, but may run what the clone's settings name.
    """
    try:
        there = (path / name).read_bytes()
    except OSError:
        return name in files
    return name not in files or files[name] != there


def _version(path: Path) -> str | None:
    """The release tag that HEAD is or descends from; None without one."""
    try:
        tag = git.run("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", folder=path)
    except git.GitError:
        return None
    return tag.decode().strip().removeprefix("v")
