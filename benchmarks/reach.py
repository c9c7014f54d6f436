"""How long a status and a plan take, beside what Python itself and an import of LibCST take.

    .venv/bin/python benchmarks/reach.py [RELEASE]

Medians of interleaved runs, in seconds, as JSON. The plan is of the three core patches, texts
included; a status is the whole command.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mrv2_fixes import plan, series
from mrv2_fixes.maintain import sources
from mrv2_fixes.targets import folder

RUNS = 15


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main(release: str = "0.22.1") -> None:
    root = sources.folder(release, lambda line: print(line, file=sys.stderr))
    files = dict(folder.read(root).files)
    patches = series.load().core
    mrv2 = str(Path(sys.executable).with_name("mrv2"))
    actions: dict[str, Callable[[], object]] = {
        "python": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "libcst": lambda: subprocess.run([sys.executable, "-c", "import libcst"], check=True),
        "status": lambda: subprocess.run([mrv2, "status", root], stdout=subprocess.DEVNULL),
        "plan": lambda: plan.make(patches, files),
    }
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(RUNS):
        for name, action in actions.items():
            taken[name].append(seconds(action))
    medians = {name: round(statistics.median(values), 4) for name, values in taken.items()}
    print(json.dumps({"release": release, "python": sys.version.split()[0], "seconds": medians}))


if __name__ == "__main__":
    main(*sys.argv[1:])
