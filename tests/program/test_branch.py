"""What `mrv2 branch` writes into a clone: the commits, and nothing else."""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from mrv2_fixes import plan, series
from mrv2_fixes.deliver import branch as deliver
from mrv2_fixes.git import GitError
from mrv2_fixes.targets import clone as targets
from mrv2_fixes.targets import folder

from .conftest import AFFECTED, HYBRID, Mrv2, Source, commit_release, git

pytestmark = pytest.mark.releases

TINY_MODELS = "tests/v1/worker/tiny_models.py"
ADA = {
    **{f"GIT_{role}_NAME": "Ada Byron" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "ada@example.org" for role in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


@pytest.fixture(autouse=True)
def _as_ada(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ADA.items():
        monkeypatch.setenv(name, value)


Clone = Callable[..., Path]


@pytest.fixture(scope="session")
def repository(published: Source, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Releases to a repository with a tagged commit of each, HEAD at the last; not to be changed.

    object_format: the hash of its ids.
    """

    @cache
    def make(*releases: str, object_format: str = "sha1") -> Path:
        root = tmp_path_factory.mktemp("repository")
        git(root, "init", "-q", "-b", "main", f"--object-format={object_format}")
        for release in releases:
            shutil.rmtree(root / "vllm", ignore_errors=True)
            shutil.copytree(published(release) / "vllm", root / "vllm")
            (root / "README.md").write_text("a fork\n")
            commit_release(root, release)
        return root

    return make


@pytest.fixture
def clone(repository: Clone, tmp_path: Path) -> Clone:
    """The same, to be changed."""

    def copy(*releases: str, object_format: str = "sha1") -> Path:
        made = repository(*releases, object_format=object_format)
        root = shutil.copytree(made, tmp_path / "vllm")
        git(root, "update-index", "-q", "--refresh")  # to git, copies are changed until looked at
        return root

    return copy


def planned(published: Source, release: str) -> plan.Plan:
    return plan.make(series.load().core, folder.Files(published(release)), version=release)


def content(root: Path, commit: str, path: str) -> bytes:
    return subprocess.run(
        ["git", "-C", root, "cat-file", "blob", f"{commit}:{path}"], check=True, capture_output=True
    ).stdout


def state(root: Path) -> dict[Path, bytes]:
    """All of a clone but the objects: work tree, index, settings, references and their logs."""
    return {
        path.relative_to(root): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "objects" not in path.relative_to(root).parts
    }


def written(root: Path, before: dict[Path, bytes]) -> set[str]:
    """What is other than before."""
    after = state(root)
    return {path.as_posix() for path in before | after if before.get(path) != after.get(path)}


def branch_of(root: Path, name: str) -> set[str]:
    """The files in which git keeps a branch."""
    top = ".git/" if (root / ".git").is_dir() else ""
    return {f"{top}refs/heads/{name}"} | (set() if not top else {f"{top}logs/refs/heads/{name}"})


@pytest.mark.parametrize("release", AFFECTED)
def test_one_commit_for_each_needed_patch(
    published: Source, clone: Clone, mrv2: Mrv2, release: str
) -> None:
    """Title, sign-off, the plan's bytes; each fix with its tests, and with what they import."""
    root, name = clone(release), f"mrv2-fixes-{release}"
    before = state(root)
    done = mrv2("branch", root)
    assert done.returncode == 0, done.stderr
    assert written(root, before) == branch_of(root, name)
    git(root, "fsck", "--strict", "--no-dangling")

    made = planned(published, release)
    assert {path: content(root, name, path) for path in made.after} == made.after
    steps = [step for step in made.steps if step.state is plan.State.NEEDED]
    commits = git(root, "rev-list", "--reverse", f"main..{name}").split()
    assert len(commits) == len(steps) == AFFECTED[release]
    for step, commit in zip(steps, commits, strict=True):
        header = step.patch.header
        form = "%s%n%an <%ae>%n%cn <%ce>%n%(trailers:key=Signed-off-by,valueonly)"
        shown = git(root, "show", "--name-only", f"--format={form}", commit).split("\n")
        subject, author, committer, signed, *files = filter(None, shown)
        assert subject == header.title
        assert author == committer == signed == "Ada Byron <ada@example.org>"
        assert set(files) <= {*header.touches, *header.adds}
        there = git(root, "ls-tree", "-r", "--name-only", commit).split("\n")
        for path in header.adds:
            text = content(root, commit, path)
            assert text == (series.load().root / path).read_bytes()
            assert imported_beside(path, text) <= set(there)
        assert {one.test.partition("::")[0] for one in header.reproducers} <= set(there)
        assert f"  {commit[:12]} {header.title}\n" in done.stdout


def imported_beside(path: str, text: bytes) -> set[str]:
    """The modules of our own tests that a test imports."""
    named = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            above = ["", *map(str, PurePosixPath(path).parents)][node.level]
            named.add(str(PurePosixPath(above) / f"{node.module.replace('.', '/')}.py"))
    return {one for one in named if (series.load().root / one).is_file()}


@pytest.mark.parametrize("release", AFFECTED)
def test_its_patch_files_go_on_with_plain_git_am(
    clone: Clone, mrv2: Mrv2, tmp_path: Path, release: str
) -> None:
    root, name = clone(release), f"mrv2-fixes-{release}"
    assert mrv2("branch", root).returncode == 0
    git(root, "format-patch", "-q", "-o", tmp_path / "out", f"main..{name}")
    git(root, "am", "--keep-non-patch", *sorted((tmp_path / "out").iterdir()))
    assert git(root, "rev-parse", "HEAD^{tree}") == git(root, "rev-parse", f"{name}^{{tree}}")
    subjects = "--format=%s", "-3"
    assert git(root, "log", *subjects, "main") == git(root, "log", *subjects, name)


# What `git am -3` makes of a release's patch files on the next release.
NEXT = [
    ("0.21.0", "0.22.0", "goes on"),
    ("0.22.0", "0.22.1", "goes on"),
    # 0.23.0 has the first patch, in files that it has moved.
    ("0.22.1", "0.23.0", "conflict"),
    ("0.23.0", "0.24.0", "goes on"),
    # 0.25.0 has the fix in other words, and git puts a keyword there for the second time.
    ("0.24.0", "0.25.0", "breaks"),
]


@pytest.mark.parametrize(("release", "after", "outcome"), NEXT)
def test_its_patch_files_on_the_next_release(
    published: Source,
    clone: Clone,
    mrv2: Mrv2,
    tmp_path: Path,
    release: str,
    after: str,
    outcome: str,
) -> None:
    """Where they go on, it is to the bytes of that release's own plan."""
    root = clone(release, after)
    assert mrv2("branch", root, "--base", f"v{release}", "--name", "fixes").returncode == 0
    git(root, "format-patch", "-q", "-o", tmp_path / "out", f"v{release}..fixes")
    command = ["git", "-C", str(root), "am", "-3", *map(str, sorted((tmp_path / "out").iterdir()))]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode == 0) == (outcome != "conflict")
    made = planned(published, after)
    if outcome == "goes on":
        assert {path: (root / path).read_bytes() for path in made.after} == made.after
    elif outcome == "breaks":
        assert mrv2("status", root).returncode == 3
    # The way out, and where there is none to take: a branch made for that release.
    if outcome == "conflict":
        git(root, "am", "--abort")
    assert mrv2("branch", root, "--base", f"v{after}", "--name", "anew").returncode == 0
    assert bool(git(root, "branch", "--list", "anew")) == bool(made.after)
    for path in made.after:
        assert content(root, "anew", path) == made.after[path]


def bare(root: Path) -> Path:
    git(root, "clone", "-q", "--bare", root, root.parent / "bare.git")
    return root.parent / "bare.git"


def worktree(root: Path) -> Path:
    git(root, "worktree", "add", "-q", "--detach", root.parent / "linked")
    return root.parent / "linked"


def shallow(root: Path) -> Path:
    git(root, "clone", "-q", "--depth=1", f"file://{root}", root.parent / "shallow")
    return root.parent / "shallow"


def sparse(root: Path) -> Path:
    git(root, "sparse-checkout", "set", "--no-cone", "/docs")
    assert not (root / HYBRID).exists()
    return root


def partial(root: Path) -> Path:
    """Without the blobs of older commits, and no way to get them."""
    git(root, "config", "uploadpack.allowFilter", "true")
    git(root, "clone", "-q", "--filter=blob:none", f"file://{root}", root.parent / "partial")
    git(root.parent / "partial", "remote", "set-url", "origin", "file:///nowhere")
    return root.parent / "partial"


def with_settings(root: Path) -> Path:
    """With all that git would run, or would change what is written."""
    spy = root.parent / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {root.parent}/ran\ncat\n")
    spy.chmod(0o755)
    for hook in ("reference-transaction", "pre-commit", "post-commit", "commit-msg", "update"):
        (root / ".git" / "hooks").mkdir(exist_ok=True)
        shutil.copy(spy, root / ".git" / "hooks" / hook)
    (root / ".gitattributes").write_text("*.py filter=spy ident\n")
    for name in ("core.fsmonitor", "core.pager", "gpg.program", "filter.spy.clean", "core.editor"):
        git(root, "config", name, str(spy))
    for name in ("commit.gpgSign", "log.showSignature", "core.autocrlf", "filter.spy.required"):
        git(root, "config", name, "true")
    git(root, "config", "i18n.commitEncoding", "latin1")
    os.utime(root / HYBRID)
    (root.parent / "ran").unlink(missing_ok=True)
    return root


def not_checked_out(root: Path) -> Path:
    git(root, "clone", "-q", "--no-checkout", root, root.parent / "no-work-tree")
    return root.parent / "no-work-tree"


KINDS = [bare, worktree, shallow, sparse, partial, not_checked_out, with_settings]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_of_a_clone_changes(
    published: Source, clone: Clone, mrv2: Mrv2, tmp_path: Path, kind: Callable[[Path], Path]
) -> None:
    """Neither it nor its neighbours, and nothing is run that they name."""
    name = "mrv2-fixes-0.24.0"
    root = kind(clone("0.24.0"))
    before = state(tmp_path)
    done = mrv2("branch", root)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
    assert "changes" not in done.stderr
    assert {path for path in written(tmp_path, before) if f"refs/heads/{name}" not in path} == set()
    made = planned(published, "0.24.0")
    assert {path: content(root, name, path) for path in made.after} == made.after
    if kind is not partial:
        git(root, "fsck", "--strict", "--no-dangling")


def test_a_repository_of_longer_ids(published: Source, clone: Clone, mrv2: Mrv2) -> None:
    root = clone("0.24.0", object_format="sha256")
    (root / HYBRID).touch()
    done = mrv2("branch", root)
    assert done.returncode == 0, done.stderr
    assert "changes" not in done.stderr
    assert len(git(root, "rev-parse", "mrv2-fixes-0.24.0")) == 64
    made = planned(published, "0.24.0")
    assert {path: content(root, "mrv2-fixes-0.24.0", path) for path in made.after} == made.after


def test_a_file_keeps_its_mode(clone: Clone, mrv2: Mrv2) -> None:
    root = clone("0.24.0")
    (root / HYBRID).chmod(0o755)
    git(root, "commit", "-qam", "executable")
    assert mrv2("branch", root).returncode == 0
    assert git(root, "ls-tree", "mrv2-fixes-0.24.0", HYBRID).startswith("100755 ")


def commit(root: Path, path: str, text: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text.encode() if isinstance(text, str) else text)
    git(root, "add", "-f", path)
    git(root, "commit", "-qm", "of the fork")


def existing(root: Path) -> Path:
    git(root, "branch", "mrv2-fixes-0.24.0")
    return root


def existing_below(root: Path) -> Path:
    git(root, "branch", "mrv2-fixes-0.24.0/mine")
    return root


def neighbour(root: Path) -> Path:
    git(root, "branch", "fixes/one")
    return root


def switched(root: Path) -> Path:
    git(root, "switch", "-q", "-c", "other")
    git(root, "switch", "-q", "main")
    return root


def drifted(root: Path) -> Path:
    text = (root / HYBRID).read_text()
    commit(root, HYBRID, text.replace("if not for_capture:", "if not for_capture and self.on:"))
    return root


def another_test(root: Path) -> Path:
    commit(root, TINY_MODELS, "mine\n")
    return root


def subfolder(root: Path) -> Path:
    return root / "vllm"


def no_clone(root: Path) -> Path:
    shutil.rmtree(root / ".git")
    return root


def broken_clone_in_a_clone(root: Path) -> Path:
    (root / "fork" / ".git").mkdir(parents=True)
    return root / "fork"


def without_commits(root: Path) -> Path:
    git(root, "init", "-q", root.parent / "new")
    return root.parent / "new"


def without_blobs(root: Path) -> Path:
    git(root, "config", "uploadpack.allowFilter", "true")
    where = root.parent / "partial"
    git(root, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{root}", where)
    return where


ANSWERS = [
    (existing, (), 2, "/vllm branch -D mrv2-fixes-0.24.0"),
    (existing, ("--name", "main"), 2, "there is a branch main: give another --name\n"),
    (existing_below, (), 2, "there is a branch mrv2-fixes-0.24.0/mine, and git keeps no branch"),
    (neighbour, ("--name", "fixes"), 2, "there is a branch fixes/one, and "),
    (neighbour, ("--name", "fixes/one"), 2, "there is a branch fixes/one: give another --name\n"),
    (neighbour, ("--name", "fixes/one/two"), 2, "there is a branch fixes/one, and "),
    (existing, ("--name", "a..b"), 2, "git takes no branch of that name"),
    (existing, ("--name", "-b"), 2, "git takes no branch of that name"),
    (existing, ("--name", "HEAD"), 2, "git takes no branch of that name"),
    (switched, ("--name", "@{-1}"), 2, "git takes no branch of that name"),
    (existing, ("--name", ""), 2, "git takes no branch of that name"),
    (existing, ("--base", "nowhere"), 2, "no commit 'nowhere' there: fetch it"),
    (existing, ("--base", "v0.24.0:vllm"), 2, "no commit 'v0.24.0:vllm' there"),
    (existing, ("--base", ""), 2, "no commit '' there"),
    (drifted, (), 3, f"gate-speculative-tensors: drifted: {HYBRID}: "),
    (drifted, (), 3, "/vllm shows all, --patch forward-seq-lens-cpu-upper-bound takes one"),
    (drifted, ("--base", "main"), 3, "nothing is changed; --patch forward-seq-lens-"),
    (another_test, (), 3, f"{TINY_MODELS}: another file of that name is in "),
    (subfolder, (), 4, "/vllm: a folder inside the clone "),
    (no_clone, (), 4, "not a git clone; `mrv2 diff` and `mrv2 build` take any vLLM"),
    (broken_clone_in_a_clone, (), 4, "/fork: not a git clone that can be read"),
    (without_commits, (), 4, "no commit to read"),
    (without_blobs, (), 4, "git cat-file "),
    (lambda root: root / "nowhere", (), 4, "no such folder: name a git clone"),
    (lambda root: root / "README.md", (), 4, "no such folder: name a git clone"),
]


@pytest.mark.parametrize(("prepare", "options", "status", "says"), ANSWERS)
def test_what_cannot_be_written_is_named(
    clone: Clone,
    mrv2: Mrv2,
    tmp_path: Path,
    prepare: Callable[[Path], Path],
    options: tuple[str, ...],
    status: int,
    says: str,
) -> None:
    """In one line, and nothing is changed."""
    root = prepare(clone("0.24.0"))
    before = state(tmp_path)
    done = mrv2("branch", root, *options)
    assert done.returncode == status, done
    assert says in done.stderr.splitlines(keepends=True)[-1]
    assert done.stdout == ""
    assert state(tmp_path) == before


def dirty(root: Path) -> Path:
    (root / "README.md").write_text("not committed\n")
    return root


def deleted(root: Path) -> Path:
    (root / "README.md").unlink()
    return root


def staged(root: Path) -> Path:
    (root / "README.md").write_text("not committed\n")
    git(root, "add", "README.md")
    (root / "README.md").write_text("a fork\n")
    return root


def shallow_fork(root: Path) -> Path:
    git(root, "tag", "-d", "v0.24.0")
    fork(root)
    return shallow(root)


def fork(root: Path) -> Path:
    """One that has the first of the needed patches, and a change of its own beside it."""
    made = plan.make(series.load().core[:2], folder.Files(root))
    for path, text in made.after.items():
        commit(root, path, text + b"# of the fork\n")
    for path in series.load().core[1].header.adds:
        commit(root, path, (series.load().root / path).read_bytes())
    return root


def newer(root: Path) -> Path:
    made = plan.make(series.load().core, folder.Files(root))
    for path, text in made.after.items():
        commit(root, path, text)
    return root


def on_another_base(root: Path) -> Path:
    """The work tree has changes, and they are no changes of the base."""
    commit(root, HYBRID, "gone\n")
    git(root, "tag", "-f", "here")
    return dirty(root)


SAID = [
    (dirty, (), 2, "; the work tree has changes that this does not see"),
    (deleted, (), 2, "; the work tree has changes that this does not see"),
    (staged, (), 2, "; the work tree has changes that this does not see"),
    (fork, (), 1, "(unknown base: it says 0.24.0, "),
    (shallow_fork, (), 1, "a shallow clone, with no tag that says which release this is"),
    (newer, (), 0, "no branch to write: batch-max-seq-len upstream, "),
    (newer, (), 0, "; --series all takes those that are opt-in too"),
    (on_another_base, ("--base", "v0.24.0"), 2, "read at v0.24.0, "),
    (existing, ("--name", "mine"), 2, "mine, on "),
    (neighbour, ("--name", "fixes/two"), 2, "fixes/two, on "),
    (neighbour, ("--name", "fixes/on"), 2, "fixes/on, on "),
    (existing, ("--name", "mine", "--patch", "forward-seq-lens-cpu-upper-bound"), 1, "mine, on "),
]


@pytest.mark.parametrize(("prepare", "options", "commits", "says"), SAID)
def test_what_a_reader_must_know_is_said(
    clone: Clone,
    mrv2: Mrv2,
    prepare: Callable[[Path], Path],
    options: tuple[str, ...],
    commits: int,
    says: str,
) -> None:
    root = prepare(clone("0.24.0"))
    there = set(git(root, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())
    done = mrv2("branch", root, *options)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout + done.stderr
    assert ("has changes" in done.stderr) == ("has changes" in says)
    branches = git(root, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    assert len(set(branches) - there) == bool(commits)
    for name in set(branches) - there:
        base = "v0.24.0" if "--base" in options else "HEAD"
        assert git(root, "rev-list", "--count", f"{base}..{name}") == str(commits)
        assert git(root, "merge-base", name, base) == git(root, "rev-parse", f"{base}^{{commit}}")


def test_without_an_identity_nothing_is_signed_off(
    clone: Clone, mrv2: Mrv2, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = clone("0.24.0")
    for name in ADA:
        if not name.startswith("GIT_CONFIG"):
            monkeypatch.delenv(name)
    done = mrv2("branch", root)
    assert done.returncode == 0
    assert "the commits are by unknown and not signed off" in done.stderr
    assert "Signed-off-by" not in git(root, "log", "--format=%B", "mrv2-fixes-0.24.0")
    # The clone's own settings say who commits there.
    git(root, "config", "user.name", "Grace")
    git(root, "config", "user.email", "grace@example.org")
    assert mrv2("branch", root, "--name", "signed").returncode == 0
    assert "Signed-off-by: Grace <grace@example.org>" in git(root, "log", "-1", "signed")


# In the place of git: what `git fast-import` is given ends early.
WRAPPER = """#!/bin/sh
case " $* " in
  *" fast-import "*) cat > "$STREAM" ;;
  *) exec {git} "$@" ;;
esac
if [ "$END" = closed ]; then head -c "$CUT" "$STREAM" | exec {git} "$@"; exit; fi
mkfifo "$STREAM.pipe"
{git} "$@" < "$STREAM.pipe" &
exec 3> "$STREAM.pipe"
head -c "$CUT" "$STREAM" >&3
kill -9 $!
wait $!
"""


@pytest.mark.parametrize("end", ["closed", "kill"])
def test_a_run_that_is_cut_off_leaves_the_branch_whole_or_not_there(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """closed: as when `mrv2` is killed; kill: as when git is. At each commit, and in between."""
    root, real = clone("0.24.0"), shutil.which("git")
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "git"
    wrapper.write_text(WRAPPER.format(git=real))
    wrapper.chmod(0o755)
    monkeypatch.setenv("STREAM", str(tmp_path / "stream"))
    monkeypatch.setenv("END", "closed")
    monkeypatch.setenv("CUT", str(1 << 30))
    target = targets.read(root)
    made = plan.make(series.load().core, target.files, version=target.version)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    whole = deliver.write(made, target, "whole").commits[-1][0]

    stream = (tmp_path / "stream").read_bytes()
    starts = [found.start() for found in re.finditer(rb"^(?:commit refs|from|done)", stream, re.M)]
    drawn = random.Random(0).sample(range(len(stream)), 12)
    monkeypatch.setenv("END", end)
    for cut in sorted({0, *starts, *drawn}):
        (tmp_path / "stream.pipe").unlink(missing_ok=True)
        monkeypatch.setenv("CUT", str(cut))
        with pytest.raises(GitError):
            deliver.write(made, target, "short")
        assert git(root, "for-each-ref", "refs/heads/short") == ""
    (tmp_path / "stream.pipe").unlink(missing_ok=True)
    monkeypatch.setenv("CUT", str(len(stream)))
    with contextlib.suppress(GitError):  # git may be killed before or after it has written it
        deliver.write(made, target, "short")
    assert git(root, "for-each-ref", "--format=%(objectname)", "refs/heads/short") in ("", whole)
    git(root, "fsck", "--strict", "--no-dangling")


def test_several_at_once_write_it_once(published: Source, clone: Clone, mrv2: Mrv2) -> None:
    root = clone("0.24.0")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: mrv2("branch", root), range(4)))
    assert 0 in {one.returncode for one in done}
    for one in done:
        assert one.returncode == 0 or "mrv2-fixes-0.24.0" in one.stderr.splitlines()[-1]
    assert git(root, "rev-list", "--count", "main..mrv2-fixes-0.24.0") == "2"
    made = planned(published, "0.24.0")
    assert {path: content(root, "mrv2-fixes-0.24.0", path) for path in made.after} == made.after
