"""How long `mrv2 apply` and `mrv2 revert` take, from the start of the process to its end.

    .venv/bin/python benchmarks/in_place.py [RELEASE]

Medians and longest of interleaved runs, in seconds, as JSON: of the official wheel as uv installs
it, and of a `fork` of it, whose changed files are those of no release.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mrv2_fixes import series
from mrv2_fixes.targets import release

RUNS = 11


def main(number: str = "0.24.0") -> None:
    mrv2 = Path(sys.executable).with_name("mrv2")
    wheel = release.official_wheel(number, lambda line: print(line, file=sys.stderr))
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        sites = {name: Path(scratch) / name for name in ("official", "fork")}
        for site in sites.values():
            install = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--no-deps"]
            subprocess.run([*install, "--target", site, wheel], check=True)
        for path in {path for patch in series.load().core for path in patch.header.touches}:
            changed = sites["fork"] / path
            if changed.exists():
                text = changed.read_bytes()
                changed.unlink()  # it is linked with uv's cache
                changed.write_bytes(text + b"# ours\n")
        for _ in range(RUNS):
            for name, site in sites.items():
                for command in ("apply", "revert"):
                    began = time.perf_counter()
                    subprocess.run([mrv2, command, site], check=True, stdout=subprocess.DEVNULL)
                    seconds = time.perf_counter() - began
                    taken.setdefault(f"{command} {name}", []).append(seconds)
    print(
        json.dumps(
            {
                "release": number,
                "python": sys.version.split()[0],
                "median": {name: round(statistics.median(all_), 3) for name, all_ in taken.items()},
                "longest": {name: round(max(all_), 3) for name, all_ in taken.items()},
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
