"""An audit as it is told: a table for people, plain data for machines."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mrv2_fixes.audit import acceptance, audit
from mrv2_fixes.audit.acceptance import Entry, Standing
from mrv2_fixes.audit.finding import Finding, Sure
from mrv2_fixes.targets import Target

COLOURS = {Sure.CERTAIN: "red", Sure.LIKELY: "yellow", Sure.LOOK: None}


@dataclass(frozen=True)
class Report:
    """The findings in a target.

    accepted: finding to the entry that accepts it.
    entries: every entry of the file, and what it comes to.
    """

    target: Target
    findings: Sequence[Finding]
    accepted: dict[Finding, Entry]
    entries: Sequence[tuple[Entry, Standing]]

    @property
    def counting(self) -> list[Finding]:
        """The findings that nobody accepts."""
        return [one for one in self.findings if one not in self.accepted]


def make(target: Target, file: Path | None, today: datetime.date | None = None) -> Report:
    """Audit a target; file: of what is accepted. Raises what reading either of them raises."""
    given = acceptance.read(file) if file else ()
    findings = audit(target.files)
    today = today or datetime.date.today()
    entries = [
        (entry, acceptance.standing(entry, findings, target.version, today)) for entry in given
    ]
    accepted = {
        finding: entry
        for finding in findings
        for entry, standing in reversed(entries)
        if standing is Standing.USED and entry.names(finding)
    }
    return Report(target, findings, accepted, entries)


def print_(report: Report) -> None:
    """For people."""
    count = len(report.counting)
    told = "1 finding" if count == 1 else f"{count or 'no'} findings"
    also = f", {len(report.accepted)} more accepted" if report.accepted else ""
    click.echo(f"{report.target.where} ({report.target.kind}): {told}{also}")
    if report.target.note:
        click.echo(report.target.note)
    for file, of_file in itertools.groupby(report.findings, lambda one: one.file):
        click.echo(file)
        places = itertools.groupby(of_file, lambda one: (one.symbol, one.kind, one.sure))
        for (symbol, kind, sure), found in places:
            lines = list(found)
            degree = click.style(sure.value, fg=COLOURS[sure])
            click.echo(f"  {lines[0].line:>4} {symbol}: {kind.value}, {degree}")
            for one in lines:
                entry = report.accepted.get(one)
                why = f"accepted until {entry.until}: {entry.reason}" if entry else one.why
                click.echo(f"       {one.field}: {why}")
    for entry, standing in report.entries:
        if standing is Standing.EXPIRED:
            click.echo(f"accepted until {entry.until}, and counts again: {entry}")
        elif standing is Standing.UNUSED:
            click.echo(f"accepted, and not found: take it out: {entry}")


def data(report: Report) -> dict[str, Any]:
    """The same for machines."""
    target = report.target
    return {
        "target": {"kind": target.kind, "where": target.where, "version": target.version},
        "note": target.note,
        "findings": [
            {
                "key": one.key,
                "file": one.file,
                "line": one.line,
                "symbol": one.symbol,
                "kind": one.kind.value,
                "field": one.field,
                "sure": one.sure.value,
                "why": one.why,
                "accepted": report.accepted.get(one),
            }
            for one in report.findings
        ],
        "entries": [{"entry": entry, "standing": standing} for entry, standing in report.entries],
    }
