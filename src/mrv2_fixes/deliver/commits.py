"""One commit per needed patch, in vLLM's commit style, written into a git repository.

They go in by `git fast-import`: no work tree or index is touched, and the same plan, base and
identity give the same commit ids.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrv2_fixes import git
from mrv2_fixes.plan import Step
from mrv2_fixes.series import Patch

WIDTH = 88
IDENT = re.compile(r"(?P<name>.*) <(?P<email>.*)> (?P<date>\d+ [+-]\d{4})")


@dataclass(frozen=True)
class Identity:
    """Who commits, in git's own words.

    name, email: of git's settings; empty when git has none.
    date: seconds since the epoch and zone, of GIT_AUTHOR_DATE; None when it is not set.
    """

    name: str
    email: str
    date: str | None

    @property
    def known(self) -> bool:
        """Whether git says who commits, so that a commit can be signed off."""
        return bool(self.name and self.email)

    def ident(self, otherwise: str) -> str:
        """The line of a commit, dated `otherwise` unless git's environment has a date."""
        name, email = (self.name, self.email) if self.known else ("unknown", "unknown")
        return f"{name} <{email}> {self.date or otherwise}"


def identity(folder: Path) -> Identity:
    """Who git says commits in `folder`. Raises GitError when there is no git."""
    git.run("--version", folder=folder)
    try:
        # user.useConfigOnly keeps git from making an address up from the machine's name.
        answer = git.run("-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT", folder=folder)
    except git.GitError:
        return Identity("", "", None)
    found = IDENT.match(answer.decode(errors="replace").strip())
    if found is None:
        return Identity("", "", None)
    date = found["date"] if os.environ.get("GIT_AUTHOR_DATE") else None
    return Identity(found["name"], found["email"], date)


def message(patch: Patch, who: Identity) -> str:
    """The commit message: title, description, origin, and the sign-off when git says whose."""
    parts = [patch.header.title, patch.header.description.strip()]
    if patch.header.differs_from_upstream:
        differs = " ".join(patch.header.differs_from_upstream.split())
        parts.append(textwrap.fill(f"Differs from upstream: {differs}", WIDTH))
    trailers = [f"Origin: {patch.header.origin}"]
    if who.known:
        trailers.append(f"Signed-off-by: {who.name} <{who.email}>")
    return "\n\n".join([*parts, "\n".join(trailers)]) + "\n"


def added(patch: Patch, root: Path) -> dict[str, bytes]:
    """Path to content of the files that a patch adds to vLLM, read below the series' `root`."""
    return {path: (root / path).read_bytes() for path in patch.header.adds}


def write(
    repository: Path, branch: str, base: str, steps: Sequence[Step], root: Path, who: Identity
) -> None:
    """Write one commit per step onto the commit `base`, as the new branch `branch`.

    root: the folder of the series, which holds what the patches add. Raises GitError.
    """
    stream = b"".join(_stream(branch, base, steps, root, who))
    git.run("fast-import", "--quiet", "--date-format=raw", folder=repository, stdin=stream)


def write_base(repository: Path, branch: str, files: Mapping[str, bytes], text: str) -> None:
    """Write a first commit that holds `files`, as the branch `branch`; always the same commit."""
    lines = _commit(branch, "", Identity("vLLM", "", None).ident("0 +0000"), text, files)
    git.run("fast-import", "--quiet", "--date-format=raw", folder=repository, stdin=b"".join(lines))


def _stream(
    branch: str, base: str, steps: Sequence[Step], root: Path, who: Identity
) -> Iterator[bytes]:
    parent = base
    there: dict[str, bytes] = {}
    for step in steps:
        files = {**added(step.patch, root), **step.files}
        files = {path: text for path, text in files.items() if there.get(path) != text}
        there.update(files)
        ident = who.ident(f"{int(step.patch.header.date.timestamp())} +0000")
        yield from _commit(branch, parent, ident, message(step.patch, who), files)
        parent = ""  # the branch itself, from here on


def _commit(
    branch: str, parent: str, ident: str, text: str, files: Mapping[str, bytes]
) -> Iterator[bytes]:
    yield f"commit refs/heads/{branch}\n".encode()
    yield f"author {ident}\ncommitter {ident}\n".encode()
    yield _data(text.encode())
    if parent:
        yield f"from {parent}\n".encode()
    for path, content in sorted(files.items()):
        yield f"M 100644 inline {path}\n".encode()
        yield _data(content)
    yield b"\n"


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
