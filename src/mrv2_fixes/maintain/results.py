"""Take out of `results/verify.json` what this repository does not hold.

    python -m mrv2_fixes.maintain.results

That is lines of vLLM, and folders of the machine. Of a traceback the places stay, the exception,
and what our own tests say there. Of a side that
neither fails as declared nor passes, one line stays.
"""

from __future__ import annotations

import re

import msgspec

from mrv2_fixes import series, verify
from mrv2_fixes.report import matrix

FOLDER = series.load().root / "results"
PLACE = re.compile(r"\S+:\d+: in ")
OURS = "tests/v1/"
ABSOLUTE = re.compile(r"(?:file://|(?<![\w./]))/(?!/)(?:[\w.+@~-]+/+)+")
# What a run that ended otherwise leaves is whatever was printed, log and source of vLLM with it.
EXPECTED = verify.Result.FAILS, verify.Result.PASSES


def reduced(output: str) -> str:
    """What was printed, without the source that stands below places in others' files."""
    kept, ours = [], False
    for line in output.splitlines():
        if PLACE.match(line):
            ours = line.startswith(OURS)
        if ours or not line.startswith(" "):
            kept.append(line)
    return "\n".join(kept)


def cleaned(cell: verify.Cell) -> verify.Cell:
    """The same cell, as it may stand in the repository."""
    without, with_ = (
        msgspec.structs.replace(
            side,
            detail=ABSOLUTE.sub("", side.detail),
            output=ABSOLUTE.sub("", reduced(side.output)) if side.result in EXPECTED else "",
        )
        for side in cell.sides
    )
    return msgspec.structs.replace(cell, sides=(without, with_))


def main() -> None:
    """Write the file."""
    verify.write([cleaned(cell) for cell in matrix.read(FOLDER)], FOLDER)


if __name__ == "__main__":
    main()
