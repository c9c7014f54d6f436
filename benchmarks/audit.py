"""How long an audit of a vLLM takes, beside what Python takes to parse the files that it reads.

    .venv/bin/python benchmarks/audit.py [TARGET]

Medians of interleaved runs as JSON, in seconds and as ratios to the parse; TARGET is what `mrv2
audit` takes. `read` is reading every file that is looked into, `command` the whole command.
"""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mrv2_fixes import targets
from mrv2_fixes.audit import audit
from mrv2_fixes.audit.source import MODELS, RUNNER, Source

RUNS = 9


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main(target: str = "0.24.0") -> None:
    files = targets.open_target(target, lambda line: print(line, file=sys.stderr)).files
    looked_into = [path for path in files if path.startswith((RUNNER, *MODELS))]
    parsed = [files[module.path] for module in Source(files).modules]
    mrv2 = str(Path(sys.executable).with_name("mrv2"))
    actions: dict[str, Callable[[], object]] = {
        "read": lambda: [files[path] for path in looked_into],
        "parse": lambda: [ast.parse(text) for text in parsed],
        "audit": lambda: audit(files),
        "command": lambda: subprocess.run([mrv2, "audit", target], stdout=subprocess.DEVNULL),
    }
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(RUNS):
        for name, action in actions.items():
            taken[name].append(seconds(action))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    result = {
        "target": target,
        "python": sys.version.split()[0],
        "files": {"read": len(looked_into), "parsed": len(parsed)},
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "ratios": {name: round(value / medians["parse"], 2) for name, value in medians.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
