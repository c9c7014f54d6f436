"""The V2 runner of each published release, from its official wheel, kept in the cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from packaging.version import Version

from mrv2_fixes import cache
from mrv2_fixes.edit.vllm import PACKAGE
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets import release
from mrv2_fixes.targets.target import MARK

# The package of the V2 runner came with this release.
FIRST = Version("0.12.0")
# What edits look at outside of it.
BESIDE = (
    "vllm/v1/attention/backends/gdn_attn.py",
    "vllm/v1/core/sched/interface.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/worker/lora_model_runner_mixin.py",
)


def published() -> list[str]:
    """The final releases on the package index that have the V2 runner, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "vllm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if listed is None:
        raise TargetUnusable("vllm: the package index does not list it: check the network")
    numbers = sorted(map(str.strip, listed[1].split(",")), key=Version)
    return [number for number in numbers if Version(number) >= FIRST]


def folder(number: str, progress: Callable[[str], None]) -> Path:
    """A folder with the V2 runner of release `number`, `BESIDE`, its metadata and nothing else.

    The wheel is downloaded the first time, and not kept for this.
    """
    kept = cache.folder() / "published" / number
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_suffix(f"{kept.suffix}.lock")):
        if not kept.is_dir():
            wheel_kept = (cache.folder() / "wheels" / number).is_dir()
            _unpack(release.official_wheel(number, progress), kept)
            if not wheel_kept:
                shutil.rmtree(cache.folder() / "wheels" / number)
    return kept


def _unpack(wheel: Path, into: Path) -> None:
    with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                python = name.startswith(PACKAGE) and name.endswith(".py")
                if python or name in (MARK, *BESIDE) or name.endswith(".dist-info/METADATA"):
                    archive.extract(name, Path(temporary) / "whole")
        (Path(temporary) / "whole").rename(into)
