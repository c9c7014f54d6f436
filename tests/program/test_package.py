"""The package as it is installed from a wheel, without the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mrv2_fixes import series

from .conftest import Source

pytestmark = pytest.mark.releases

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv", "--quiet"]


def test_installed_from_its_wheel_it_does_the_same(published: Source, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    subprocess.run([*UV, "build", "--wheel", "--out-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*UV, "venv", "--python", sys.executable, environment], check=True)
    subprocess.run([*UV, "pip", "install", "--python", python, wheel], check=True)

    def mrv2(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [environment / "bin" / "mrv2", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    root = published("0.22.1")
    assert mrv2("status", root).returncode == 1
    assert mrv2("build", root).returncode == 0
    assert len(list((tmp_path / "dist" / "0.22.1").glob("*.patch"))) == 3
    (package,) = environment.glob("lib/*/site-packages/mrv2_fixes")
    assert (package / "engine" / "site" / "sitecustomize.py").is_file()
    for patch in series.load().patches:
        assert patch.slug in mrv2("explain", patch.slug).stdout
        for path in patch.header.adds:
            assert (package / "series" / path).read_bytes() == (ROOT / path).read_bytes()


def test_beside_vllm_it_brings_no_installers(tmp_path: Path) -> None:
    """Only `releases` does: a plugin must not change the pip of the environment that serves."""
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    subprocess.run([*UV, "venv", "--python", sys.executable, environment], check=True)
    subprocess.run([*UV, "pip", "install", "--python", python, ROOT], check=True)
    installed = {path.name for path in environment.glob("lib/*/site-packages/*")}
    assert "mrv2_fixes" in installed
    assert not installed & {"pip", "uv"}
    for arguments, missing in (["status", "0.1.2"], "pip"), (["verify", "0.24.0"], "uv"):
        done = subprocess.run(
            [environment / "bin" / "mrv2", *arguments],
            env={"MRV2_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (4, "")
        assert f"{missing} is not in this Python: " in done.stderr
