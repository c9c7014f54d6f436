"""The command `mrv2`.

Exit status: 0 all in order, 1 something needed or failed, 2 wrong call, 3 drifted or tampered,
4 target unusable.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from mrv2_fixes import DISTRIBUTION, errors, known, plan, printing, series, targets

if TYPE_CHECKING:
    from mrv2_fixes.deliver import artifacts, in_place

# One more than there are cores: an engine also waits, for files and for its processes.
WORKERS = (os.cpu_count() or 1) + 1
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])


def progress(line: str) -> None:
    """One line about what takes long, where it does not mix with the answer."""
    click.secho(f"mrv2: {line}", err=True, dim=True)


def selecting(command: Command) -> Command:
    """The options that say which patches are meant."""
    command = click.option(
        "--patch", "slugs", metavar="SLUG", multiple=True, help="This patch and what it requires."
    )(command)
    groups = click.Choice(series.GROUPS)
    return click.option("--series", "group", type=groups, default="core", show_default=True)(
        command
    )


def as_json(command: Command) -> Command:
    """The option for machines."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
def cli() -> None:
    """Fixes for vLLM's Model Runner V2, as a patch series.

    TARGET: nothing (the vLLM of this Python), a folder, a git clone, a wheel or a release number.

    Exit status: 0 all in order, 1 something needed or not proven, 2 wrong call, 3 drifted or
    tampered, 4 target unusable.
    """


@cli.command()
@click.argument("target", required=False)
@selecting
@as_json
def status(target: str | None, slugs: tuple[str, ...], group: str, as_json: bool) -> int:
    """What this vLLM has and needs.

    TARGET: nothing (the vLLM of this Python), a folder, a git clone, a wheel or a release number.
    """
    patches = series.load().select(slugs, group)
    opened = targets.open_target(target, progress)
    chosen = patches if slugs else series.load().patches
    made = plan.quick(chosen, opened.files, version=opened.version, record=opened.record())
    made, others = made.split({patch.slug for patch in patches})
    server = None
    if opened.kind == "installed":
        from mrv2_fixes.plugin import forecast

        server = forecast.forecast(opened, os.environ)
    if as_json:
        _print_json({**printing.data(made, opened), "opt_in": others, "server": server})
    else:
        printing.print_status(made, opened)
        if others:
            click.echo(f"needed too, opt-in (--series all): {', '.join(others)}")
        if server:
            click.echo(f"a server started here {server.says}")
    return _exit_status(made, server.served if server else ())


@cli.command()
@click.argument("slug")
@as_json
def explain(slug: str, as_json: bool) -> int:
    """What a patch is for: its header."""
    patch = series.load().patch(slug)
    if as_json:
        _print_json({"patch": slug, **msgspec.to_builtins(patch.header)})
    else:
        click.echo(printing.explanation(patch))
    return 0


@cli.command()
@click.argument("target", required=False)
@selecting
def diff(target: str | None, slugs: tuple[str, ...], group: str) -> int:
    """The change as a unified diff.

    TARGET: nothing (the vLLM of this Python), a folder, a git clone, a wheel or a release number.
    """
    made, _ = _deliverable(target, slugs, group)
    click.echo(printing.diff(made).encode("utf-8", "surrogateescape"), nl=False)
    return _exit_status(made)


@cli.command()
@click.argument("target", required=False)
@selecting
@as_json
def apply(target: str | None, slugs: tuple[str, ...], group: str, as_json: bool) -> int:
    """Change an installed vLLM, or a folder, all of it or nothing.

    TARGET: nothing (the vLLM of this Python), or a folder such as a site-packages.
    """
    from mrv2_fixes.deliver import in_place

    done = in_place.apply(target, series.load().select(slugs, group), progress)
    _print_done(done, as_json)
    return _exit_status(done.plan)


