"""The command `mrv2`.

Exit status: 0 all in order, 1 something needed or failed, 2 wrong call, 3 drifted or tampered,
4 target unusable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from mrv2_fixes import errors, plan, report, series, targets

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Fixes for vLLM's Model Runner V2. TARGET: nothing (the vLLM of this Python), a folder, "
    "a git clone, a wheel, or a release number.",
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

# typer reads these at run time; `str | None` fails there on Python 3.10.
TargetArgument = Annotated[Optional[str], typer.Argument(metavar="[TARGET]", show_default=False)]  # noqa: UP045
PatchOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--patch", metavar="SLUG", help="Only this patch and what it requires."),
]
SeriesOption = Annotated[str, typer.Option("--series", help="core, or all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def progress(line: str) -> None:
    """One line about what takes long, where it does not mix with the answer."""
    err.print(f"mrv2: {line}", style="dim", highlight=False)


def _print_json(data: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")


def _exit_status(made: plan.Plan) -> int:
    if made.drifted():
        return errors.DRIFTED
    return errors.NEEDED if any(s.state is plan.State.NEEDED for s in made.steps) else 0


def _selected(patch: list[str] | None, group: str) -> tuple[series.Patch, ...]:
    return series.load().select(patch or (), group)


@app.command()
def status(
    target: TargetArgument = None,
    patch: PatchOption = None,
    group: SeriesOption = "core",
    json: JsonOption = False,
) -> None:
    """What this vLLM has and needs."""
    selected = _selected(patch, group)
    opened = targets.open_target(target, progress)
    made = plan.states(selected, opened.files, version=opened.version, record=opened.record())
    if json:
        _print_json(report.data(made, opened))
        raise typer.Exit(_exit_status(made))
    out.print(f"{opened.where} ({opened.kind}): {report.base(made, opened)}", highlight=False)
    if opened.note:
        out.print(opened.note, highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for step in made.steps:
        table.add_row(step.patch.slug, f"[{report.STYLES[step.state]}]{step.state.value}")
    out.print(table)
    for slug, detail in report.details(made):
        out.print(f"{slug}: {detail}", highlight=False, markup=False)
    raise typer.Exit(_exit_status(made))


@app.command()
def explain(slug: str, json: JsonOption = False) -> None:
    """The header of a patch, for people."""
    patches = {patch.slug: patch for patch in series.load().patches}
    if slug not in patches:
        raise errors.WrongCall(f"no patch {slug!r}: the series has {', '.join(patches)}")
    if json:
        _print_json({"patch": slug, **msgspec.to_builtins(patches[slug].header)})
    else:
        out.print(report.explanation(patches[slug]), highlight=False, markup=False)


@app.command()
def diff(
    target: TargetArgument = None, patch: PatchOption = None, group: SeriesOption = "core"
) -> None:
    """The change as a unified diff."""
    opened = targets.open_target(target, progress)
    made = plan.make(
        _selected(patch, group), opened.files, version=opened.version, record=opened.record()
    )
    _refuse_drift(made, opened.where)
    sys.stdout.buffer.write(report.diff(made).encode("utf-8", "surrogateescape"))
    raise typer.Exit(_exit_status(made))


def _refuse_drift(made: plan.Plan, where: str) -> None:
    drifted = made.drifted()
    if drifted:
        lines = "; ".join(f"{step.patch.slug}: {step.detail}" for step in drifted)
        raise errors.Drifted(f"{where}: {lines}")


@app.command()
def build(
    target: Annotated[str, typer.Argument(metavar="RELEASE|TARGET")],
    patch: PatchOption = None,
    group: SeriesOption = "core",
    output: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("dist"),
) -> None:
    """The commits to hand on: .patch files, git bundle, checksums, in dist/RELEASE/."""
    from mrv2_fixes.deliver import artifacts

    opened = targets.open_target(target, progress)
    made = plan.make(
        _selected(patch, group), opened.files, version=opened.version, record=opened.record()
    )
    _refuse_drift(made, opened.where)
    built = artifacts.build(made, opened, output, progress)
    for path in built.files:
        out.print(str(path), highlight=False, soft_wrap=True)
    if built.note:
        err.print(f"mrv2: {built.note}", highlight=False)


@app.command()
def verify(
    releases: Annotated[Optional[list[str]], typer.Argument(metavar="[RELEASE …]")] = None,  # noqa: UP045
    patch: PatchOption = None,
    group: SeriesOption = "core",
    json: JsonOption = False,
    workers: Annotated[int, typer.Option(help="Engines at a time.")] = os.cpu_count() or 1,
    output: Annotated[Path, typer.Option(help="Folder for verify.json.")] = Path("dist"),
) -> None:
    """Run each patch's reproducers without and with it, on the real engine."""
    from mrv2_fixes import verify as proof

    wanted = proof.jobs(_selected(patch, group), releases or ())
    cells = proof.run(wanted, series.load(), progress, workers)
    path = proof.write(cells, output)
    if json:
        _print_json(cells)
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("release", "patch", "without", "with", "seconds"):
            table.add_column(column, justify="right" if column == "seconds" else "left")
        for cell in cells:
            table.add_row(
                cell.release,
                cell.patch,
                cell.without.value,
                cell.with_.value,
                f"{cell.seconds:.0f}",
                style="" if cell.proven else "red",
            )
        out.print(table)
        for cell in cells:
            lifted = [name for side in cell.sides for name in side.lifted]
            if lifted:
                note = f"{cell.release} {cell.patch}: ran with the refusal of {lifted[0]} lifted"
                out.print(note, highlight=False)
            if not cell.proven:
                for side in cell.sides:
                    line = f"{cell.release} {cell.patch}: {side.result.value}: {side.detail}"
                    out.print(line, highlight=False, markup=False)
        out.print(f"{sum(c.proven for c in cells)} of {len(cells)} proven; {path}", highlight=False)
    raise typer.Exit(0 if cells and all(cell.proven for cell in cells) else errors.NEEDED)


def main() -> None:
    """Run the command; an error is one line and its exit status."""
    try:
        app()
    except errors.Mrv2Error as error:
        err.print(f"mrv2: {error}", highlight=False, markup=False)
        sys.exit(error.exit_status)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        err.print(f"mrv2: {where}{error.strerror or error}", highlight=False, markup=False)
        sys.exit(errors.UNUSABLE)
