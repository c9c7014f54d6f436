"""The vLLM that a command acts on: installed, a folder, a git clone, a wheel or a release number.

Reading a target never imports or runs its code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets.target import Target

__all__ = ["Target", "open_target"]

RELEASE = re.compile(r"\d+(\.\d+)+(\.?(post|rc)\d+)?")


def open_target(name: str | None, progress: Callable[[str], None]) -> Target:
    """The target that `name` means; None is the vLLM of this Python.

    progress: is given one line for what takes more than a moment.
    Raises TargetUnusable when there is no vLLM to read there.
    """
    # Each kind is imported when it is asked for: together they take longer than reading one.
    if name is None:
        from mrv2_fixes.targets import installed

        return installed.read()
    path = Path(name)
    if path.is_dir():
        from mrv2_fixes.targets import clone, folder

        return clone.read(path) if clone.is_clone(path) else folder.read(path)
    if path.is_file():
        from mrv2_fixes.targets import wheel

        return wheel.read(path)
    if RELEASE.fullmatch(name):
        from mrv2_fixes.targets import release

        return release.read(name, progress)
    raise TargetUnusable(f"{name}: no such folder, wheel or release number")
