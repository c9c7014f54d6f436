"""What the tests of the program share: the real files of the published releases."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2_fixes.maintain import sources

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
