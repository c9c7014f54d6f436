"""Renew the tables of docs/benchmarks.md from what `make bench` keeps.

python -m mrv2_fixes.maintain.figures
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mrv2_fixes.maintain.readme import BENCHMARKS, ROOT, write

PAGE = ROOT / "docs" / "benchmarks.md"
Figures = Mapping[str, Any]
GROWS = 1.5
"""A curve stands in the table when on either side its last value is so many times the first."""
COMPARED = {
    "commands": ("look", "put in", "take out"),
    "hook": ("core", "all"),
    "wheel": ("wheel", "by hand"),
    "audit": ("audit",),
    "contract": ("llama", "granite"),
    "verify": ("verify",),
}
"""Name of a benchmark's result to the comparisons in it."""


def growing(figures: Figures) -> str:
    """What grows with `max_model_len`, and by how much, without and with the series."""
    rows, flat = [], set()
    for release, kept in figures.items():
        for one in kept["curves"]:
            grown = one["growth"]
            if max(grown.values()) < GROWS:
                flat.add(one["backend"])
                continue
            scale, unit = (1e6, "µs") if one["unit"] == "seconds" else (1, one["unit"])
            slopes = {side: per * scale for side, per in one["slope"].items()}
            numbers = (
                f"{of[side]:,.4g}" if side in of else "fails"
                for of in (slopes, grown)
                for side in ("without", "with")
            )
            rows.append((release, one["backend"], one["step"], unit, *numbers))
    head = ("release", "backend", "step", "unit", "without, per 1024", "with, per 1024",
            "without, first to last", "with, first to last")  # fmt: skip
    level = ", ".join(sorted(flat - {row[1] for row in rows}))
    return f"{table(head, rows)}\nLevel on both sides: {level}.\n"


def calls(figures: Figures) -> str:
    """With to without the series, of each call, by release."""
    releases = [name for name in figures if name != "calls"]
    names = dict.fromkeys(name for release in releases for name in figures[release])
    ratios = {
        name: [figures[release].get(name, {}).get("ratio") for release in releases]
        for name in names
        if name != "without"
    }
    rows = [
        (name, *("not touched" if ratio is None else f"{ratio:.3f}" for ratio in of))
        for name, of in ratios.items()
    ]
    return table(("call", *releases), rows)


def compared(name: str, figures: Figures) -> str:
    """Each action's time in that of the one that it is compared with, and the middle half."""
    rows = [
        (comparison, action, *(f"{one[key]:.3g}" for key in ("ratio", "least", "most")))
        for comparison in COMPARED[name]
        for action, one in figures[comparison].items()
    ]
    return table((name, "", "ratio", "from", "to"), rows)


def grown(figures: Figures) -> str:
    """The same by the number of patches, and of files."""
    parts = []
    for what, actions in figures.items():
        numbers = next(iter(actions.values()))["ratio"]
        rows = [
            (name, *(f"{one['ratio'][number]:.3g}" for number in numbers))
            for name, one in actions.items()
        ]
        parts.append(table((what, *numbers), rows))
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; numbers stand to the right."""
    rule = ["---"] + ["--:" if name else "---" for name in head[1:]]
    lines = [head, rule, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def renewed(page: str) -> str:
    """The page with the results as they are now."""
    made = {"metadata_cost": growing, "prepare_attn": calls, "growth": grown}
    for path in sorted(BENCHMARKS.glob("*.json")):
        name = path.stem
        begin, end = f"<!-- {name}: made by `make report` -->\n", f"<!-- {name}: as far as here -->"
        before, mark, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        if not mark:
            continue
        result = msgspec.json.decode(path.read_bytes())
        figures = result["figures"]
        text = made[name](figures) if name in made else compared(name, figures)
        load = ", ".join(f"{value:g}" for value in result["load"])
        source = f"\n{result['date'][:10]}; load of the machine {load}.\n"
        page = f"{before}{begin}\n{text}{source}\n{end}{after}"
    return page


if __name__ == "__main__":
    write(PAGE, renewed)
