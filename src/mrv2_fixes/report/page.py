"""The page: one HTML file with everything in it, which needs no script and loads nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import click
import jinja2
import msgspec

from mrv2_fixes import known, program_version, verify
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.report.matrix import MARKS, Matrix, Proof

# Control characters that a browser would not show, without tab and line feed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Whatever a plot's text was drawn in, on the page it is that of the page's text.
TEXT = (
    b"<style>text { fill: #1b1f24 !important }"
    b"@media (prefers-color-scheme: dark) { text { fill: #e4e8ec !important } }</style></svg>"
)


class Machine(msgspec.Struct, frozen=True):
    """What a benchmark ran on. cpu: the processor's name. memory: in GiB."""

    cpu: str
    cores: int
    memory: float


class Benchmark(msgspec.Struct, frozen=True):
    """What a benchmark's result says of its circumstances.

    date: ISO 8601. versions: of what took part. load: averages of 1, 5 and 15 minutes.
    """

    date: str
    machine: Machine
    versions: dict[str, str]
    load: tuple[float, ...] = ()


class Plot(msgspec.Struct, frozen=True):
    """A plot, and the result that it shows, where that is known.

    uri: the SVG as a data URI. title: what it shows.
    """

    uri: str
    title: str
    benchmark: Benchmark | None


def plots(folder: Path, results: Path | None) -> list[Plot]:
    """Every SVG of a folder, by name. The result of NAME.svg is NAME.json of the folder `results`.

    Raises TargetUnusable for a file that is no SVG, and for a result of another form.
    """
    return [
        _plot(path, results / f"{path.stem}.json" if results else None)
        for path in sorted(folder.glob("*.svg"))
    ]


def _plot(path: Path, result: Path | None) -> Plot:
    content = path.read_bytes()
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise TargetUnusable(f"{path}: no SVG ({error}): `make plots` makes it anew") from error
    benchmark = _benchmark(result) if result and result.is_file() else None
    title = root.findtext(".//{http://www.w3.org/2000/svg}title") or re.sub("[-_]", " ", path.stem)
    shown = base64.b64encode(TEXT.join(content.rsplit(b"</svg>", 1))).decode()
    return Plot(f"data:image/svg+xml;base64,{shown}", title, benchmark)


def _benchmark(result: Path) -> Benchmark:
    try:
        return msgspec.json.decode(result.read_bytes(), type=Benchmark)
    except msgspec.DecodeError as error:
        way = "`make bench` makes it anew"
        raise TargetUnusable(f"{result}: not what a benchmark keeps ({error}): {way}") from error


def environments(cells: Sequence[verify.Cell]) -> dict[str, dict[str, str]]:
    """Release to the versions of what took part in its runs, of the last of them."""
    ordered = sorted(cells, key=lambda cell: cell.date)
    return {
        number: dict(side.versions)
        for number in known.releases()
        for cell in ordered
        if cell.release == number
        for side in cell.sides
        if side.versions
    }


def printable(text: str) -> str:
    """What a process printed, without the colours of a terminal and without control characters."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", click.unstyle(text.replace("\r\n", "\n")))


def render(matrix: Matrix, shown: Sequence[Plot] = ()) -> str:
    """The page. The same matrix and plots give the same text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mrv2_fixes.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    cells = [cell for row in matrix.rows for entry in row.entries for cell in entry.cells]
    versions = environments(cells)
    page = environment.get_template("page.html.jinja").render(
        matrix=matrix,
        plots=shown,
        Proof=Proof,
        marks=MARKS,
        environments=versions,
        packages=list(dict.fromkeys(name for one in versions.values() for name in one)),
        dates=sorted(cell.date for cell in cells),
        version=program_version(),
    )
    return page.rstrip("\n") + "\n"
