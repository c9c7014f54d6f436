"""The vLLM that `import vllm` would find in this Python."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets import folder
from mrv2_fixes.targets.target import Target


def read() -> Target:
    """Find and read it, without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise TargetUnusable("no vLLM in this Python: name a folder, clone, wheel or release")
    found = folder.read(Path(spec.origin).parent.parent)
    return Target("installed", str(Path(spec.origin).parent), found.version, found.files)
