"""What an audit of a vLLM costs, beside what Python takes to parse the files that it reads.

    python -m benchmarks.audit [RELEASE]

`read` is reading every file that is looked into, `mrv2 audit` the whole command.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from benchmarks import measure
from mrv2_fixes import targets
from mrv2_fixes.audit import audit
from mrv2_fixes.audit.source import MODELS, RUNNER, Source

RUNS = 5


def main(number: str = "0.24.0") -> None:
    files = targets.open_target(number, lambda line: print(line, file=sys.stderr)).files
    looked_into = [path for path in files if path.startswith((RUNNER, *MODELS))]
    parsed = [files[module.path] for module in Source(files).modules]
    mrv2 = Path(sys.executable).with_name("mrv2")
    taken = measure.interleaved(
        {
            "parse": lambda: [ast.parse(text) for text in parsed],
            "read": lambda: [files[path] for path in looked_into],
            "audit": lambda: audit(files),
            "mrv2 audit": lambda: subprocess.run(
                [mrv2, "audit", number], stdout=subprocess.DEVNULL, check=False
            ),
        },
        RUNS,
    )
    figures = {
        "files": {"read": len(looked_into), "parsed": len(parsed)},
        "audit": measure.compared(taken, to="parse"),
    }
    of = [Path(__file__), measure.ROOT / "src/mrv2_fixes/audit"]
    measure.write("audit", figures, of, {"vllm": number})


if __name__ == "__main__":
    main(*sys.argv[1:])
