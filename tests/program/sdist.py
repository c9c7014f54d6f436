"""A release's repository as far as a release holds it: its source distribution, in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from mrv2_fixes import cache
from mrv2_fixes.errors import TargetUnusable

# pip asks what it downloads for its metadata, and vLLM's own answer wants torch. This one does not.
BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    information = Path(folder) / "vllm-{number}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\\nName: vllm\\nVersion: {number}\\n"
    )
    return information.name
"""


def sdist(number: str, progress: Callable[[str], None]) -> Path:
    """The path of release `number`'s source distribution; downloaded unless it is kept already.

    Raises TargetUnusable when pip cannot download it.
    """
    kept = cache.folder() / "sdists" / f"vllm-{number}.tar.gz"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):
        if not kept.is_file():
            progress(f"downloading the sources of vllm {number}, some 40 MB, into {kept.parent}")
            with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
                # Whole or not at all: the name appears when the download is complete.
                _download(number, Path(temporary)).rename(kept)
    return kept


def _download(number: str, into: Path) -> Path:
    backend = into / "setuptools"
    backend.mkdir()
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(BACKEND.format(number=number))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into)]
    command += ["--no-binary", ":all:", "--no-build-isolation", f"vllm=={number}"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(into)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = list(into.glob("*.tar.gz"))
    if done.returncode or not found:
        said = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise TargetUnusable(f"vllm {number}: its sources cannot be downloaded: {said[-1]}")
    return found[0]
