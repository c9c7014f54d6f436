"""Whether a commit may have the tag of a release: its numbers are new, and agree."""

from __future__ import annotations

from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from mrv2_fixes import git
from mrv2_fixes.errors import WrongCall

PROJECT, SERIES = "pyproject.toml", "patches/series.toml"


class Project(msgspec.Struct, frozen=True):
    """version: of the package."""

    version: str


class Pyproject(msgspec.Struct, frozen=True):
    """What is read of pyproject.toml."""

    project: Project


class Order(msgspec.Struct, frozen=True):
    """What is read of series.toml; 0 is before there was a revision."""

    revision: int = 0


def check(root: Path, tag: str) -> str:
    """What the release is, in one line, when the commit that `root` is at may have `tag`.

    The tag is `v` and the package's version, which is newer than that of every earlier tag; the
    revision of the series, which a patched wheel has in its version, is higher than at each. No
    other commit has the tag already.
    Raises WrongCall when it may not, GitError when git does not answer.
    """
    version, revision = _version(root, "HEAD"), _revision(root, "HEAD")
    if tag != f"v{version}":
        raise WrongCall(f"{tag}: {PROJECT} says version {version}: the tag has to be v{version}")
    for earlier in git.run("tag", "--list", "v*", folder=root).decode().split():
        if earlier == tag and _commit(root, earlier) != _commit(root, "HEAD"):
            raise WrongCall(f"{tag}: another commit has that tag: raise the version in {PROJECT}")
        if earlier == tag or not _is_version(earlier):
            continue
        if Version(earlier) >= Version(tag):
            raise WrongCall(f"{PROJECT}: version {version}, and {earlier} is there: raise it")
        there = _revision(root, earlier)
        if there >= revision:
            fault = f"revision {revision}, and {earlier} has {there}"
            raise WrongCall(f"{SERIES}: {fault}: raise it, or two wheels have one version")
    return f"{tag}: version {version}, revision {revision} of the series"


def _version(root: Path, revision: str) -> str:
    text = git.run("show", f"{revision}:{PROJECT}", folder=root)
    return msgspec.toml.decode(text, type=Pyproject).project.version


def _revision(root: Path, revision: str) -> int:
    text = git.run("show", f"{revision}:{SERIES}", folder=root)
    return msgspec.toml.decode(text, type=Order).revision


def _commit(root: Path, revision: str) -> str:
    return git.run("rev-parse", f"{revision}^{{commit}}", folder=root).decode().strip()


def _is_version(tag: str) -> bool:
    try:
        Version(tag)
    except InvalidVersion:
        return False
    return True
