"""What `make release` and the targets beside it call.

    python -m mrv2_fixes.maintain.release releases | vllm RELEASE | package | check | tag TAG

The exit status is that of `mrv2`.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from mrv2_fixes import cli, series
from mrv2_fixes.deliver.artifacts import SUMS
from mrv2_fixes.maintain.release import assets, provenance, tag


@click.group()
def commands() -> None:
    """What people download of a release of this project."""


@commands.command()
def releases() -> None:
    """The vLLM releases that the series touches, as a JSON list."""
    click.echo(msgspec.json.encode(assets.releases()))


@commands.command()
@click.argument("release")
@click.option("--output", type=click.Path(path_type=Path), default=assets.FOLDER)
def vllm(release: str, output: Path) -> None:
    """What there is for one vLLM release."""
    for path in assets.of_vllm(release, output, series.root(), cli.progress):
        click.echo(path)


@commands.command()
@click.option("--output", type=click.Path(path_type=Path), default=assets.FOLDER)
def package(output: Path) -> None:
    """This package."""
    for path in assets.of_package(output, series.root()):
        click.echo(path)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path), default=assets.FOLDER)
def check(folder: Path) -> None:
    """Compare what was made, or downloaded, with what its provenance says."""
    for resource in provenance.check(folder, besides=[SUMS]):
        click.echo(f"{resource.name}: OK")


@commands.command(name="tag")
@click.argument("name", metavar="TAG")
def may_have(name: str) -> None:
    """Whether this commit may have the tag of a release."""
    click.echo(tag.check(series.root(), name))


if __name__ == "__main__":
    cli.main(commands)
