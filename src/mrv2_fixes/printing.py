"""What commands print: tables and diffs for people, plain data for machines."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mrv2_fixes import known
from mrv2_fixes.plan import Plan, State

if TYPE_CHECKING:
    from mrv2_fixes.series import Patch
    from mrv2_fixes.targets import Target
    from mrv2_fixes.verify import Cell

COLOURS = {
    State.APPLIED: "green",
    State.UPSTREAM: "green",
    State.NOT_AFFECTED: None,
    State.NEEDED: "yellow",
    State.DRIFTED: "red",
    State.TAMPERED: "red",
}


def print_status(plan: Plan, target: Target) -> None:
    """What a vLLM has and needs, for people."""
    click.echo(f"{target.where} ({target.kind}): {plan.base(target.version)}")
    if target.note:
        click.echo(target.note)
    width = max(len(step.patch.slug) for step in plan.steps)
    for step in plan.steps:
        state = click.style(step.state.value, fg=COLOURS[step.state])
        click.echo(f"  {step.patch.slug:<{width}}  {state}")
    for slug, note in plan.notes().items():
        click.echo(f"{slug}: {note}")


def print_cells(cells: Sequence[Cell], patches: Sequence[Patch], releases: Sequence[str]) -> None:
    """The proofs as a table, what stands in the way of those that are none, and what needs none."""
    width = max((len(patch.slug) for patch in patches), default=0)
    for cell in cells:
        results = f"{cell.without.value} without, {cell.with_.value} with"
        colour = None if cell.proven else "red"
        click.secho(
            f"{cell.release}  {cell.patch:<{width}}  {results}  ({cell.seconds:.0f} s)", fg=colour
        )
    for release in map(known.number, releases or dict.fromkeys(cell.release for cell in cells)):
        for patch in patches:
            if not patch.affects(release):
                state = known.releases()[release].states.get(patch.slug, "not affected")
                click.echo(f"{release} {patch.slug}: {state}, nothing to prove")
    for cell in cells:
        lifted = sorted({name for side in cell.sides for name in side.lifted})
        if lifted:
            refusal = f"with the refusal of {', '.join(lifted)} at configuration lifted"
            click.echo(f"{cell.release} {cell.patch}: ran {refusal}")
        for side in () if cell.proven else cell.sides:
            click.echo(f"{cell.release} {cell.patch}: {side.result.value}: {side.detail}")
    click.echo(f"{sum(cell.proven for cell in cells)} of {len(cells)} proven")


def data(plan: Plan, target: Target) -> dict[str, Any]:
    """The same for machines."""
    return {
        "target": {"kind": target.kind, "where": target.where, "version": target.version},
        "release": plan.release,
        "base": plan.base(target.version),
        "note": target.note,
        "patches": [
            {
                "patch": step.patch.slug,
                "state": step.state.value,
                "note": plan.notes().get(step.patch.slug, ""),
            }
            for step in plan.steps
        ],
    }


def diff(plan: Plan, context: int = 3) -> str:
    """The plan as one unified diff, line ends kept."""
    return "".join(
        unified(path, plan.before.get(path), plan.after[path], context)
        for path in sorted(plan.after)
    )


def unified(path: str, before: bytes | None, after: bytes, context: int) -> str:
    """The unified diff of one file, as git prints it; before: None for a file that is new."""
    ours = "/dev/null" if before is None else f"a/{path}"
    lines = difflib.unified_diff(_lines(before or b""), _lines(after), ours, f"b/{path}", n=context)
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    created = f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
    return created + text if before is None else text


def _lines(content: bytes) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", content.decode("utf-8", "surrogateescape"))


def explanation(patch: Patch) -> str:
    """The header of a patch, for people; what is empty is left out."""
    header = patch.header
    same = "not from upstream" if header.applied_upstream else ""
    rows = [
        ("origin", header.origin),
        ("affects", header.affects),
        ("upstream", f"since {header.applied_upstream}" if header.applied_upstream else "not yet"),
        ("requires", ", ".join(header.requires) or "nothing"),
        ("changes", "\n".join(header.touches)),
        ("adds", "\n".join(header.adds)),
        ("removal", header.removal),
        ("differs", " ".join(header.differs_from_upstream.split()) or same),
        ("proof", "\n".join(f"{one.test} {one.releases}".strip() for one in header.reproducers)),
    ]
    width = max(len(name) for name, _ in rows) + 2
    parts = [f"{patch.slug}\n{header.title}\n", header.description.strip() + "\n"]
    for name, value in (row for row in rows if row[1]):
        lines = [line for part in value.splitlines() for line in _wrapped(part, 88 - width)]
        parts.append(f"{name:<{width}}" + f"\n{'':<{width}}".join(lines))
    return "\n".join(parts)


def _wrapped(text: str, width: int) -> list[str]:
    # What is copied from here, such as the id of a test, stays in one piece.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
