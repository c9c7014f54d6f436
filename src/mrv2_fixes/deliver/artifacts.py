"""What `mrv2 build` leaves in `dist/<release>/`: .patch files, a git bundle, of a wheel the patched
one, checksums."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrv2_fixes import git, series
from mrv2_fixes.deliver import commits, wheel
from mrv2_fixes.errors import WrongCall
from mrv2_fixes.plan import Plan, Step
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
    """Write the commits of `plan`, and its wheel, into `output/<release>/`: whole or not at all.

    Nothing is written when the base needs no patch. Raises WrongCall when something else than an
    earlier build stands there, GitError when git fails, OSError when there is no room, and what
    `wheel.patched` does.
    """
    needed = plan.needed()
    output = output.resolve()
    name = commits.base_name(plan, target)
    if not needed:
        return Built((), f"{target.where}: nothing to build: {commits.states(plan)}")
    who = commits.identity(Path.cwd())
    final = output / name
    with replacing(final) as out:
        patched = wheel.patched(plan, target, series.load(), progress)
        kept = {patched.name} if patched else set()
        going = sorted({path.name for path in final.glob("*.whl")} - kept)
        gone = f"; with the earlier build goes {', '.join(going)}" if going else ""
        progress(f"writing the commits for {name}: {len(needed)}{gone}")
        write_commits(out, name, commits.branch_name(name), plan, who, cover_letter=True)
        if patched:
            progress(f"writing {patched.name}")
            patched.write(out)
    return Built(tuple(sorted(final.iterdir())), "" if who.known else commits.UNSIGNED)


@contextlib.contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """An empty folder that stands at `final`, with checksums, once the block has filled it.

    A block that raises leaves all as it was. Raises WrongCall when something else than an earlier
    build stands there.
    """
    _check_replaceable(final)
    output = final.parent
    new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as on_failure, tempfile.TemporaryDirectory(dir=output) as temporary:
        if new:
            on_failure.callback(output.rmdir)
        out = Path(temporary) / "out"
        out.mkdir()
        yield out
        _sums(out)
        if final.exists():
            final.rename(Path(temporary) / "earlier")
        out.rename(final)
        on_failure.pop_all()


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


def write_commits(
    out: Path,
    name: str,
    branch: str,
    plan: Plan,
    who: commits.Identity,
    *,
    cover_letter: bool = False,
) -> None:
    """Write the commits of `plan` into `out`, as .patch files and a bundle with the branch.

    name: of the base. The bundle has the touched files of it as the branch `base`.
    """
    with tempfile.TemporaryDirectory(dir=out.parent) as temporary:
        repository = Path(temporary)
        git.run("init", "--quiet", "--bare", folder=repository, env=NEUTRAL)
        # A base of the touched files alone: their blobs are those of a real clone, so that
        # `git am -3` finds them there.
        commits.write_base(repository, BASE, plan.before, f"vLLM {name}: the files that change\n")
        base = git.run("rev-parse", BASE, folder=repository).decode().strip()
        needed = plan.needed()
        commits.write(repository, branch, base, needed, who, {})
        letter = _cover_letter(repository, branch, name, needed) if cover_letter else ()
        _patch_files(repository, branch, out, letter)
        git.run(
            *("-c", "pack.threads=1", "bundle", "create", "--quiet"),
            *(str(out / f"{branch}.bundle"), branch, BASE),
            folder=repository,
            env=NEUTRAL,
        )


def _sums(out: Path) -> None:
    """Write what `sha256sum --check` reads."""
    sums = []
    for path in sorted(out.iterdir()):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):  # a wheel is larger than what one likes in memory
                digest.update(chunk)
        sums.append(f"{digest.hexdigest()}  {path.name}\n")
    (out / SUMS).write_text("".join(sums))


def _cover_letter(
    repository: Path, branch: str, name: str, needed: Sequence[Step]
) -> tuple[str, ...]:
    """What makes `git format-patch` write one, about the commits of `branch`."""
    lines = []
    for step in needed:
        origin = step.patch.header.origin
        lines.append(f"- {step.patch.slug}" + (f" ({origin})" if origin else ""))
    description = f"Model Runner V2 fixes for vLLM {name}\n\n" + "\n".join(lines)
    git.run("config", f"branch.{branch}.description", description, folder=repository)
    git.run("symbolic-ref", "HEAD", f"refs/heads/{branch}", folder=repository)
    return "--cover-letter", "--cover-from-description=subject"


def _patch_files(repository: Path, branch: str, out: Path, letter: Sequence[str]) -> None:
    committer = git.run(
        *("log", "-1", "--format=%cn%x00%ce%x00%cd", "--date=raw", branch), folder=repository
    )
    who, email, date = committer.decode().strip().split("\0")
    git.run(
        *("format-patch", "--quiet", "--full-index", "--no-signature", *letter),
        *("-o", str(out), f"{BASE}..{branch}"),
        folder=repository,
        env={
            **NEUTRAL,
            "GIT_COMMITTER_NAME": who,
            "GIT_COMMITTER_EMAIL": email,
            "GIT_COMMITTER_DATE": date,
        },
    )
    if letter:
        # `git am *.patch` takes every file of that name, and a cover letter is no patch.
        (out / "0000-cover-letter.patch").rename(out / "cover-letter.txt")
