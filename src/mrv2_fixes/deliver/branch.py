"""The commits of a plan on a new branch of a clone; nothing else of the clone changes.

`git fast-import` writes the branch last, and only when all commits are whole: a run that fails or
is killed leaves no branch, at most objects that git clears away in its own time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mrv2_fixes import git
from mrv2_fixes.deliver import commits
from mrv2_fixes.errors import Drifted, WrongCall
from mrv2_fixes.plan import Plan, Step
from mrv2_fixes.targets import clone


@dataclass(frozen=True)
class Branch:
    """A branch as written.

    name: as `git branch` gives it, without `refs/heads/`.
    commits: id and subject of each, oldest first.
    notes: one line each that a reader must know.
    """

    name: str
    commits: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def write(plan: Plan, target: clone.Clone, name: str | None) -> Branch:
    """Write one commit per needed patch of `plan` onto the commit that was read.

    name: of the branch; None for the one that `mrv2 build` would give it.
    Raises WrongCall when there is such a branch or there cannot be one, Drifted when a file to add
    is there with other content, GitError when git fails.
    """
    default = commits.branch_name(commits.base_name(plan, target))
    name = default if name is None else name
    _check(target, name, default)
    steps = plan.needed()
    check_added(target, steps)
    paths = {*plan.after, *(path for step in steps for path in step.patch.header.adds)}
    there = clone.Files(target.path, target.commit, *paths)
    who = commits.identity(target.path)
    modes = {path: there.mode(path) for path in there}
    commits.write(target.path, name, target.commit, steps, who, modes)
    written = git.run(
        *("rev-list", "--reverse", f"{target.commit}..refs/heads/{name}"), folder=target.path
    )
    ids = written.decode().split()
    subjects = [step.patch.header.title for step in steps]
    return Branch(name, tuple(zip(ids, subjects, strict=True)), tuple(_notes(target, who)))


def check_added(target: clone.Clone, steps: Sequence[Step]) -> None:
    """Raise Drifted when a file that the commits of `steps` add is there with other content."""
    added = {path: text for step in steps for path, text in step.patch.added().items()}
    there = clone.Files(target.path, target.commit, *added)
    taken = [path for path in added if path in there and not there.holds(path, added[path])]
    if taken:
        raise Drifted(
            f"{target.where}: {', '.join(taken)}: another file of that name is in "
            f"{target.commit[:12]}, and the series adds its own: rename it, or name another base"
        )


def _check(target: clone.Clone, name: str, default: str) -> None:
    """Raise WrongCall unless a branch of that name can be made.

    default: the name of the one that an earlier run made, and that can go.
    """
    try:
        git.run("check-ref-format", f"refs/heads/{name}", folder=target.path)
        git.run("check-ref-format", "--branch", name, folder=target.path)
    except git.GitError as error:
        raise WrongCall(f"{name!r}: git takes no branch of that name: give another") from error
    found = _in_the_way(target, name)
    if found == name:
        delete = shlex.join(["git", "-C", str(target.path), "branch", "-D", name])
        raise WrongCall(
            f"{target.where}: there is a branch {name}: give another --name"
            + (f", or delete it: {delete}" if name == default else "")
        )
    if found:
        raise WrongCall(
            f"{target.where}: there is a branch {found}, and git keeps no branch {name} beside it: "
            "give another --name"
        )


def _in_the_way(target: clone.Clone, name: str) -> str:
    """The branch of that name, else one below it or above it; empty when there is none.

    To git a branch is a file below `refs/heads/`, so none can be a folder of others.
    """
    # With one part of a name git gives the branch of that name and all below it.
    top = f"refs/heads/{name.partition('/')[0]}"
    listed = git.run("for-each-ref", "--format=%(refname)", top, folder=target.path)
    for ref in listed.decode(errors="surrogateescape").splitlines():
        found = ref.removeprefix("refs/heads/")
        if f"{found}/".startswith(f"{name}/") or f"{name}/".startswith(f"{found}/"):
            return found
    return ""


def _notes(target: clone.Clone, who: commits.Identity) -> Iterator[str]:
    if not who.known:
        yield commits.UNSIGNED
    if target.version is None and clone.is_shallow(target.path):
        yield (
            f"{target.where}: a shallow clone, with no tag that says which release this is; "
            "to have it: git fetch --unshallow --tags"
        )
