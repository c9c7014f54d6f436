"""How what the program costs grows with the number of patches and of files, beside `git apply`.

    python -m benchmarks.growth

A made-up release has files of a class with 200 methods, and each patch adds one keyword to one of
them. `patches`: so many patches of one file; `files`: one patch of so many files. `plan` is made by
LibCST, as for a fork, in this process; the others are whole processes on a release that is known,
with the program and the series as they are installed. Ratios are to `git apply` of one patch.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import measure
from benchmarks.commands import run, sample
from benchmarks.hook import SCRIPT
from mrv2_fixes import known, plan, printing, series
from mrv2_fixes.maintain.known import splices

RUNS = 3
PATCHES = (1, 3, 10, 30, 100, 200)
FILES = (1, 3, 10, 50)
RELEASE = "0.24.0"
PACKAGE = "vllm/v1/worker/gpu"
STEP = '''
    def step_{number}(self, batch):
        """The metadata of one step."""
        longest = batch.longest
        if longest > self.max_model_len:
            longest = self.max_model_len
        return build_attn_metadata(
            rows=batch.rows,
            max_seq_len=longest,
        )
'''
HEADER = """\
title = "[Bugfix] A bound for the step"
description = "Made up."
origin = "nowhere"
affects = ">=0.24.0"
touches = {touches}
adds = []
date = 2026-11-30T07:00:00Z
removal = "Never."
reproducers = []
"""
EDIT = """\
def edit(vllm):
    for file in {files}:
        vllm.class_(file, "Steps").method("step_{number}").keyword(
            "build_attn_metadata", "bound", was=None, now="batch.bound", before="max_seq_len"
        )
"""


def release(files: int) -> dict[str, bytes]:
    """The files of a vLLM with so many to patch."""
    steps = "".join(STEP.format(number=number) for number in range(max(PATCHES)))
    text = f"from vllm.attn import build_attn_metadata\n\n\nclass Steps:{steps}"
    packages = ("vllm", "vllm/v1", "vllm/v1/worker", PACKAGE)
    return {f"{package}/__init__.py": b"" for package in packages} | {
        f"{PACKAGE}/steps_{number}.py": text.encode() for number in range(files)
    }


def write_series(folder: Path, patches: int, files: int) -> series.Series:
    """A series of so many patches, each of all those files."""
    names = [f"steps_{number}.py" for number in range(files)]
    slugs = [f"step-{number}" for number in range(patches)]
    for number, slug in enumerate(slugs):
        patch = folder / "patches" / slug
        patch.mkdir(parents=True)
        touches = [f"{PACKAGE}/{name}" for name in names]
        (patch / "patch.toml").write_text(HEADER.format(touches=touches))
        (patch / "edit.py").write_text(EDIT.format(files=names, number=number))
    order = f"revision = 1\ncore = {slugs}\nstable = []\n"
    (folder / "patches" / "series.toml").write_text(order)
    return series.load(folder)


def described(made: plan.Plan, files: Mapping[str, bytes]) -> dict[str, known.Release]:
    """What `known.json` says of a release of which `made` is the plan of all patches."""
    slugs = tuple(step.patch.slug for step in made.steps)
    outcomes = {
        path: {known.digest(text): known.Outcome(slugs, splices(made.before[path], text))}
        for path, text in made.after.items()
    }
    hashes = {path: known.digest(files[path]) for path in made.before}
    states = dict.fromkeys(slugs, plan.State.NEEDED.value)
    return {RELEASE: known.Release(hashes, states, outcomes)}


def actions(folder: Path, patches: int, files: int) -> dict[str, Callable[[], float]]:
    """What is measured of a series of so many patches of so many files."""
    program, site, change = folder / "program", folder / "site", folder / "change.diff"
    package = program / "mrv2_fixes"
    shutil.copytree(measure.ROOT / "src/mrv2_fixes", package)
    chosen = write_series(package / "series", patches, files).core
    texts = release(files)
    for path, text in texts.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(text)
    number = itertools.count()

    def make() -> plan.Plan:
        # Other files each time: those that are known from the last are not parsed again.
        other = b"# %d\n" % next(number)
        fork = {path: text and text + other for path, text in texts.items()}
        return plan.make(chosen, fork, releases={})

    made = plan.make(chosen, texts, releases={})
    if len(made.needed()) != patches or len(made.after) != files:
        raise SystemExit(f"{patches} patches of {files} files: not planned as they were made")
    (package / "known.json").write_bytes(msgspec.json.encode(described(made, texts)))
    change.write_text(printing.diff(made))

    mrv2 = ("env", f"PYTHONPATH={program}", sys.executable, "-m", "mrv2_fixes")
    status, apply, revert = ((*mrv2, command, ".") for command in ("status", "apply", "revert"))
    git = ("git", "apply", change)
    run(apply, site)  # from here on the program is compiled
    run(revert, site)

    def hook() -> float:
        environ = {**os.environ, "PYTHONPATH": str(program), "MRV2_FIXES": "core"}
        command = [sys.executable, "-c", SCRIPT, str(site), "True", *made.after]
        done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout)

    return {
        "git apply --check": partial(sample, site, (*git, "--check")),
        "git apply": partial(sample, site, git, behind=(*git, "-R")),
        "mrv2 status": partial(sample, site, status),
        "mrv2 apply": partial(sample, site, apply, behind=revert),
        "hook": hook,
        "plan": partial(measure.timed, make),
    }


def grown(sizes: Sequence[tuple[int, int]]) -> dict[str, dict[str, object]]:
    """By action: its ratio at each size, and what one more adds (least squares).

    sizes: numbers of patches and of files; the one that differs counts.
    """
    numbers = [max(size) for size in sizes]
    with tempfile.TemporaryDirectory() as temporary:
        samples = {
            f"{name}|{number}": action
            for number, size in zip(numbers, sizes, strict=True)
            for name, action in actions(Path(temporary) / str(number), *size).items()
        }
        figures = measure.compared(measure.sampled(samples, RUNS), to="git apply|1")
    names = dict.fromkeys(name.partition("|")[0] for name in samples)
    answer: dict[str, dict[str, object]] = {}
    for name in names:
        ratios = [figures[f"{name}|{number}"]["ratio"] for number in numbers]
        slope = statistics.linear_regression(numbers, ratios).slope
        of = dict(zip(map(str, numbers), ratios, strict=True))
        answer[name] = {"ratio": of, "one more adds": measure.rounded(slope)}
    return answer


def main() -> None:
    figures = {
        "patches": grown([(patches, 1) for patches in PATCHES]),
        "files": grown([(1, files) for files in FILES]),
    }
    of = measure.program("edit", "deliver", "plugin", "plan.py", "known.py")
    of += [measure.ROOT / "benchmarks" / name for name in ("growth.py", "commands.py", "hook.py")]
    measure.write("growth", figures, of)


if __name__ == "__main__":
    main()
