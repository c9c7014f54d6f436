"""A published release: its official wheel from the package index, kept for the next time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from mrv2_fixes.cache import folder as cache_folder
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets import wheel
from mrv2_fixes.targets.target import Target

# The official wheels are for Linux; what is read of them is the same on every platform.
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(17, 40)), "manylinux1_x86_64")


def read(number: str, progress: Callable[[str], None]) -> Target:
    """The release `number`, from its wheel. Raises TargetUnusable as `official_wheel` does."""
    found = wheel.read(official_wheel(number, progress))
    return Target("release", f"vllm=={number}", found.version, found.files, wheel=found.wheel)


def official_wheel(number: str, progress: Callable[[str], None]) -> Path:
    """The path of the official wheel of release `number`; downloaded unless it is kept already.

    Raises TargetUnusable when there is no such release, no network or no room.
    """
    folder = cache_folder() / "wheels" / number
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(f"{folder.suffix}.lock")):
        kept = sorted(folder.glob("*.whl"))
        if kept:
            return kept[0]
        progress(f"downloading the wheel of vllm {number}, some 300 MB, into {folder.parent}")
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            _download(number, Path(temporary))
            # Whole or not at all: the name appears when the download is complete.
            complete = Path(temporary) / "complete"
            complete.mkdir()
            for path in Path(temporary).glob("*.whl"):
                path.rename(complete / path.name)
            shutil.rmtree(folder, ignore_errors=True)
            complete.rename(folder)
        return next(folder.glob("*.whl"))


def _download(number: str, into: Path) -> None:
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into)]
    command += ["--only-binary", ":all:", "--python-version", "3.12", *platforms, f"vllm=={number}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetUnusable(f"vllm {number}: {_reason(done.stderr)}")


def _reason(output: str) -> str:
    """What pip's words come to."""
    if "No module named pip" in output:
        return "pip is not in this Python: python -m ensurepip, or name a wheel or folder"
    if "No space left" in output:
        return "no room for its wheel: free some, or set MRV2_CACHE to a folder with room"
    if "from versions: none" in output or "NewConnectionError" in output:
        return "the package index does not answer: check the network and pip's settings"
    if "No matching distribution" in output:
        return "no such release on the package index"
    lines = [line for line in output.splitlines() if line.startswith("ERROR")]
    return lines[0].removeprefix("ERROR: ") if lines else "pip could not download it"
