"""The vLLM that a command acts on: installed, a folder, a git clone, a wheel or a release number.

Reading a target never imports or runs its code.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from mrv2_fixes import known
from mrv2_fixes.errors import TargetUnusable, WrongCall
from mrv2_fixes.targets.target import MARK, Target

__all__ = ["Target", "open_target", "root"]

IN_PLACE = "name its site-packages"
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

        number = numbered[1]
        with contextlib.suppress(TargetUnusable):  # a release newer than this program
            number = known.number(number)
        return release.read(number, progress)
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


def root(name: str | None, command: str) -> Path:
    """The folder that holds the `vllm/` of a target that can be changed in place.

    command: "apply" or "revert", which is to change it.
    Raises WrongCall for one that cannot, TargetUnusable when there is no vLLM.
    """
    from mrv2_fixes.targets import clone, folder, installed

    if name is None:
        found = installed.root(IN_PLACE)
    elif not name:
        raise WrongCall(f"the target is empty: {IN_PLACE}")
    elif RELEASE.fullmatch(name) or (Path(name).is_file() and name.endswith(".whl")):
        ways = {
            "apply": f"mrv2 build {shlex.quote(name)} makes a patched wheel",
            "revert": f"of a vLLM that was, {IN_PLACE}",
        }
        raise WrongCall(f"{name}: not changed in place: {ways[command]}")
    elif not Path(name).is_dir():
        fault = "neither a folder nor a wheel (.whl)" if Path(name).exists() else "no such folder"
        raise TargetUnusable(f"{name}: {fault}: {IN_PLACE}")
    else:
        found = folder.root_of(Path(name))
    if clone.is_clone(found):
        path = shlex.quote(str(found))
        ways = {
            "apply": f"mrv2 branch {path} writes the commits there",
            "revert": f"git -C {path} branch -D mrv2-fixes-RELEASE deletes what mrv2 branch wrote",
        }
        raise WrongCall(f"{found}: a git clone: {ways[command]}")
    if name is None and installed.is_editable():
        raise WrongCall(
            f"{found}: a source that is installed editable: if it is to be changed itself, "
            f"mrv2 {command} {shlex.quote(str(found))}"
        )
    if not (found / MARK).is_file():
        raise TargetUnusable(f"{found}: not a vLLM: no {MARK}: {IN_PLACE}")
    return found
