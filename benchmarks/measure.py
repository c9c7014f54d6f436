"""Measuring, for every benchmark: actions in turn, and their figures with what they speak of.

Machines differ and are busy with other things, so only what was measured side by side is compared:
every figure is a ratio within one run, the median over its rounds.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
SEED = 0  # of the order of the actions in each round


def interleaved(actions: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Seconds that each action took, in `runs` rounds of all, each in an order of chance."""
    return sampled({name: partial(timed, action) for name, action in actions.items()}, runs)


def sampled(samples: Mapping[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """The same for samples that measure themselves, as a process that counts its own seconds."""
    chance = random.Random(SEED)
    taken: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(runs):
        # Whoever follows another finds the caches as that one left them: none does always.
        for name in chance.sample(list(samples), len(samples)):
            taken[name].append(samples[name]())
    return taken


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def compared(taken: Mapping[str, Sequence[float]], to: str) -> dict[str, dict[str, float]]:
    """For each name its median in seconds, and its ratio to `to`: median, and from where to where.

    The ratios are those of each round, so that what slows a round down slows both. `least` and
    `most` are those of the middle half of the rounds.
    """
    answer = {}
    for name, seconds in taken.items():
        ratios = [one / other for one, other in zip(seconds, taken[to], strict=True)]
        # each twice, as there are no quarters of a single round
        quarters = statistics.quantiles(ratios * 2, method="inclusive")
        answer[name] = {
            "seconds": rounded(statistics.median(seconds)),
            "ratio": rounded(statistics.median(ratios)),
            "least": rounded(quarters[0]),
            "most": rounded(quarters[2]),
        }
    return answer


def rounded(value: float) -> float:
    """`value` to four significant digits."""
    return float(f"{value:.4g}")


def program(*names: str) -> list[Path]:
    """The modules and packages of the program that do the work that is measured."""
    return [ROOT / "src" / "mrv2_fixes" / name for name in names]


def digest(of: Iterable[Path]) -> str:
    """SHA-256 over names and contents of files below the repository's root; of a folder, all."""
    sha256 = hashlib.sha256()
    for path in sorted(set(_files(of))):
        content = path.read_bytes()
        sha256.update(f"{path.relative_to(ROOT).as_posix()}\0{len(content)}\0".encode() + content)
    return sha256.hexdigest()


def _files(of: Iterable[Path]) -> Iterable[Path]:
    for path in of:
        below = path.rglob("*") if path.is_dir() else [path]
        yield from (one for one in below if one.is_file() and one.suffix != ".pyc")


def write(
    name: str,
    figures: Mapping[str, object],
    of: Sequence[Path],
    versions: Mapping[str, str] | None = None,
) -> Path:
    """Keep `figures` in `results/NAME.json`, with the machine, its load, and what they speak of.

    of: the files, or folders of files, below the root that were measured or did the measuring.
    versions: of what took part, besides Python and what this project depends on.
    """
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "versions": {**_versions(), **(versions or {})},
        "seed": SEED,
        "of": sorted(path.resolve().relative_to(ROOT).as_posix() for path in of),
        "digest": digest(of),
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path.relative_to(ROOT))
    return path


def machine() -> dict[str, object]:
    """What it was measured on: processor, cores that are ours, memory in GiB."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": _cpu(), "cores": cores, "memory": rounded(memory / 2**30)}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _versions() -> dict[str, str]:
    used = ("libcst", "msgspec", "packaging")
    packages = {name: importlib.metadata.version(name) for name in used}
    return {"python": platform.python_version(), **packages}
