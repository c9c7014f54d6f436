"""What the import hook adds to the start of a process that serves.

    python -m benchmarks.hook [RELEASE]

Each is a process of its own that has imported nothing before, and counts its own seconds. `plain`:
finding and reading the compiled code of the touched modules. `hook`: the plugin's start, and the
same modules through the hook. `hook on a fork`: the same on files that are those of no release,
where LibCST has to be imported. What a vLLM has imported itself comes off these.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import measure
from mrv2_fixes import series
from mrv2_fixes.maintain import sources

RUNS = 9
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


def seconds(root: Path, hooked: bool, group: str) -> float:
    environ = {**os.environ, "MRV2_FIXES": group}
    patches = series.load().select(group=group)
    touched = sorted({path for patch in patches for path in patch.header.touches})
    command = [sys.executable, "-c", SCRIPT, str(root), str(hooked), *touched]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def main(number: str = "0.22.1") -> None:
    with tempfile.TemporaryDirectory() as temporary:
        known, fork = Path(temporary) / "known", Path(temporary) / "fork"
        for root in known, fork:
            shutil.copytree(sources.folder(number, print), root)
        for path in {path for patch in series.load().patches for path in patch.header.touches}:
            if (fork / path).exists():
                (fork / path).write_bytes((fork / path).read_bytes() + b"# ours\n")
        runs = {"plain": (known, False), "hook": (known, True), "hook on a fork": (fork, True)}
        figures = {}
        for group in series.GROUPS:
            samples = {name: partial(seconds, *run, group) for name, run in runs.items()}
            figures[group] = measure.compared(measure.sampled(samples, RUNS), to="plain")
    of = [Path(__file__), *measure.program("edit", "plugin", "plan.py", "known.py")]
    measure.write("hook", figures, of, {"vllm": number})


if __name__ == "__main__":
    main(*sys.argv[1:])
