"""What the tests of the program share: the published releases, as folders and as git clones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2_fixes.maintain import sources

HYBRID = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
# The releases that the core changes, and how many of its patches each needs.
AFFECTED = {"0.21.0": 3, "0.22.0": 3, "0.22.1": 3, "0.23.0": 2, "0.24.0": 2}

Source = Callable[[str], Path]
Mrv2 = Callable[..., "subprocess.CompletedProcess[str]"]


def _say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="session")
def published() -> Source:
    """Release number to a folder with its V2 runner as published; not to be changed."""
    return lambda number: sources.folder(number, _say)


@pytest.fixture
def source(published: Source, tmp_path: Path) -> Source:
    """Release number to a copy that the test may change."""

    def copy(number: str) -> Path:
        return shutil.copytree(published(number), tmp_path / number)

    return copy


def git(root: Path, *arguments: str | Path) -> str:
    """What git prints in `root`, whatever the settings are of who runs the tests."""
    identity = ("-c", "user.name=A Fork", "-c", "user.email=fork@example.org")
    return subprocess.run(
        ["git", "-C", root, *identity, *arguments],
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.rstrip("\n")


def commit_release(root: Path, number: str) -> Path:
    """Make what is in `root` the next commit of the git repository there, with a release's tag."""
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", f"vLLM {number}")
    git(root, "tag", f"v{number}")
    return root


def clone_of(root: Path, into: Path) -> Path:
    """A git clone whose HEAD is what the folder of a published release holds."""
    return commit_release(shutil.copytree(root, into / "clone"), root.name)


@pytest.fixture
def mrv2(tmp_path: Path) -> Mrv2:
    """Run the command as a user does, in an empty folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def run(
        *arguments: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("mrv2"), *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    return run
