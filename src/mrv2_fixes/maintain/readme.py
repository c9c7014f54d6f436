"""Renew what the README tells of the results: the matrix, the plot, and the numbers.

    python -m mrv2_fixes.maintain.readme

Read are the files in `results/`, which `make results` and `make bench` renew.
"""

from __future__ import annotations

from collections.abc import Sequence

from mrv2_fixes import series
from mrv2_fixes.maintain.results import FOLDER
from mrv2_fixes.report import matrix
from mrv2_fixes.report.matrix import MARKS, Matrix, Proof

PAGE = series.load().root / "README.md"
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


def numbers(made: Matrix) -> Sequence[str]:
    """The most telling ones, a sentence each."""
    proven, wanted = made.entries(Proof.PROVEN), made.entries()
    cells = [cell for entry in proven for cell in entry.cells]
    releases = len({entry.release for entry in proven})
    last = max((cell.date[:10] for cell in cells), default="never")
    return (
        f"**{len(proven)} of {len(wanted)}** pairs of a patch and a release that needs it are "
        f"proven on the real engine, on {releases} releases by {len(cells)} tests that fail "
        f"without and pass with it (last run {last}).",
    )


def renewed(page: str) -> str:
    """The page with the results as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = matrix.make(series.load(), matrix.read(FOLDER))
    points = "".join(f"- {sentence}\n" for sentence in numbers(made))
    return f"{before}{BEGIN}\n{points}\n{table(made)}\n{END}{after}"


def main() -> None:
    """Write the page, if it says anything else."""
    page = PAGE.read_text()
    if (new := renewed(page)) != page:
        PAGE.write_text(new)


if __name__ == "__main__":
    main()
