"""One commit per needed patch, in vLLM's commit style, written into a git repository.

They go in by `git fast-import`: no work tree or index is touched, and the same plan, base and
identity give the same commit ids.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrv2_fixes import git, known
from mrv2_fixes.plan import Plan, Step
from mrv2_fixes.series import Patch
from mrv2_fixes.targets import Target

WIDTH = 88
IDENT = re.compile(r"(?P<name>.*) <(?P<email>.*)> (?P<date>\d+ [+-]\d{4})")
UNSIGNED = (
    "git does not say who commits: the commits are by unknown and not signed off; "
    "set user.name and user.email and make them again before you send them to others"
)


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
    trailers = [f"Origin: {patch.header.origin}"] if patch.header.origin else []
    if who.known:
        trailers.append(f"Signed-off-by: {who.name} <{who.email}>")
    return "\n\n".join(filter(None, [*parts, "\n".join(trailers)])) + "\n"


def base_name(plan: Plan, target: Target) -> str:
    """The release that a base is, else a name of its own: the target's, and what its files are."""
    if plan.release:
        return plan.release
    content = b"\0".join(text for _, text in sorted(plan.before.items()))
    stem = Path(target.where).resolve().name
    # What git takes in a branch: no dots in a row, and none in front.
    stem = re.sub(r"[^A-Za-z0-9._-]+|^[.-]+|\.(?=\.)", "", stem) or "vllm"
    return f"{stem}-{known.digest(content)[:8]}"


def branch_name(base: str) -> str:
    """What the branch of the commits on a base of that name is called."""
    return f"mrv2-fixes-{base}"


def states(plan: Plan) -> str:
    """Why a plan has no commits, in one line."""
    return ", ".join(f"{step.patch.slug} {step.state.value}" for step in plan.steps)


def write(
    repository: Path,
    branch: str,
    base: str,
    steps: Sequence[Step],
    who: Identity,
    modes: Mapping[str, str],
) -> None:
    """Write one commit per step onto the commit `base`, as the new branch `branch`.

    modes: path to git's mode of each file that the base has as another than 100644.
    Raises GitError; the branch is written last, when every commit is whole, or not at all.
    """
    stream: list[bytes] = []
    parent = base
    there: dict[str, bytes] = {}
    for step in steps:
        files = {**step.patch.added(), **step.files}
        files = {path: text for path, text in files.items() if there.get(path) != text}
        there.update(files)
        ident = who.ident(f"{int(step.patch.header.date.timestamp())} +0000")
        stream += _commit(branch, parent, ident, message(step.patch, who), files, modes)
        parent = ""  # the branch itself, from here on
    _import(repository, stream)


def write_base(repository: Path, branch: str, files: Mapping[str, bytes], text: str) -> None:
    """Write a first commit that holds `files`, as the branch `branch`; always the same commit."""
    ident = Identity("vLLM", "", None).ident("0 +0000")
    _import(repository, _commit(branch, "", ident, text, files, {}))


def _import(repository: Path, stream: Iterable[bytes]) -> None:
    # --done: a stream that ends early, as when this is killed, is no whole one.
    options = ("--quiet", "--done", "--date-format=raw")
    git.run("fast-import", *options, folder=repository, stdin=b"".join([*stream, b"done\n"]))


def _commit(
    branch: str,
    parent: str,
    ident: str,
    text: str,
    files: Mapping[str, bytes],
    modes: Mapping[str, str],
) -> Iterator[bytes]:
    yield f"commit refs/heads/{branch}\n".encode()
    yield f"author {ident}\ncommitter {ident}\n".encode()
    yield _data(text.encode())
    if parent:
        yield f"from {parent}\n".encode()
    for path, content in sorted(files.items()):
        yield f"M {modes.get(path, '100644')} inline {path}\n".encode()
        yield _data(content)
    yield b"\n"


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
