"""What the check of attention metadata adds to a build, off and on.

    python -m benchmarks.contract [RELEASE]

The engine's own layers and builders, on the CPU, in one process; seconds of one build.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks import measure
from mrv2_fixes import cache, engine

MODULE = measure.ROOT / "vllm/v1/worker/gpu/attn_metadata_contract.py"
KINDS = ("llama", "granite")
RUNS = 300
SCRIPT = """
import json, sys
from benchmarks import measure
from tests.v1.worker.test_attn_metadata_contract import right
from tests.v1.worker.tiny_models import Row, build_layers
from vllm.v1.worker.gpu import attn_metadata_contract, attn_utils

def checked(enabled):
    attn_metadata_contract.ENABLED = enabled
    return attn_metadata_contract.checked(attn_utils.build_attn_metadata)

build = attn_utils.build_attn_metadata
ways = {"no check": build, "check off": checked(False), "check on": checked(True)}
with build_layers(sys.argv[1]) as layers:
    arguments = right(layers, [Row(40 * i, 1) for i in range(1, 9)])
    actions = {name: lambda way=way: way(**arguments) for name, way in ways.items()}
    print(json.dumps(measure.interleaved(actions, int(sys.argv[2]))))
"""


def main(number: str = "0.24.0") -> None:
    environment = engine.environment(number)
    path = MODULE.relative_to(measure.ROOT).as_posix()
    tree = engine.patched_tree(environment, {path: MODULE.read_bytes()}, cache.folder())
    figures = {}
    for kind in KINDS:
        done = subprocess.run(
            [environment.python, "-c", SCRIPT, kind, str(RUNS)],
            cwd=measure.ROOT,
            env=engine.variables(environment, [tree]),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        taken = json.loads(done.stdout.splitlines()[-1])
        figures[kind] = measure.compared(taken, to="no check")
    of = [*map(measure.ROOT.joinpath, ("benchmarks/contract.py", "tests/v1/worker")), MODULE]
    measure.write("contract", figures, of, {"vllm": number})


if __name__ == "__main__":
    main(*sys.argv[1:])
