"""Findings that somebody has looked at and accepts for a time: a TOML file."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from mrv2_fixes.audit.finding import Finding, Kind
from mrv2_fixes.errors import WrongCall


class Standing(str, Enum):
    """What an entry comes to."""

    USED = "used"
    EXPIRED = "expired"
    UNUSED = "unused"
    ELSEWHERE = "for other releases"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[accept]]``.

    symbol, kind: as the finding has them; file and field too, where they are given.
    reason: why it is accepted.
    until: the last day on which it is.
    releases: a version specifier; empty for every vLLM.
    """

    symbol: str
    kind: Kind
    reason: str
    until: datetime.date
    file: str = ""
    field: str = ""
    releases: str = ""

    def __post_init__(self) -> None:
        try:
            SpecifierSet(self.releases)
        except InvalidSpecifier as error:
            raise ValueError(str(error)) from error
        if not self.reason.strip():
            raise ValueError("an entry without a reason")

    def names(self, finding: Finding) -> bool:
        """Whether it is about a finding."""
        return (
            (self.symbol, self.kind) == (finding.symbol, finding.kind)
            and self.file in ("", finding.file)
            and self.field in ("", finding.field)
        )

    def is_for(self, version: str | None) -> bool:
        """Whether it is about a vLLM of that version; of one that has none only if of every one."""
        if not self.releases:
            return True
        try:
            return SpecifierSet(self.releases).contains(Version(version or ""), prereleases=True)
        except InvalidVersion:
            return False

    def __str__(self) -> str:
        return f"{self.symbol}: {self.kind.value}{f': {self.field}' if self.field else ''}"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accept: tuple[Entry, ...]


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of the file. Raises WrongCall when it cannot be read as one."""
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise WrongCall(f"{path}: {error.strerror}: name a TOML file of [[accept]]") from error


def parse(text: bytes | str, name: str) -> tuple[Entry, ...]:
    """The entries in a text. Raises WrongCall, which begins with `name`."""
    try:
        return msgspec.toml.decode(text, type=_File).accept
    except msgspec.DecodeError as error:
        raise WrongCall(f"{name}: {error}: see mrv2 audit in the README") from error


def standing(
    entry: Entry, findings: Sequence[Finding], version: str | None, today: datetime.date
) -> Standing:
    """What an entry comes to with the findings of a vLLM."""
    if not entry.is_for(version):
        return Standing.ELSEWHERE
    if today > entry.until:
        return Standing.EXPIRED
    return Standing.USED if any(map(entry.names, findings)) else Standing.UNUSED
