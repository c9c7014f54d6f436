"""What `mrv2 build` leaves: commits that go on a real clone, and the same bytes every time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from mrv2_fixes import plan, series
from mrv2_fixes.targets import folder

from .conftest import AFFECTED, Mrv2, Source, clone_of, git

pytestmark = pytest.mark.releases

IDENTITY = {"GIT_AUTHOR_NAME": "Ada Byron", "GIT_AUTHOR_EMAIL": "ada@example.org"}
NOBODY = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def build(
    mrv2: Mrv2, root: Path, tmp_path: Path, *, options: Sequence[str] = (), **env: str
) -> Path:
    done = mrv2("build", root, *options, env={**os.environ, **IDENTITY, **env})
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "elsewhere" / "dist").iterdir()
    return built


@pytest.mark.parametrize("release", AFFECTED)
def test_patch_files_go_on_with_plain_git_am(
    published: Source, mrv2: Mrv2, tmp_path: Path, release: str
) -> None:
    built = build(mrv2, published(release), tmp_path)
    patches = sorted(built.glob("*.patch"))
    assert built.name == release
    assert len(patches) == AFFECTED[release]
    clone = clone_of(published(release), tmp_path)
    git(clone, "am", *patches)
    made = plan.make(series.load().core, folder.Files(published(release)))
    assert {path: (clone / path).read_bytes() for path in made.after} == made.after


def test_commits_are_vllms_in_style(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    """Bracketed title, who git says commits, signed off; no file but the patch's own."""
    built = build(mrv2, published("0.22.1"), tmp_path)
    clone = clone_of(published("0.22.1"), tmp_path)
    # Plain `git am` takes brackets in front of a subject for those of a mail.
    git(clone, "am", "--keep-non-patch", *sorted(built.glob("*.patch")))
    for patch, commit in zip(
        reversed(series.load().core), git(clone, "rev-list", "-3", "HEAD").split(), strict=True
    ):
        form = "%s%n%an <%ae>%n%(trailers:key=Signed-off-by,valueonly)"
        shown = git(clone, "show", "--name-only", f"--format={form}", commit).split("\n")
        subject, author, signed, *files = filter(None, shown)
        assert subject == patch.header.title
        assert author == signed == "Ada Byron <ada@example.org>"
        assert set(files) >= set(patch.header.touches)
        assert set(files) <= {*patch.header.touches, *patch.header.adds}


