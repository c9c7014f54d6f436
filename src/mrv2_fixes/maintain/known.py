"""Renew `known.json` from the official wheels of every published release that has the V2 runner.

    python -m mrv2_fixes.maintain.known [RELEASE …]

Named releases are read from their wheels; without names, all of them.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations

import msgspec
from packaging.version import Version

from mrv2_fixes import known, plan, series
from mrv2_fixes.maintain import sources
from mrv2_fixes.targets.folder import Files


def describe(files: Mapping[str, bytes], paths: list[str]) -> known.Release:
    """One release's entry, over `paths`."""
    patches = series.load().patches
    states = {step.patch.slug: step.state.value for step in _steps(patches, files)}
    outcomes: dict[str, dict[str, known.Outcome]] = {}
    for chosen in _choices(series.load()):
        steps = _steps(chosen, files)
        needed = [step for step in steps if step.state is plan.State.NEEDED]
        for path, text in {k: v for step in needed for k, v in step.files.items()}.items():
            if path not in files:
                continue  # what is added is the same on every base
            slugs = tuple(step.patch.slug for step in needed if path in step.files)
            outcome = known.Outcome(slugs, splices(files[path], text))
            outcomes.setdefault(path, {})[known.digest(text)] = outcome
    hashes = {path: known.digest(files[path]) for path in paths if path in files}
    return known.Release(hashes, states, outcomes)


def _steps(patches: tuple[series.Patch, ...], files: Mapping[str, bytes]) -> tuple[plan.Step, ...]:
    return plan.make(patches, files, releases={}).steps


def splices(published: bytes, text: bytes) -> tuple[tuple[int, int, str], ...]:
    """Where a file differs from the published one; see `known.Outcome`."""
    before, after = published.splitlines(keepends=True), text.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return tuple(
        (first, last - first, b"".join(after[start:end]).decode())
        for tag, first, last, start, end in matcher.get_opcodes()
        if tag != "equal"
    )


def _choices(of: series.Series) -> Iterator[tuple[series.Patch, ...]]:
    """The choices whose outcomes are recorded, each with what it requires; others are planned anew.

    Every one of the core, each patch that joins it, alone and beside the core, and all.
    """
    core = [patch.slug for patch in of.core]
    chosen = [of.select(some) for n in range(len(core)) for some in combinations(core, n + 1)]
    for patch in of.stable:
        chosen += [of.select([patch.slug]), of.select([*core, patch.slug])]
    yield from dict.fromkeys([*chosen, of.patches])


def main(numbers: list[str]) -> None:
    """Read the wheels and write the data."""
    texts = {
        number: Files(sources.folder(number, lambda line: print(line, file=sys.stderr)))
        for number in numbers or sources.published()
    }
    consulted = set(known.paths(known.releases())) if known.PATH.exists() else set()
    for files in texts.values():
        consulted |= plan.consulted(series.load().patches, files)
    entries = known.releases() if known.PATH.exists() and numbers else {}
    entries |= {number: describe(files, sorted(consulted)) for number, files in texts.items()}
    ordered = {number: entries[number] for number in sorted(entries, key=Version)}
    text = msgspec.json.format(msgspec.json.encode(ordered), indent=1)
    known.PATH.write_bytes(text + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
