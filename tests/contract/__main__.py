"""The survey: what the check says of each scenario on each release, as a table.

python -m tests.contract [RELEASE …] [--patched core|none|all] [--scenario NAME] [--json FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from tests.contract import survey
from tests.contract.outcome import Outcome
from tests.contract.scenarios import SCENARIOS

RELEASES = ("0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.30.0", "0.31.0", "0.32.0")


@click.command()
@click.argument("releases", nargs=-1)
@click.option("--patched", type=click.Choice(["core", "none", "all"]), default="core")
@click.option("--scenario", "names", multiple=True, type=click.Choice(list(SCENARIOS)))
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write all outcomes here.")
def main(
    releases: tuple[str, ...], patched: str, names: tuple[str, ...], file: Path | None
) -> None:
    """Run scenarios on releases, and print what each came to."""
    seen: dict[str, list[Outcome]] = {}
    for release in releases or RELEASES:
        wanted = [name for name in survey.applicable(release) if not names or name in names]
        print(f"{release}, patched: {patched}", flush=True)
        seen[release] = survey.run(
            release, patched, wanted, progress=lambda line: print(line, file=sys.stderr)
        )
        for outcome in seen[release]:
            print("\n".join(_lines(outcome, release)), flush=True)
        for name, scenario in SCENARIOS.items():
            if release not in scenario.boots.releases and (not names or name in names):
                print(f"  {name}: not here: {scenario.boots.why_not}", flush=True)
    if file:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(seen), indent=1))


def _lines(outcome: Outcome, release: str) -> list[str]:
    state = outcome.error or ("wrong" if outcome.wrong else "right")
    right = SCENARIOS[outcome.scenario].right
    if release not in right.releases:
        state += f", which says nothing: {right.why_not}"
    counted = ", ".join(f"{name} {count}" for name, count in outcome.counters.items() if count)
    lines = [f"  {outcome.scenario}: {state} ({outcome.seconds:.0f} s; {counted or '-'})"]
    lines += [f"      {line}" for line in outcome.wrong]
    for one in outcome.findings:
        row = "" if one.row is None else f" row {one.row}"
        lines.append(
            f"    group {one.group} ({one.kind}, {one.layer}) {one.field}{row}: expected "
            f"{one.expected}, found {one.found}; {one.count} times, first in step {one.step}"
        )
    return lines


if __name__ == "__main__":
    main()
