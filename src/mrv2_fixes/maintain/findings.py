"""Renew what `docs/attention-metadata.md` tells of the audit: findings, and their releases.

    python -m mrv2_fixes.maintain.findings

Read are the files of the V2 runner, of each published release from 0.21.0 on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby

from packaging.version import Version

from mrv2_fixes import known, series
from mrv2_fixes.audit import audit
from mrv2_fixes.audit.finding import Finding, Sure
from mrv2_fixes.audit.source import RUNNER
from mrv2_fixes.maintain import sources
from mrv2_fixes.targets import folder

PAGE = series.load().root / "docs" / "attention-metadata.md"
BEGIN, END = "<!-- made by `make findings` -->\n", "<!-- as far as here -->\n"
# The first whose runner this project speaks of.
FIRST = Version("0.21.0")
HEAD = (
    "| releases | where | field | what is wrong | how sure | who is hurt |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)


def releases() -> list[str]:
    """Those that are audited, oldest first."""
    return [number for number in known.releases() if Version(number) >= FIRST]


def table(findings: Mapping[str, Sequence[Finding]]) -> str:
    """A row for each finding, the surest first. findings: of each release, oldest first."""
    having: dict[tuple[str, Sure], dict[str, Finding]] = {}
    for release, found in findings.items():
        for one in found:
            having.setdefault((one.key, one.sure), {})[release] = one
    ordered = sorted(having, key=lambda row: (row[1].rank, row[0]))
    return HEAD + "".join(_row(having[row], list(findings)) for row in ordered)


def _row(found: Mapping[str, Finding], audited: Sequence[str]) -> str:
    one = list(found.values())[-1]
    where = f"`{one.symbol}`, `{one.file.removeprefix(RUNNER)}`"
    cells = spans(found, audited), where, f"`{one.field}`", one.kind.value, one.sure.value, one.why
    return f"| {' | '.join(cells)} |\n"


def spans(some: Mapping[str, object], audited: Sequence[str]) -> str:
    """Releases in words: those that follow each other as their first and last."""
    runs = [list(run) for has, run in groupby(audited, lambda one: one in some) if has]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def renewed(page: str) -> str:
    """The page with the findings as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    found = {
        number: audit(folder.read(sources.folder(number, _say)).files) for number in releases()
    }
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    """Write the page."""
    PAGE.write_text(renewed(PAGE.read_text()))


if __name__ == "__main__":
    main()
