"""What `mrv2 build` leaves in `dist/<release>/`: .patch files, a git bundle, checksums."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mrv2_fixes import git, known, series
from mrv2_fixes.deliver import commits
from mrv2_fixes.errors import WrongCall
from mrv2_fixes.plan import Plan, State, Step
from mrv2_fixes.targets import Target

BASE = "base"
SUMS = "SHA256SUMS"
# Nothing of the user's own git settings but who commits may change a byte.
NEUTRAL = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_DATE": "0 +0000",
    "GIT_COMMITTER_DATE": "0 +0000",
}


@dataclass(frozen=True)
class Built:
    """The files written, and one line that a reader must know, or empty."""

    files: tuple[Path, ...]
    note: str


def build(plan: Plan, target: Target, output: Path, progress: Callable[[str], None]) -> Built:
    """Write the commits of `plan` into `output/<release>/`, whole or not at all.

    Nothing is written when the base needs no patch. Raises WrongCall when something else than an
    earlier build stands there, GitError when git fails, OSError when there is no room.
    """
    needed = [step for step in plan.steps if step.state is State.NEEDED]
    output = output.resolve()
    name = plan.release or _name(plan, target)
    if not needed:
        states = ", ".join(f"{step.patch.slug} {step.state.value}" for step in plan.steps)
        return Built((), f"{target.where}: nothing to build: {states}")
    who = commits.identity(Path.cwd())
    final = output / name
    _check_replaceable(final)
    progress(f"writing the commits for {name}: {len(needed)}")
    new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as on_failure, tempfile.TemporaryDirectory(dir=output) as temporary:
        if new:
            on_failure.callback(output.rmdir)
        scratch = Path(temporary)
        (scratch / "repository").mkdir()
        (scratch / "out").mkdir()
        _artifacts(scratch / "repository", scratch / "out", name, plan, needed, who)
        if final.exists():
            shutil.rmtree(final)
        (scratch / "out").rename(final)
        on_failure.pop_all()
    note = (
        ""
        if who.known
        else (
            "git does not say who commits: the commits are by unknown and not signed off; "
            "set user.name and user.email and build again before you send them to others"
        )
    )
    return Built(tuple(sorted(final.iterdir())), note)


def _name(plan: Plan, target: Target) -> str:
    """A name of its own for a base that is no release: the target's, and what its files are."""
    content = b"\0".join(text for _, text in sorted(plan.before.items()))
    stem = re.sub(r"[^A-Za-z0-9._-]+|^[.-]+", "", Path(target.where).resolve().name) or "vllm"
    return f"{stem}-{known.digest(content)[:8]}"


def _check_replaceable(folder: Path) -> None:
    """Raise WrongCall unless `folder` is not there, or holds an earlier build and nothing else."""
    if not folder.exists() and not folder.is_symlink():
        return
    listed = set()
    if (folder / SUMS).is_file() and not folder.is_symlink():
        lines = (folder / SUMS).read_text(errors="replace").splitlines()
        listed = {SUMS, *(line.partition("  ")[2] for line in lines)}
    if not listed or {path.name for path in folder.iterdir()} != listed:
        raise WrongCall(f"{folder}: holds what no build wrote: move it, or name another --output")


def _artifacts(
    repository: Path, out: Path, name: str, plan: Plan, needed: list[Step], who: commits.Identity
) -> None:
    branch = f"mrv2-fixes-{name}"
    git.run("init", "--quiet", "--bare", folder=repository, env=NEUTRAL)
    # A base of the touched files alone: their blobs are those of a real clone, so that
    # `git am -3` finds them there.
    commits.write_base(repository, BASE, plan.before, f"vLLM {name}: the files that change\n")
    base = git.run("rev-parse", BASE, folder=repository).decode().strip()
    commits.write(repository, branch, base, needed, series.load().root, who)
    _patch_files(repository, branch, out, name, needed)
    git.run(
        *("-c", "pack.threads=1", "bundle", "create", "--quiet"),
        *(str(out / f"{branch}.bundle"), branch, BASE),
        folder=repository,
        env=NEUTRAL,
    )
    sums = [f"{known.digest(path.read_bytes())}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / SUMS).write_text("".join(sums))


def _patch_files(repository: Path, branch: str, out: Path, name: str, needed: list[Step]) -> None:
    description = f"Model Runner V2 fixes for vLLM {name}\n\n" + "\n".join(
        f"- {step.patch.slug} ({step.patch.header.origin})" for step in needed
    )
    git.run("config", f"branch.{branch}.description", description, folder=repository)
    git.run("symbolic-ref", "HEAD", f"refs/heads/{branch}", folder=repository)
    committer = git.run("log", "-1", "--format=%cn%x00%ce%x00%cd", "--date=raw", folder=repository)
    who, email, date = committer.decode().strip().split("\0")
    git.run(
        *("format-patch", "--quiet", "--full-index", "--no-signature", "--cover-letter"),
        *("--cover-from-description=subject", "-o", str(out), f"{BASE}..{branch}"),
        folder=repository,
        env={
            **NEUTRAL,
            "GIT_COMMITTER_NAME": who,
            "GIT_COMMITTER_EMAIL": email,
            "GIT_COMMITTER_DATE": date,
        },
    )
    # `git am *.patch` takes every file of that name, and a cover letter is no patch.
    (out / "0000-cover-letter.patch").rename(out / "cover-letter.txt")
