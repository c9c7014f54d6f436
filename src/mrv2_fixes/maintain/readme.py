"""Renew what the README tells of the results: the matrix, the plot, and the numbers.

    python -m mrv2_fixes.maintain.readme

Read are `results/`, which `make results` renews, and what `make bench` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mrv2_fixes import series
from mrv2_fixes.maintain.results import FOLDER
from mrv2_fixes.report import matrix
from mrv2_fixes.report.matrix import MARKS, Matrix, Proof

ROOT = series.load().root
PAGE = ROOT / "README.md"
BENCHMARKS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- made by `make report` -->\n", "<!-- as far as here -->\n"
LEGEND = {
    "proven": "the fault is there without the patch, and not with it",
    "not proven": "it was run, and came to something else",
    "old": "the patch has changed since",
    "not run": "needed, and not run yet",
    "needed": "needed, and no proof is claimed",
    "upstream": "vLLM has the fix",
}


def table(made: Matrix) -> str:
    """The matrix, a mark for each word, and what the marks in it mean."""
    head = f"| patch | {' | '.join(made.releases)} |\n| --- |{' :-: |' * len(made.releases)}\n"
    rows = "".join(
        f"| `{row.patch.slug}` | {' | '.join(MARKS.get(one.word, '') for one in row.entries)} |\n"
        for row in made.rows
    )
    seen = {one.word for row in made.rows for one in row.entries}
    legend = "; ".join(f"{MARKS[word]} {says}" for word, says in LEGEND.items() if word in seen)
    return f"{head}{rows}\n{legend}; blank: the code does not exist there.\n"


def proven(made: Matrix) -> str:
    """How much of what there is to prove is proven, in a sentence."""
    entries = made.entries(Proof.PROVEN)
    dates = [cell.date[:10] for entry in entries for cell in entry.cells]
    last = f", last on {max(dates)}" if dates else ""
    return (
        f"**{len(entries)} of {len(made.entries())}** pairs of a patch and a release that needs it "
        f"are proven on the real engine{last}."
    )


def draft_step(figures: Mapping[str, Any]) -> str:
    """How a draft step's decode grows with `max_model_len`, in a sentence."""
    release = "0.22.1"
    wanted = {"backend": "TRITON_MLA", "step": "decode of a draft", "unit": "programs"}
    one = next(one for one in figures[release]["curves"] if wanted.items() <= one.items())
    first, last = one["max_model_len"][0], one["max_model_len"][-1]
    without, with_ = one["growth"]["without"], one["growth"]["with"]
    return (
        f"A draft step's decode with Triton MLA launches **{without:,.4g} times** the programs at "
        f"a `max_model_len` of {last:,} that it launches at {first:,}, for one batch; with the "
        f"series {with_:,.4g} times ({release})."
    )


def hybrid_step(figures: Mapping[str, Any]) -> str:
    """What `prepare_attn` of a hybrid model takes with the series, in a sentence."""
    release = "0.24.0"
    ratio = figures[release]["prepare_attn; hybrid state, 0 drafts"]["ratio"]
    return (
        f"`prepare_attn` of a hybrid model without drafts takes **{ratio:.2f} times** as long with "
        f"the series as without ({release})."
    )


NUMBERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "metadata_cost": draft_step,
    "prepare_attn": hybrid_step,
}
"""Name of a benchmark's result to what is told of its figures."""
PLOT = ROOT / "docs" / "plots" / "metadata_cost.svg"


def numbers(made: Matrix) -> Sequence[str]:
    """The most telling ones, a sentence each; nothing of a benchmark that was not run."""
    kept = {name: BENCHMARKS / f"{name}.json" for name in NUMBERS}
    return [
        proven(made),
        *(
            NUMBERS[name](msgspec.json.decode(path.read_bytes())["figures"])
            for name, path in kept.items()
            if path.is_file()
        ),
    ]


def renewed(page: str) -> str:
    """The page with the results as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = matrix.make(series.load(), matrix.read(FOLDER))
    points = "".join(f"- {sentence}\n" for sentence in numbers(made))
    title = "What a step's metadata cost by max_model_len, without the series and with it"
    source = PLOT.relative_to(ROOT).as_posix()
    plot = f'<img src="{source}" alt="{title}" width="480">\n\n' if PLOT.is_file() else ""
    return f"{before}{BEGIN}\n{points}\n{plot}{table(made)}\n{END}{after}"


def write(page: Path, renewed: Callable[[str], str]) -> None:
    """Write the file `page` as `renewed` makes it of what is there, if that is anything else."""
    text = page.read_text()
    if (new := renewed(text)) != text:
        page.write_text(new)


if __name__ == "__main__":
    write(PAGE, renewed)
