"""The matrix of patches and releases: the state of each, and what the kept runs prove of it.

States are those of `known.json`. A proof is a cell of `verify.json` that speaks of the patch as it
stands; nothing else counts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from mrv2_fixes import known, verify
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.series import Patch, Series


class Proof(str, enum.Enum):
    """What the kept runs say of a patch on a release; of several reproducers, the worst."""

    # the worst first
    NOT_PROVEN = "not proven"
    OLD = "old"  # the patch is another than the one that was run
    NOT_RUN = "not run"
    PROVEN = "proven"


MARKS = {
    "proven": "✓",
    "not proven": "✗",
    "old": "↻",
    "not run": "○",
    "needed": "!",
    "upstream": "↑",
}
"""Word of an entry to its sign; the others have none."""


class Entry(msgspec.Struct, frozen=True):
    """One patch on one release.

    state: of the release as published (see `mrv2_fixes.plan.State`), or "unknown".
    proof: None where the header declares nothing to prove.
    cells: what was run of it, whatever it came to.
    """

    patch: Patch
    release: str
    state: str
    proof: Proof | None
    cells: tuple[verify.Cell, ...]

    @property
    def word(self) -> str:
        """What stands in the matrix."""
        return self.proof.value if self.proof else self.state


class Row(msgspec.Struct, frozen=True):
    """One patch, on each release of the matrix."""

    patch: Patch
    entries: tuple[Entry, ...]


class Matrix(msgspec.Struct, frozen=True):
    """Every patch on every release.

    releases: their numbers, oldest first.
    strays: cells of patches or releases that are not among them.
    """

    releases: tuple[str, ...]
    rows: tuple[Row, ...]
    strays: tuple[verify.Cell, ...]

    def entries(self, *proofs: Proof) -> list[Entry]:
        """Those with one of `proofs`; without any, those with something to prove."""
        wanted = proofs or tuple(Proof)
        return [one for row in self.rows for one in row.entries if one.proof in wanted]


def read(results: Path) -> list[verify.Cell]:
    """The cells that `mrv2 verify` kept in the folder `results`.

    Raises TargetUnusable when there is no such file, or it is of another form.
    """
    path = results / "verify.json"
    if not path.exists():
        way = "`mrv2 verify` makes it, --results names the folder that has one"
        raise TargetUnusable(f"{path}: no such file: {way}")
    return verify.kept(results)


def make(series: Series, cells: Iterable[verify.Cell]) -> Matrix:
    """The matrix, from the first release on that a patch affects to the newest."""
    numbers = list(known.releases())
    affected = [any(patch.affects(number) for patch in series.patches) for number in numbers]
    releases = tuple(numbers[affected.index(True) :]) if any(affected) else ()
    left = {(cell.patch, cell.release, cell.reproducer): cell for cell in cells}
    rows = []
    for patch in series.patches:
        digest = verify.digest(patch, series)
        entries = []
        for release in releases:
            keys = [key for key in left if key[:2] == (patch.slug, release)]
            entries.append(_entry(patch, release, [left.pop(key) for key in keys], digest))
        rows.append(Row(patch, tuple(entries)))
    return Matrix(releases, tuple(rows), tuple(left.values()))


def _entry(patch: Patch, release: str, cells: Sequence[verify.Cell], digest: str) -> Entry:
    state = known.releases()[release].states.get(patch.slug, "unknown")
    by_test = {cell.reproducer: cell for cell in cells}
    expected = patch.reproducers(release) if patch.affects(release) else ()
    seen = {_proof(by_test, reproducer.test, digest) for reproducer in expected}
    return Entry(
        patch, release, state, next((one for one in Proof if one in seen), None), tuple(cells)
    )


def _proof(cells: Mapping[str, verify.Cell], test: str, digest: str) -> Proof:
    if test not in cells:
        return Proof.NOT_RUN
    if cells[test].digest != digest:
        return Proof.OLD
    return Proof.PROVEN if cells[test].proven else Proof.NOT_PROVEN
