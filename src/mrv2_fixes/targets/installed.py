"""The vLLM that `import vllm` would find in this Python."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib import metadata
from pathlib import Path

from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets import folder
from mrv2_fixes.targets.target import BUILDS, MARK, Target


def read() -> Target:
    """Find and read it, without importing it. Raises TargetUnusable when there is none."""
    where = root()
    found = folder.read(where)
    others = ", ".join(str(other / "vllm") for other in _on_path() if other != where)
    hidden = f"not what Python finds, and left alone: {others}" if others else ""
    note = "; ".join(filter(None, (found.note, hidden)))
    return Target("installed", str(where / "vllm"), found.version, found.files, note)


def is_editable() -> bool:
    """Whether this Python's vLLM is somebody's source, installed editable."""
    for name in BUILDS:
        try:
            origin = metadata.distribution(name).read_text("direct_url.json")
        except metadata.PackageNotFoundError:
            continue
        if origin and json.loads(origin).get("dir_info", {}).get("editable"):
            return True
    return False


def root(instead: str = "name a folder, clone, wheel or release") -> Path:
    """The folder that holds its `vllm/`. Raises TargetUnusable when there is none.

    instead: the way out.
    """
    spec = importlib.util.find_spec("vllm")
    # A folder of that name without an __init__.py, as in this repository, has no origin.
    if spec is None or spec.origin is None:
        raise TargetUnusable(f"no vLLM in this Python: {instead}")
    return Path(spec.origin).parent.parent.resolve()


def _on_path() -> list[Path]:
    """The folders of the path with a vLLM, in order."""
    folders = dict.fromkeys(Path(os.path.abspath(entry)).resolve() for entry in sys.path)
    return [folder for folder in folders if (folder / MARK).is_file()]
