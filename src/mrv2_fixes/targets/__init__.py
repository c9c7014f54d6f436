"""The vLLM that a command acts on: installed, a folder, a git clone, a wheel or a release number.

Reading a target never imports or runs its code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mrv2_fixes.errors import TargetUnusable, WrongCall
from mrv2_fixes.targets.target import Target

__all__ = ["Target", "open_target"]

RELEASE = re.compile(r"(?:v|vllm==)?(\d+(?:\.\d+)+(?:\.?(?:post|rc)\d+)?)")


def open_target(name: str | None, progress: Callable[[str], None]) -> Target:
    """The target that `name` means; None is the vLLM of this Python.

    A name that reads like a release number is one; a folder of such a name is ./0.24.0.
    progress: is given one line for what takes more than a moment.
    Raises TargetUnusable when there is no vLLM to read there.
    """
    # Each kind is imported when it is asked for: together they take longer than reading one.
    if name is None:
        from mrv2_fixes.targets import installed

        return installed.read()
    path = Path(name)
    numbered = RELEASE.fullmatch(name)
    if numbered:
        from mrv2_fixes.targets import release

        return release.read(numbered[1], progress)
    if not name:
        raise WrongCall("the target is empty: name a folder, clone, wheel or release")
    if path.is_dir():
        from mrv2_fixes.targets import clone, folder

        return clone.read(path) if clone.is_clone(path) else folder.read(path)
    if path.is_file():
        from mrv2_fixes.targets import wheel

        return wheel.read(path)
    raise TargetUnusable(
        f"{name}: no such folder or wheel, and not a release number such as 0.24.0"
    )
