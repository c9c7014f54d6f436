"""What the import hook adds to the start of a process that serves.

    .venv/bin/python benchmarks/hook.py [RELEASE]

Medians of interleaved runs, each in a process of its own that has imported nothing before, in
seconds, as JSON. `plain`: finding and reading the compiled code of the touched modules. `hook`: the
plugin's start, and the same modules through the hook. `unknown`: the same on files that are those
of no release, where LibCST has to be imported. What a vLLM has imported itself comes off these.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from mrv2_fixes import series
from mrv2_fixes.maintain import sources

RUNS = 15
TOUCHED = sorted({path for patch in series.load().patches for path in patch.header.touches})
SCRIPT = """
import sys, time
root, hooked, *paths = sys.argv[1:]
sys.path.insert(1, root)
began = time.perf_counter()
if hooked == "True":
    from mrv2_fixes.plugin import load
    load()
for path in paths:
    name = path.removesuffix(".py").replace("/", ".")
    folder = f"{root}/{path.rpartition('/')[0]}"
    for finder in sys.meta_path:
        spec = finder.find_spec(name, [folder], None)
        if spec is not None:
            spec.loader.get_code(name)
            break
print(time.perf_counter() - began)
"""


def seconds(root: Path, hooked: bool) -> float:
    environ = {**os.environ, "MRV2_FIXES": "all"}
    command = [sys.executable, "-c", SCRIPT, str(root), str(hooked), *TOUCHED]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def main(release: str = "0.22.1") -> None:
    with tempfile.TemporaryDirectory() as temporary:
        known, unknown = Path(temporary) / "known", Path(temporary) / "unknown"
        for root in known, unknown:
            shutil.copytree(sources.folder(release, print), root)
        changed = unknown / TOUCHED[0]
        changed.write_bytes(changed.read_bytes() + b"# a fork\n")
        runs = {"plain": (known, False), "hook": (known, True), "unknown": (unknown, True)}
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(RUNS):
            for name, (root, hooked) in runs.items():
                taken[name].append(seconds(root, hooked))
    medians = {name: round(statistics.median(values), 4) for name, values in taken.items()}
    print(json.dumps({"release": release, "python": sys.version.split()[0], "seconds": medians}))


if __name__ == "__main__":
    main(*sys.argv[1:])
