"""The uv that this project depends on, run by name; what it could not do, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from mrv2_fixes.engine.errors import EngineError

# What uv says, and what it comes to; the first that is found counts.
REASONS = (
    ("No module named uv", "uv is not in this Python: python -m pip install uv"),
    ("No space left on device", "no room on the disk: free some, or set MRV2_CACHE elsewhere"),
    ("No interpreter found", "no such Python here, and uv could not fetch it: install that Python"),
    ("No Python at", "no such Python here: install it"),
    ("error sending request", "the package index does not answer: check the network"),
    ("Failed to fetch", "the package index does not answer: check the network and uv's settings"),
    ("dns error", "the package index does not answer: check the network"),
    ("network was disabled", "uv is set to work offline and its cache lacks what is needed"),
    ("no wheels with a matching", "no wheel of it for this platform and Python"),
    ("there is no version of", "the package index has no such version"),
    ("not found in the package registry", "the package index has no such package"),
)


def uv(*arguments: str, about: str, given: str = "", env: Mapping[str, str] | None = None) -> str:
    """What uv prints when run with `arguments` and `given` on its standard input.

    env: variables on top of the process's own.
    Raises EngineError, which begins with `about`, when uv fails.
    """
    command = [sys.executable, "-m", "uv", "--color", "never", *arguments]
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if done.returncode:
        raise EngineError(f"{about}: {_reason(done.stderr)}")
    return done.stdout


def _reason(output: str) -> str:
    said = " ".join(output.split())
    for sign, reason in REASONS:
        if sign in said:
            return reason
    return said[-300:] or "uv failed and did not say why"
