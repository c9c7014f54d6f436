"""What the published releases hold: hashes of the files that an edit looks at, and the states.

The data stand in `known.json`; `make known` renews them from the wheels on the package index. With
them a base is recognised by its files, whatever its version says, and what the edits make of a
release is had without LibCST.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from functools import cache
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from mrv2_fixes.errors import TargetUnusable


class Outcome(msgspec.Struct, frozen=True):
    """What patches make of one file of a release.

    patches: slugs of those that change it, in order.
    splices: where it differs from the release, from the top down: number of the first line (from
    0), how many lines go, and the text that is there instead.
    """

    patches: tuple[str, ...]
    splices: tuple[tuple[int, int, str], ...]

    def of(self, published: bytes) -> bytes:
        """The file that comes of the release's own."""
        lines = published.splitlines(keepends=True)
        for first, count, text in reversed(self.splices):
            lines[first : first + count] = [text.encode()]
        return b"".join(lines)


class Release(msgspec.Struct, frozen=True):
    """One published release.

    files: path to SHA-256, of each file that an edit looks at, where it exists.
    states: slug to state (see `mrv2_fixes.plan.State`) of the release as published.
    outcomes: path to SHA-256 of what patches make of the file, to how they do.
    """

    files: dict[str, str]
    states: dict[str, str]
    outcomes: dict[str, dict[str, Outcome]] = {}

    def changing(self, path: str) -> set[str]:
        """The slugs that change a file."""
        return {slug for outcome in self.outcomes[path].values() for slug in outcome.patches}

    def outcome(self, path: str, slugs: Set[str]) -> tuple[str, Outcome] | None:
        """What just `slugs` make of a file, and its SHA-256."""
        for sha256, outcome in self.outcomes[path].items():
            if set(outcome.patches) == slugs:
                return sha256, outcome
        return None


class Match(msgspec.Struct, frozen=True):
    """A release that a base is, but for patches of this series.

    release: its number.
    applied: slugs that each changed file has in.
    """

    release: str
    applied: Mapping[str, tuple[str, ...]]


PATH = Path(__file__).with_name("known.json")


@cache
def releases() -> dict[str, Release]:
    """Release number to what it holds, oldest first."""
    return msgspec.json.decode(PATH.read_bytes(), type=dict[str, Release])


def number(text: str) -> str:
    """The known release that `text` means, such as 0.24.0 for 0.24. Raises TargetUnusable."""
    for release in releases():
        if text == release or (_is_version(text) and Version(text) == Version(release)):
            return release
    raise TargetUnusable(f"{text}: no such release; the newest known is {list(releases())[-1]}")


def base_version(version: str | None) -> str:
    """The release that a version is a build of, as 0.22.0 for 0.22.0+rocm722; empty for none."""
    return Version(version).base_version if version and _is_version(version) else ""


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def paths(known: Mapping[str, Release]) -> list[str]:
    """Every file that is looked at in any release."""
    return sorted({path for release in known.values() for path in release.files})


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def match(
    files: Mapping[str, bytes], version: str | None, known: Mapping[str, Release]
) -> Match | None:
    """The release whose files these are.

    Of several with equal files it is the one that `version` names, else the newest.
    """
    digests = {path: digest(files[path]) for path in paths(known) if path in files}
    matches = [found for found in _matches(digests, known) if digests]
    for found in matches:
        if found.release == base_version(version):
            return found
    return matches[-1] if matches else None


def _matches(digests: Mapping[str, str], known: Mapping[str, Release]) -> Iterable[Match]:
    for number, release in known.items():
        if set(digests) != set(release.files):
            continue
        changed = [path for path in digests if digests[path] != release.files[path]]
        outcomes = {path: release.outcomes.get(path, {}).get(digests[path]) for path in changed}
        if None not in outcomes.values():
            yield Match(number, {path: one.patches for path, one in outcomes.items() if one})
