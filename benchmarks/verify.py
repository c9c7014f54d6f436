"""What the proof of one cell costs, beside bare starts of the engine.

    python -m benchmarks.verify [RELEASE]

A cell is one patch on one release: its reproducer without the patch and with it, each in a process
of its own. `start` boots the same engine with the same tiny model and generates one token.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks import measure
from mrv2_fixes import cache, engine, plan, series, verify
from mrv2_fixes.targets import folder

RUNS = 2
SLUG = "forward-seq-lens-cpu-upper-bound"
SCRIPT = """
from tests.v1.worker import tiny_models
with tiny_models.hybrid_engine(tiny_models.write_model("lfm2")) as llm:
    tiny_models.generate(llm, [[1, 2, 3]], [1])
"""


def start(environment: engine.Environment, tree: Path) -> None:
    subprocess.run(
        [environment.python, "-c", SCRIPT],
        cwd=measure.ROOT,
        env=engine.variables(environment, [tree]),
        check=True,
        stdout=subprocess.DEVNULL,
    )


def prove(job: verify.Job) -> None:
    (cell,) = verify.run([job], series.load(), print, workers=1)
    if not cell.proven:
        raise SystemExit(f"{cell.patch} on {cell.release}: not proven: {cell.sides}")


def main(number: str = "0.24.0") -> None:
    environment = engine.environment(number)
    patches = series.load().select([SLUG])
    made = plan.make(patches, folder.read(environment.site_packages).files, version=number)
    tree = engine.patched_tree(environment, made.after, cache.folder())
    (job,) = verify.jobs(patches, [number])
    taken = measure.interleaved(
        {"start": partial(start, environment, tree), "cell": partial(prove, job)}, RUNS
    )
    of = [Path(__file__), measure.ROOT / "src/mrv2_fixes/engine"]
    of += [measure.ROOT / "src/mrv2_fixes/verify.py", measure.ROOT / "tests/v1/worker"]
    measure.write("verify", {"verify": measure.compared(taken, to="start")}, of, {"vllm": number})


if __name__ == "__main__":
    main(*sys.argv[1:])
