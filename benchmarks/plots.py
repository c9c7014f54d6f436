"""The results as plots: `results/*.json` to `docs/plots/*.svg`.

    python -m benchmarks.plots

The same results give the same bytes. Grounds are transparent and colours of middle brightness, so
that light and dark pages both show them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks import measure

PLOTS = measure.ROOT / "docs" / "plots"
GREY = "#808890"
COLOURS = ("#3987c9", "#d9822b", "#3d9b64", "#c95d5d", "#8f70c4", "#8a7d3c", GREY)
MARKERS = "osD^vPX"
STYLE: Any = {
    "svg.hashsalt": "benchmarks",  # names of what is in the file; else they are random
    "svg.fonttype": "none",  # text as text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "grid.alpha": 0.3,
    **{f"{part}.color": GREY for part in ("text", "xtick", "ytick", "grid")},
    **{f"axes.{part}color": GREY for part in ("edge", "label", "title")},
}
GROWS = 2
"""A curve is drawn when without the series its last value is more than so many times the first."""
Curves = Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]]
"""Name to the values of x and, of one or two sides, those of y; the second is drawn with dashes."""


def bars(axes: Axes, title: str, ratios: Mapping[str, Mapping[str, float]], to: str) -> None:
    """A bar for each name, from `to` to its ratio; a thin line for half of the rounds."""
    names = [*ratios][::-1]
    for row, name in enumerate(names):
        one = ratios[name]
        colour = GREY if name == to else COLOURS["mrv2" in name or "patched" in name]
        axes.barh(row, one["ratio"] - 1, left=1, color=colour, height=0.6)
        axes.hlines(row, one["least"], one["most"], color=GREY, linewidth=1)
        axes.text(max(one["most"], 1), row, f"  {one['ratio']:.3g}", va="center")
    axes.set_xscale("log")
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.margins(x=0.15)
    axes.set_title(f"{title}: times {to}", loc="left")


def lines(axes: Axes, title: str, x: str, y: str, curves: Curves) -> None:
    """Curves on two logarithmic axes."""
    for index, (name, (xs, sides)) in enumerate(curves.items()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        for ys, dash, label in zip(sides, ("-", "--"), (name, None), strict=False):
            axes.plot(xs, ys, dash, label=label, color=colour, marker=marker, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True)
    axes.set_title(title, loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def compared(figures: Mapping[str, Any]) -> Figure:
    """A row of bars for each group of `measure.compared`; other figures have no place in it."""
    groups = {name: of for name, of in figures.items() if _is_compared(of)}
    heights = [len(of) + 1.6 for of in groups.values()]
    figure = Figure(figsize=(7.5, 0.34 * sum(heights)), layout="constrained")
    rows = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, of) in zip(rows, groups.items(), strict=True):
        to = next(one for one, values in of.items() if values["least"] == values["most"] == 1)
        bars(axes, name, of, to)
    return figure


def _is_compared(of: object) -> bool:
    return isinstance(of, dict) and all(
        isinstance(one, dict) and "ratio" in one for one in of.values()
    )


def growth(figures: Mapping[str, Any]) -> Figure:
    """What each command costs by the number of patches, and of files."""
    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    titles = {"patches": "patches of one file", "files": "files of one patch"}
    for axes, (of, title) in zip(figure.subplots(2), titles.items(), strict=True):
        curves = {
            name: ([int(number) for number in one["ratio"]], [[*one["ratio"].values()]])
            for name, one in figures[of].items()
        }
        lines(axes, "", f"number of {title}", "times `git apply` of one", curves)
    return figure


def metadata_cost(figures: Mapping[str, Any]) -> Figure:
    """What a step's metadata cost with the series and, with dashes, without, by `max_model_len`."""
    panels: dict[tuple[str, str], dict[str, tuple[list[float], list[list[float]]]]] = {}
    for release, of in figures.items():
        for one in of["curves"]:
            # The others are level on both sides, and many.
            if one["growth"].get("without", 0) > GROWS:
                first = one["without"][0] or 1
                sides = [[value / first for value in one[side]] for side in ("with", "without")]
                name = f"{one['backend']}, {one['step']} of {one['model']}"
                panel = panels.setdefault((release, one["unit"]), {})
                panel[name] = (one["max_model_len"], sides)
    figure = Figure(figsize=(9, 3.2 * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, ((release, unit), curves) in zip(rows, panels.items(), strict=True):
        lines(axes, f"{unit}, {release}", "max_model_len", "times the first without", curves)
    return figure


DRAWN: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
    "audit": compared,
    "commands": compared,
    "contract": compared,
    "growth": growth,
    "hook": compared,
    "metadata_cost": metadata_cost,
    "prepare_attn": compared,
    "verify": compared,
    "wheel": compared,
}
"""By the name of the result, how its figures are drawn."""


def plot(result: Path) -> bytes:
    """The SVG of a result."""
    with matplotlib.rc_context(STYLE):
        figure = DRAWN[result.stem](json.loads(result.read_text())["figures"])
        written = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator"))  # neither a date nor a version of matplotlib
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return written.getvalue()


def main() -> None:
    """Draw every result that is to be drawn."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    for result in sorted(measure.RESULTS.glob("*.json")):
        if result.stem in DRAWN:
            (PLOTS / f"{result.stem}.svg").write_bytes(plot(result))


if __name__ == "__main__":
    main()
