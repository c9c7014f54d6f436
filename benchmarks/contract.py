"""What the check of attention metadata adds to a build, off and on.

    .venv/bin/python benchmarks/contract.py [RELEASE]

The engine's own layers and builders, on the CPU, in one process. JSON: for each model, the median
of interleaved builds with the check off and on, as a multiple of one without it. Seed 0.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mrv2_fixes import cache, engine

ROOT = Path(__file__).parents[1]
MODULE = "vllm/v1/worker/gpu/attn_metadata_contract.py"
SCRIPT = """
import json, random, statistics, sys, time
from tests.v1.worker.test_attn_metadata_contract import right
from tests.v1.worker.tiny_models import Row, build_layers
from vllm.v1.worker.gpu import attn_metadata_contract, attn_utils

def checked(enabled):
    attn_metadata_contract.ENABLED = enabled
    return attn_metadata_contract.checked(attn_utils.build_attn_metadata)

random.seed(0)
builds = {"plain": attn_utils.build_attn_metadata, "off": checked(False), "on": checked(True)}
ratios = {}
for kind in "llama", "granite":
    with build_layers(kind) as layers:
        arguments = right(layers, [Row(40 * i, 1) for i in range(1, 9)])
        taken = {name: [] for name in builds}
        for _ in range(300):
            # Whoever follows the check finds the caches cold: none does always.
            for name in random.sample(list(builds), len(builds)):
                began = time.perf_counter()
                builds[name](**arguments)
                taken[name].append(time.perf_counter() - began)
    plain = statistics.median(taken["plain"])
    ratios[kind] = {name: round(statistics.median(taken[name]) / plain, 2) for name in taken}
    ratios[kind]["plain"] = f"{plain * 1e6:.0f} microseconds"
print(json.dumps({"release": sys.argv[1], "ratios": ratios}))
"""


def main(release: str = "0.24.0") -> None:
    environment = engine.environment(release)
    tree = engine.patched_tree(environment, {MODULE: (ROOT / MODULE).read_bytes()}, cache.folder())
    command = [str(environment.python), "-c", SCRIPT, release]
    variables = engine.variables(environment, [tree])
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
