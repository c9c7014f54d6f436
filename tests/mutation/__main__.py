"""Judge many mutants, in two processes, and print what came of each kind.

    python -m tests.mutation COUNT [FIRST] [RELEASE …] [FILE …]   COUNT of each touched file, or of
                                                        those named, from seed FIRST
    python -m tests.mutation show RELEASE FILE SEED     the change, the states, and what is wrong

Exit status 1 when one is judged wrong.
"""

from __future__ import annotations

import difflib
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache

from mrv2_fixes import known, plan
from mrv2_fixes.maintain import sources
from mrv2_fixes.targets import folder

from . import mutants, oracle
from .world import PACKAGE

FIRST_RELEASE = "0.20.2"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@cache
def _files(release: str) -> dict[str, bytes]:
    return dict(folder.read(sources.folder(release, _say)).files)


Task = tuple[str, str, int]


def _judged(task: Task) -> tuple[Task, tuple[str, ...], mutants.Verdict]:
    release, path, seed = task
    # Code that was made async and is not awaited.
    warnings.simplefilter("ignore")
    one = mutants.mutant(release, _files(release), path, seed)
    return task, one.kinds, mutants.judge(one, oracle.PATCHES)


def _tasks(count: int, first: int, releases: list[str], paths: list[str]) -> Iterator[Task]:
    for seed in range(first, first + count):
        for release in releases:
            for path in mutants.touched(_files(release)):
                if not paths or path in paths:
                    yield release, path, seed


def many(count: int, first: int, releases: list[str], paths: list[str]) -> int:
    """Judge them and print the table; the number of those that are judged wrong."""
    tasks = list(_tasks(count, first, releases, paths))
    table: Counter[tuple[str, str, str, str]] = Counter()
    bad = 0
    began = time.monotonic()
    with multiprocessing.Pool(2) as pool:
        judged = pool.imap_unordered(_judged, tasks, chunksize=20)
        for number, (task, kinds, verdict) in enumerate(judged, 1):
            group = "+".join(sorted({mutants.group(kind) for kind in kinds}))
            if len(kinds) > 1:
                group = "several"
            states = {state.split(maxsplit=1)[1] for state in verdict.states} or {"not affected"}
            outcome = " and ".join(sorted(states))
            table[task[0], task[1].removeprefix(PACKAGE), group, outcome] += 1
            if verdict.wrong:
                bad += 1
                print(*task, ",".join(kinds), *verdict.states, sep=" | ", flush=True)
                for line in verdict.wrong:
                    print(f"    {line}", flush=True)
            if number % 500 == 0:
                _say(f"{number} of {len(tasks)}, {bad} wrong, {time.monotonic() - began:.0f} s")
    for row, times in sorted(table.items()):
        print(*row, times, sep=" | ")
    print(f"{len(tasks)} judged, {bad} wrong")
    return bad


def show(release: str, path: str, seed: int) -> None:
    """Print one mutant as a diff, what the plan makes of it, and what is wrong with that."""
    one = mutants.mutant(release, _files(release), path, seed)
    print(*one.kinds, one.names)
    made = plan.make(oracle.PATCHES, one.files)
    for name, text in one.files.items():
        _diff(_files(release).get(one.path if name == one.names.get(path) else name, b""), text)
    for step in made.steps:
        print(f"== {step.patch.slug}: {step.state.value} {step.detail}")
    for name, text in made.after.items():
        _diff(made.before.get(name, b""), text)
    for line in mutants.judge(one, oracle.PATCHES).wrong:
        print(line)


def _diff(old: bytes, new: bytes) -> None:
    lines = difflib.unified_diff(old.decode().split("\n"), new.decode().split("\n"), lineterm="")
    print(*lines, sep="\n")


def _path(name: str) -> str:
    return name if name.startswith("vllm/") else PACKAGE + name


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["show"]:
        show(arguments[1], _path(arguments[2]), int(arguments[3]))
        return 0
    count, first = int(arguments[0]), int(arguments[1]) if arguments[1:] else 0
    numbers = list(known.releases())
    newer = numbers[numbers.index(FIRST_RELEASE) :]
    releases = [one for one in arguments[2:] if one in numbers]
    paths = [_path(one) for one in arguments[2:] if one not in numbers]
    return 1 if many(count, first, releases or newer, paths) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