@cli.command()
@click.argument("target", required=False)
@click.option("--patch", "slugs", metavar="SLUG", multiple=True, help="This patch alone.")
@click.option("--force", is_flag=True, help="Also where a file was changed since.")
@as_json
def revert(target: str | None, slugs: tuple[str, ...], force: bool, as_json: bool) -> int:
    """Take out what apply put in; every file is as it was.

    TARGET: nothing (the vLLM of this Python), or a folder such as a site-packages.
    """
    from mrv2_fixes.deliver import in_place

    _print_done(in_place.revert(target, slugs, force, progress), as_json)
    return 0


@cli.command()
@click.argument("target", required=False)
@selecting
@click.option("--output", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
@click.option(
    "--pull-request",
    metavar="SLUG",
    help="What to submit to vLLM, in dist/pull-request-SLUG/; TARGET: the newest release, or one.",
)
def build(
    target: str | None,
    slugs: tuple[str, ...],
    group: str,
    output: Path,
    pull_request: str | None,
) -> int:
    """Patch files, git bundle, patched wheel and checksums, in dist/RELEASE/.

    TARGET: a release number, a wheel, a folder or a git clone. A wheel is made of the first two.
    """
    from mrv2_fixes.deliver import artifacts

    if pull_request is not None:
        if slugs or group != "core":
            raise click.UsageError("--pull-request takes its patch alone: no --patch, no --series")
        built = _pull_request(target, pull_request, output)
    elif target is None:
        raise click.UsageError("Missing argument 'TARGET'.")
    else:
        made, opened = _deliverable(target, slugs, group)
        built = artifacts.build(made, opened, output, progress)
    for path in built.files:
        click.echo(path)
    if built.note:
        progress(built.note)
    return 0


@cli.command()
@click.argument("clone", type=click.Path(path_type=Path))
@selecting
@click.option("--base", metavar="REVISION", default="HEAD", show_default=True)
@click.option("--name", help="Of the branch.  [default: mrv2-fixes-RELEASE]")
def branch(clone: Path, slugs: tuple[str, ...], group: str, base: str, name: str | None) -> int:
    """The commits, on a new branch of a clone; its work tree and index stay as they are."""
    from mrv2_fixes.deliver import branch as deliver
    from mrv2_fixes.deliver import commits
    from mrv2_fixes.targets import clone as target

    opened = target.read(clone, base)
    made = _fitting(opened, slugs, group, status=base == "HEAD")
    if not made.needed():
        more = "" if slugs or group == "all" else "; --series all takes those that are opt-in too"
        progress(f"{opened.where}: no branch to write: {commits.states(made)}{more}")
        return 0
    written = deliver.write(made, opened, name)
    click.echo(f"{written.name}, on {opened.commit[:12]} ({made.base(opened.version)})")
    for commit, subject in written.commits:
        click.echo(f"  {commit[:12]} {subject}")
    for note in written.notes:
        progress(note)
    span = f"{opened.commit[:12]}..{written.name}"
    click.echo(f"to read them: {shlex.join(['git', '-C', str(clone), 'log', '--patch', span])}")
    return 0


@cli.command()
@click.argument("releases", metavar="[RELEASE]...", nargs=-1)
@selecting
@click.option("--workers", type=click.IntRange(1), default=WORKERS, help="Engines at a time.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
@as_json
def verify(
    releases: tuple[str, ...],
    slugs: tuple[str, ...],
    group: str,
    workers: int,
    output: Path,
    as_json: bool,
) -> int:
    """Run the reproducers without and with each patch, on the real engine."""
    from mrv2_fixes import verify as proof

    patches = series.load().select(slugs, group)
    wanted = proof.jobs(patches, releases)
    # Now, and not when all has run: whether results can be kept there.
    proof.kept(output)
    if wanted:
        output.mkdir(parents=True, exist_ok=True)
    cells = proof.run(wanted, series.load(), progress, workers) if wanted else []
    path = proof.write(cells, output) if cells else None
    if as_json:
        _print_json(cells)
    else:
        printing.print_cells(cells, patches, releases)
        if path:
            click.echo(f"kept in {path}")
    return 0 if all(cell.proven for cell in cells) else errors.NEEDED


@cli.command()
@click.argument("target", required=False)
@click.option(
    "--accept",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML: findings that somebody has looked at.",
)
@as_json
def audit(target: str | None, accept: Path | None, as_json: bool) -> int:
    """The same kind of fault anywhere else in this vLLM.

    TARGET: nothing (the vLLM of this Python), a folder, a git clone, a wheel or a release number.
    """
    from mrv2_fixes.audit import report

    made = report.make(targets.open_target(target, progress), accept)
    if as_json:
        _print_json(report.data(made))
    else:
        report.print_(made)
    return errors.NEEDED if made.counting else 0


@cli.command()
@click.option("--results", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
@click.option("--plots", metavar="FOLDER", type=FOLDER, help="SVG files to show.")
@click.option("--benchmarks", metavar="FOLDER", type=FOLDER, help="Their results: NAME.json.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("dist/report.html"),
    show_default=True,
)
def report(results: Path, plots: Path | None, benchmarks: Path | None, output: Path) -> int:
    """What `mrv2 verify` has kept, as one page that needs nothing else.

    Exit status 1 when something that was run is not proven; the page is written all the same.
    """
    from mrv2_fixes.report import matrix, page

    made = matrix.make(series.load(), matrix.read(results))
    text = page.render(made, page.plots(plots, benchmarks) if plots else ())
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8", newline="")
    unproven = made.entries(matrix.Proof.NOT_PROVEN, matrix.Proof.OLD)
    for entry in unproven:
        click.echo(f"{entry.release} {entry.patch.slug}: {entry.word}")
    proven = made.entries(matrix.Proof.PROVEN)
    click.echo(f"{output}: {len(proven)} of {len(made.entries())} proven")
    return errors.NEEDED if unproven else 0


def _pull_request(target: str | None, slug: str, output: Path) -> artifacts.Built:
    from mrv2_fixes.deliver import pull_request

    patch = pull_request.submittable(slug)
    newest = [*known.releases()][-1]
    made, opened = _deliverable(newest if target is None else target, (slug,), "core")
    return pull_request.build(patch, made, opened, output, progress)


def _deliverable(
    target: str | None, slugs: tuple[str, ...], group: str
) -> tuple[plan.Plan, targets.Target]:
    """The plan for what `target` names. Raises Drifted when a patch does not fit it."""
    opened = targets.open_target(target, progress)
    return _fitting(opened, slugs, group), opened


def _fitting(
    opened: targets.Target, slugs: tuple[str, ...], group: str, status: bool = True
) -> plan.Plan:
    """The plan for a target. Raises Drifted when a patch does not fit it.

    status: whether `mrv2 status` reads the same of it.
    """
    patches = series.load().select(slugs, group)
    made = plan.make(patches, opened.files, version=opened.version, record=opened.record())
    made.check(opened.where, status)
    for note in (opened.note, *(f"{slug}: {note}" for slug, note in made.notes().items())):
        if note:
            progress(note)
    return made


def _print_done(done: in_place.Done, as_json: bool) -> None:
    if as_json:
        _print_json({**printing.data(done.plan, done.target), "changed": done.changed})
        return
    printing.print_status(done.plan, done.target)
    for path in done.changed:
        click.echo(f"changed {path}")
    if not done.changed:
        click.echo("nothing to do")


def _print_json(data: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))


def _exit_status(made: plan.Plan, served: Collection[str] = ()) -> int:
    """served: slugs that are needed and come in when a server starts."""
    if made.drifted():
        return errors.DRIFTED
    needed = {step.patch.slug for step in made.needed()}
    return errors.NEEDED if needed - set(served) else 0


def main(command: click.Command = cli) -> None:
    """Run a command; an error is one line and its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mrv2: stopped"))
    try:
        sys.exit(command.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(errors.WRONG_CALL)
    except click.Abort:
        sys.exit("mrv2: stopped")
    except errors.Mrv2Error as error:
        click.echo(f"mrv2: {error}", err=True)
        sys.exit(error.exit_status)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"mrv2: {where}{error.strerror or error}", err=True)
        sys.exit(errors.UNUSABLE)
