"""A git clone of vLLM, read at one commit; the work tree only to say that it differs."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mrv2_fixes import git
from mrv2_fixes.errors import TargetUnusable, WrongCall
from mrv2_fixes.targets.target import Target


class Files(Mapping[str, bytes]):
    """The files below `within` in one commit, by path; read when asked for."""

    def __init__(self, root: Path, commit: str, *within: str) -> None:
        self._root = root
        listing = git.run("ls-tree", "-r", "-z", "--full-tree", commit, *within, folder=root)
        self._entries = {}
        for entry in filter(None, listing.decode(errors="surrogateescape").split("\0")):
            information, path = entry.split("\t", 1)
            mode, _, blob = information.split()
            self._entries[path] = mode, blob
        self._read: dict[str, bytes] = {}

    def __getitem__(self, path: str) -> bytes:
        if path not in self._read:
            self._entries[path]  # raises KeyError
            # Those beside it come along: to start git takes longer than to read them.
            self._read |= self._contents(name for name in self._entries if _kin(name) == _kin(path))
        if path not in self._read:
            raise git.GitError(f"{self._root}: {path}: its content is not in the clone: fetch it")
        return self._read[path]

    def _contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Each path with what it has, as far as that is in the clone; by one run of git."""
        wanted = {path: self._entries[path][1] for path in paths}
        request = "".join(f"{blob}\n" for blob in wanted.values()).encode()
        answer = io.BytesIO(git.run("cat-file", "--batch", folder=self._root, stdin=request))
        for path in wanted:
            _, kind, *size = answer.readline().split()
            if size:
                content = answer.read(int(size[0]) + 1)[:-1]
                if kind == b"blob":
                    yield path, content

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def mode(self, path: str) -> str:
        """Git's mode of a file, such as 100755 for one that can be run."""
        return self._entries[path][0]

    def holds(self, path: str, content: bytes | None) -> bool:
        """Whether a file is there with this content; told by its id, without reading it."""
        if content is None or path not in self:
            return False
        blob = self._entries[path][1]
        algorithm = "sha1" if len(blob) == 40 else "sha256"
        digest = hashlib.new(algorithm, b"blob %d\0" % len(content), usedforsecurity=False)
        digest.update(content)
        return digest.hexdigest() == blob


def _kin(path: str) -> tuple[str, str]:
    """What the files of one kind in one folder have alike."""
    return path.rpartition("/")[0], path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Clone(Target):
    """The vLLM of one commit.

    path: the top of the clone.
    commit: its id.
    """

    path: Path
    commit: str


def is_clone(path: Path) -> bool:
    """Whether `path` is the top of a git repository, bare or not."""
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def commit(path: Path, revision: str = "HEAD") -> str:
    """The id of the commit that `revision` names in the clone `path`.

    Raises TargetUnusable when there is no clone or it has no commit yet, WrongCall when another
    revision than HEAD names none.
    """
    if not is_clone(path):
        raise TargetUnusable(f"{path}: {_instead(path)}")
    try:
        # Without the ceiling, git would go on above a folder whose .git is no repository.
        ceiling = {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}
        git.run("rev-parse", "--git-dir", folder=path, env=ceiling)
    except git.GitError as error:
        if isinstance(error, git.GitMissing):
            raise
        raise TargetUnusable(f"{path}: not a git clone that can be read: {error}") from error
    try:
        named = ("--end-of-options", f"{revision}^{{commit}}")
        return git.run("rev-parse", "--verify", *named, folder=path).decode().split()[-1]
    except git.GitError as error:
        if revision == "HEAD":
            raise TargetUnusable(f"{path}: no commit to read: {error}") from error
        raise WrongCall(
            f"{path}: no commit {revision!r} there: fetch it, or name another"
        ) from error


def _instead(path: Path) -> str:
    """Why a path is no clone, and what to name in its place."""
    if not path.is_dir():
        return "no such folder: name a git clone of vLLM"
    try:
        top = git.run("rev-parse", "--show-toplevel", folder=path).decode().rstrip("\n")
    except git.GitError:
        return "not a git clone; `mrv2 diff` and `mrv2 build` take any vLLM"
    return f"a folder inside the clone {top}: name that"


def read(path: Path, revision: str = "HEAD") -> Clone:
    """The vLLM in the clone `path`, as committed. Raises what `commit` raises."""
    base = commit(path, revision)
    files = Files(path, base, "vllm/")
    note = f"read at {revision}, {base[:12]}"
    if revision == "HEAD" and _has_changes(path, base):
        note += "; the work tree has changes that this does not see"
    version = _version(path, base)
    return Clone("clone", str(path), version, files, note, path=path, commit=base)


def _has_changes(path: Path, base: str) -> bool:
    """Whether anything in the index or the work tree is not as in the commit at HEAD.

    `git status` would tell, but may run what the clone's settings name: here git compares times
    and sizes alone, and what it takes for changed is compared by content.
    """
    index = git.run("rev-parse", "--git-path", "index", folder=path).decode().rstrip("\n")
    if not (path / index).exists():
        return False  # bare, or never checked out
    options = ("--name-only", "-z", "--ignore-submodules=all")
    if git.run("diff-index", "--cached", *options, base, folder=path):
        return True
    names = git.run("diff-files", *options, folder=path).decode(errors="surrogateescape")
    if not names:
        return False
    files = Files(path, base)
    return not all(files.holds(name, _content(path / name)) for name in names.split("\0")[:-1])


def _content(path: Path) -> bytes | None:
    """What git would keep of a file or symbolic link; None when it cannot be read."""
    try:
        return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    except OSError:
        return None


def is_shallow(path: Path) -> bool:
    """Whether history is cut off, so that a tag may be out of sight."""
    answer = git.run("rev-parse", "--is-shallow-repository", folder=path)
    return answer.strip() == b"true"


def _version(path: Path, base: str) -> str | None:
    """The release tag that a commit is or descends from; None without one."""
    options = ("--tags", "--abbrev=0", "--match", "v[0-9]*")
    try:
        tag = git.run("describe", *options, base, folder=path)
    except git.GitError:
        return None
    return tag.decode().strip().removeprefix("v")