def test_each_commit_brings_the_tests_of_its_fix(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    built = build(mrv2, published("0.22.1"), tmp_path)
    clone = clone_of(published("0.22.1"), tmp_path)
    for patch, file in zip(series.load().core, sorted(built.glob("*.patch")), strict=True):
        git(clone, "am", file)
        for path in patch.header.adds:
            assert (clone / path).read_bytes() == (series.load().root / path).read_bytes()
        for reproducer in patch.header.reproducers:
            assert (clone / reproducer.test.partition("::")[0]).exists()


def test_the_bundle_holds_the_same_commits(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    built = build(mrv2, published("0.22.1"), tmp_path)
    clone = clone_of(published("0.22.1"), tmp_path)
    git(clone, "fetch", "-q", next(built.glob("*.bundle")), "+refs/heads/*:refs/fixes/*")
    git(clone, "cherry-pick", "fixes/base..fixes/mrv2-fixes-0.22.1")
    by_pick = git(clone, "rev-parse", "HEAD^{tree}")
    git(clone, "reset", "-q", "--hard", "HEAD~3")
    git(clone, "am", *sorted(built.glob("*.patch")))
    assert git(clone, "rev-parse", "HEAD^{tree}") == by_pick


def test_the_cover_letter_names_origins_where_there_are_some(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    built = build(mrv2, published("0.32.0"), tmp_path, options=["--series", "all"])
    letter = (built / "cover-letter.txt").read_text().splitlines()
    assert "- draft-model-metadata-bounds" in letter
    assert any(line.startswith("- check-attn-metadata (the faults of") for line in letter)


def test_building_twice_gives_the_same_bytes(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    first = build(mrv2, published("0.24.0"), tmp_path)
    digests = {path.name: path.read_bytes() for path in first.iterdir()}
    # What must not matter: the user's own git settings, the zone and the clock's date.
    (tmp_path / "gitconfig").write_text(
        "[format]\nsignature = mine\nsubjectPrefix = RFC\n[diff]\nnoprefix = true\ncontext = 9\n"
        "[core]\nabbrev = 12\nautocrlf = true\n[pack]\nthreads = 2\n[commit]\ngpgSign = true\n"
    )
    settings = {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"), "TZ": "Asia/Tokyo"}
    again = build(mrv2, published("0.24.0"), tmp_path, **settings)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == digests


def test_checksums_are_true(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    built = build(mrv2, published("0.24.0"), tmp_path)
    lines = (built / "SHA256SUMS").read_text().splitlines()
    sums = {line[66:]: line[:64] for line in lines}
    files = {path.name: path.read_bytes() for path in built.iterdir() if path.name != "SHA256SUMS"}
    assert sums == {name: hashlib.sha256(text).hexdigest() for name, text in files.items()}


def test_date_of_gits_environment_is_taken(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    built = build(mrv2, published("0.24.0"), tmp_path, GIT_AUTHOR_DATE="2027-01-02T03:04:05+0100")
    for path in built.glob("*.patch"):
        assert "Date: Sat, 2 Jan 2027 03:04:05 +0100" in path.read_text()


def test_without_an_identity_nothing_is_signed_off(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = mrv2("build", published("0.24.0"), env={**env, **NOBODY})
    assert done.returncode == 0
    assert "not signed off; set user.name and user.email" in done.stderr
    for path in (tmp_path / "elsewhere").rglob("*.patch"):
        assert "Signed-off-by" not in path.read_text()


def test_a_fork_gets_what_it_needs(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    """A clone that has one fix, and other changes of its own, gets the rest of the series."""
    clone = clone_of(published("0.22.1"), tmp_path)
    made = plan.make(series.load().core[:1], folder.read(clone).files)
    for path, text in made.after.items():
        (clone / path).write_bytes(text + b"# of the fork\n")
    git(clone, "commit", "-qam", "ours")
    status = git(clone, "status", "--porcelain")
    built = build(mrv2, clone, tmp_path)
    # Not a release's name: its files are another's.
    assert built.name.startswith("clone-")
    assert len(list(built.glob("*.patch"))) == 2
    assert git(clone, "status", "--porcelain") == status
    git(clone, "am", *sorted(built.glob("*.patch")))


def test_a_repository_in_gits_environment_is_left_alone(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    """As in a hook, or a script around git."""
    clone = clone_of(published("0.24.0"), tmp_path)
    before = git(clone, "for-each-ref") + (clone / ".git" / "config").read_text()
    build(mrv2, published("0.24.0"), tmp_path, GIT_DIR=str(clone / ".git"))
    assert git(clone, "for-each-ref") + (clone / ".git" / "config").read_text() == before


def test_only_an_earlier_build_is_replaced(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    """Not the clone that is read, nor a folder that somebody has put something into."""
    clone = clone_of(published("0.24.0"), tmp_path).rename(tmp_path / "0.24.0")
    done = mrv2("build", clone, "--output", clone.parent)
    assert done.returncode == 2
    assert f"{clone}: holds what no build wrote" in done.stderr
    assert git(clone, "status", "--porcelain") == ""
    built = build(mrv2, published("0.24.0"), tmp_path)
    (built / "notes.txt").write_text("mine")
    assert mrv2("build", published("0.24.0")).returncode == 2
    assert (built / "notes.txt").read_text() == "mine"


def test_a_wheel_that_goes_with_an_earlier_build_is_named(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    built = build(mrv2, published("0.24.0"), tmp_path)
    (built / "vllm-0.24.0+mrv2.1-py3-none-any.whl").touch()
    with (built / "SHA256SUMS").open("a") as sums:
        sums.write("0  vllm-0.24.0+mrv2.1-py3-none-any.whl\n")
    done = mrv2("build", published("0.24.0"))
    assert "with the earlier build goes vllm-0.24.0+mrv2.1-py3-none-any.whl\n" in done.stderr
    assert not list(built.glob("*.whl"))


def test_nothing_to_build_writes_nothing(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    done = mrv2("build", published("0.33.0"))
    assert done.returncode == 0
    assert "nothing to build: batch-max-seq-len upstream, " in done.stderr
    assert not (tmp_path / "elsewhere" / "dist").exists()
