"""Git, run for one answer at a time, whatever the user's settings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mrv2_fixes.errors import Mrv2Error

# What a hook or a script around us may have set, and would lead git to another repository.
ELSEWHERE = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_DEFAULT_HASH"),
)
# What a repository's own settings name is not run, and nothing is fetched for a partial clone.
ALONE = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
OFFLINE = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


class GitError(Mrv2Error):
    """Git is not there, or did not do what it was asked."""


class GitMissing(GitError):
    """Git is not there."""


def run(
    *arguments: str, folder: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> bytes:
    """What `git` prints for `arguments`, run in `folder`.

    env: variables on top of the process's own. Raises GitError with git's own first cause.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    try:
        done = subprocess.run(
            ["git", *ALONE, *arguments],
            cwd=folder,
            input=stdin,
            capture_output=True,
            env={**inherited, "LC_ALL": "C", **OFFLINE, **(env or {})},
            check=False,
        )
    except FileNotFoundError as error:
        raise GitMissing("git is not installed: install it and run this again") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        cause = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
        said = cause[0] if cause else f"ended with {done.returncode} and said nothing"
        raise GitError(f"git {' '.join(arguments[:2])} in {folder}: {said}")
    return done.stdout
