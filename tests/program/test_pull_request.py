"""`mrv2 build --pull-request`: what goes to vLLM, and that it says only what was seen."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mrv2_fixes import cli, engine, known, plan, series, verify
from mrv2_fixes.deliver import pull_request
from mrv2_fixes.errors import Mrv2Error
from mrv2_fixes.targets import clone as targets
from mrv2_fixes.verify import Cell, Result, Side

from . import sdist, wheels
from .conftest import Mrv2, Source, clone_of, commit_release, git
from .test_readme import SUBMIT

SLUG = "draft-model-metadata-bounds"
PATCH = series.load().patch(SLUG)
NEWEST = [*known.releases()][-1]
SPECULATOR = PATCH.header.touches[1]
IDENTITY = {"GIT_AUTHOR_NAME": "Ada Byron", "GIT_AUTHOR_EMAIL": "ada@example.org"}
VERSIONS = {"python": "3.11.7", "vllm": "0.32.0+cpu"}
WITHOUT = """\
tests/v1/test_a.py:9: in test_b
    assert 5 == length
E   AssertionError: a bound below the length
E   assert 5 == 6
E    +  where 6 = <Sequence at 0x7f0000000000>.length"""
WITH = "1 passed, 2 warnings in 19.02s"


def side(result: Result, output: str, *patches: str, lifted: str = "") -> Side:
    seen = "tests/v1/test_a.py:9: assert 5 == 6" if result is not Result.PASSES else ""
    return Side(result, patches, 20.0, seen, VERSIONS, (lifted,) if lifted else (), output)


def cell(
    without: Side, with_: Side, release: str = "0.32.0", test: str = "tests/v1/test_a.py::test_b[c]"
) -> Cell:
    return Cell(
        SLUG, release, test, without.result, with_.result, 40.0, "2026-11-30T21:00:00+00:00", "",
        (without, with_),
    )  # fmt: skip


FAILS, PASSES = side(Result.FAILS, WITHOUT), side(Result.PASSES, WITH, SLUG)
PROVEN = cell(FAILS, PASSES)
HEADER = msgspec.structs.replace(
    PATCH.header,
    title="[Bugfix][Model Runner V2] Count it",
    description="The engine ends\nwith\n\n    assert seq_lens\n    AssertionError\n\nCount it.\n",
)
WHOLE = """\
[Bugfix][Model Runner V2] Count it

## Purpose

The engine ends with

    assert seq_lens
    AssertionError

Count it.

## Test Plan

Its tests are in the branch. Without the change (the tests alone) and with it:

```bash
pytest \\
  'tests/v1/test_a.py::test_b[c]'
```

## Test Result

vLLM 0.32.0 as published, without the change:

```text
tests/v1/test_a.py:9: in test_b
    assert 5 == length
E   AssertionError: a bound below the length
E   assert 5 == 6
```

With the change:

```text
1 passed, 2 warnings in 19.02s
```

Run on 2026-11-30 on a CPU, with vLLM's build for it, Triton's interpreter and no conftest: \
python 3.11.7, vllm 0.32.0+cpu.

Not run: the base of the branch, vLLM 0.33.0; anything on a GPU.

## Checklist

- [x] What is wrong, where it shows, and what changes
- [x] The command that shows it
- [x] What that printed, without the change and with it
- [ ] Open issues and pull requests were searched for the same
- [ ] Documentation and release notes need nothing, or have it

AI assistance: **to be completed by the author: whether tools helped, and which**
"""


def text(base: str, *cells: Cell, subjects: int = 1, **header: str) -> str:
    changed = msgspec.structs.replace(HEADER, **header)
    patch = msgspec.structs.replace(PATCH, header=changed)
    return pull_request.text(patch, ["[Bugfix] One", "[Bugfix] Two"][:subjects], base, cells)


def test_the_text_of_a_pull_request() -> None:
    assert text("vLLM 0.33.0", PROVEN) == WHOLE


SECOND = "tests/v1/test_a.py::test_d"
REQUIRED = cell(side(Result.FAILS, WITHOUT, "other-patch"), PASSES)
LIFTED = cell(side(Result.FAILS, WITHOUT, lifted="hybrid/mamba models"), PASSES)
# What is given, a line that is there then, and one that is not.
CASES: list[tuple[str, str, str, str]] = [
    ("what was run is the base", text("vLLM 0.32.0", PROVEN), "Not run: anything on a GPU.",
     "the base of the branch"),
    ("a clone is not the release whose files it has", text("commit 0123456789ab", PROVEN),
     "Not run: the base of the branch, commit 0123456789ab; anything on a GPU.", "vLLM 0.33.0"),
    ("two that ran together", text("vLLM 0.33.0", PROVEN, cell(FAILS, PASSES, test=SECOND)),
     f"  'tests/v1/test_a.py::test_b[c]' \\\n  {SECOND}\n```",
     f"{WITH}\n\n{WITH}"),
    ("two that ran apart",
     text("vLLM 0.33.0", PROVEN, cell(FAILS, side(Result.PASSES, "2 passed in 3s"), test=SECOND)),
     f"{WITH}\n\n2 passed in 3s\n", "2 failed"),
    ("one that was run with another patch in", text("vLLM 0.33.0", REQUIRED),
     "vLLM 0.32.0 as published with other-patch, without the change:", "as published, without"),
    ("a refusal that was lifted", text("vLLM 0.33.0", LIFTED),
     "its refusal of hybrid/mamba models at configuration lifted, without the change:",
     "as published, without"),
    ("a commit that has to come first", text("vLLM 0.33.0", PROVEN, subjects=2),
     "1. [Bugfix] One\n2. [Bugfix] Two\n", "Related"),
    ("where it comes from", text("vLLM 0.33.0", PROVEN, origin="vllm-project/vllm#1"),
     "\nRelated: vllm-project/vllm#1\n", "Differs"),
    ("what is done in another way", text("vLLM 0.33.0", PROVEN, differs_from_upstream="One\nline."),
     "\nDiffers from that: One line.\n", "Related"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "there", "absent"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_it_says_what_was_run_and_on_what(given: str, there: str, absent: str) -> None:
    assert there in given
    assert absent not in given


@pytest.mark.parametrize(
    ("without", "with_"), [("", WITH), (WITHOUT, ""), (WITHOUT, "[rank0]: what a library says")]
)
def test_what_was_not_seen_printed_is_not_said(without: str, with_: str) -> None:
    silent = cell(side(Result.FAILS, without), side(Result.PASSES, with_))
    with pytest.raises(pull_request.NotProven):
        text("vLLM 0.33.0", PROVEN, silent)


def of_newest(published: Source, into: Path) -> Path:
    return clone_of(published(NEWEST), into)


def of_older(published: Source, into: Path) -> Path:
    return clone_of(published("0.24.0"), into)


def with_the_fix(published: Source, into: Path) -> Path:
    clone = of_newest(published, into)
    for path, content in plan.make([PATCH], targets.read(clone).files).after.items():
        (clone / path).write_bytes(content + b"# of the fork\n")
    git(clone, "commit", "-qam", "ours")
    return clone


def drifted(published: Source, into: Path) -> Path:
    clone = of_newest(published, into)
    changed = (clone / SPECULATOR).read_text().replace("def _prefill", "def _first")
    (clone / SPECULATOR).write_text(changed)
    git(clone, "commit", "-qam", "ours")
    return clone


def with_another_test(published: Source, into: Path) -> Path:
    clone = of_newest(published, into)
    (clone / PATCH.header.adds[0]).parent.mkdir(parents=True)
    (clone / PATCH.header.adds[0]).write_text("mine\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "ours")
    return clone


# The clone or None, the call, exit status, and the end of what is said.
Make = Callable[[Source, Path], Path]
REFUSED: list[tuple[Make | None, list[str], int, str]] = [
    (None, ["gate-speculative-tensors"], 2, "nothing to submit: vLLM has it from 0.25.0 on"),
    (None, ["no-such-patch"], 2, "no patch 'no-such-patch': the series has"),
    (None, [SLUG, "--patch", SLUG], 2, "--pull-request takes its patch alone"),
    (None, [SLUG, "--series", "all"], 2, "--pull-request takes its patch alone"),
    (of_older, [SLUG], 2, f"nothing to submit: {SLUG} not affected"),
    (with_the_fix, [SLUG], 2, f"nothing to submit: {SLUG} upstream"),
    (drifted, [SLUG], 3, "sought method _prefill"),
    (with_another_test, [SLUG], 3, "another file of that name is in"),
]


@pytest.mark.releases
@pytest.mark.parametrize(("make", "call", "status", "says"), REFUSED)
def test_what_cannot_be_submitted_is_one_line_and_no_file(
    published: Source,
    mrv2: Mrv2,
    tmp_path: Path,
    make: Make | None,
    call: list[str],
    status: int,
    says: str,
) -> None:
    clone = [make(published, tmp_path)] if make else []
    done = mrv2("build", *clone, "--pull-request", *call)
    assert done.returncode == status, done
    assert says in done.stderr.splitlines()[-1]
    assert not clone or str(clone[0]) in done.stderr.splitlines()[-1]
    assert done.stdout == ""
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_a_patch_to_submit_a_target_is_wanted(mrv2: Mrv2) -> None:
    done = mrv2("build")
    assert done.returncode == 2
    assert "Missing argument 'TARGET'" in done.stderr


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """What a run of the reproducers comes to; the engine is not started."""
    cells = [PROVEN]

    def run(wanted: list[verify.Job], *_: object) -> list[Cell]:
        release = wanted[0].release
        return [msgspec.structs.replace(cell, release=release) for cell in cells]

    monkeypatch.setattr(verify, "run", run)
    return cells


def submit(folder: Path, patch: pytest.MonkeyPatch, *target: str | Path) -> Path:
    """Call it in this process; the folder that it wrote."""
    folder.mkdir(exist_ok=True)
    patch.chdir(folder)
    for name, value in IDENTITY.items():
        patch.setenv(name, value)
    cli.cli.main(["build", *map(str, target), "--pull-request", SLUG], standalone_mode=False)
    (made,) = (folder / "dist").iterdir()
    return made


@pytest.mark.releases
def test_the_branch_is_one_commit_with_its_tests_signed_off(
    published: Source, tmp_path: Path, ran: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = of_newest(published, tmp_path)
    built = submit(tmp_path / "here", monkeypatch, clone)
    assert built.name == f"pull-request-{SLUG}"
    (patch,) = built.glob("*.patch")
    git(clone, "am", "--keep-non-patch", patch)
    subject, author, signed, *files = filter(
        None,
        git(
            clone, "show", "--name-only",
            "--format=%s%n%an <%ae>%n%(trailers:key=Signed-off-by,valueonly)",
        ).split("\n"),
    )  # fmt: skip
    assert subject == PATCH.header.title == (built / "pull-request.md").read_text().splitlines()[0]
    assert author == signed == "Ada Byron <ada@example.org>"
    assert files == sorted([*PATCH.header.adds, SPECULATOR])
    assert "Origin" not in git(clone, "show", "--format=%B", "--no-patch")

    git(clone, "fetch", "-q", built / f"{SLUG}.bundle", f"{SLUG}:picked")
    assert git(clone, "diff", "HEAD", "picked", "--", *files) == ""
    assert {path.name for path in built.iterdir()} == {
        patch.name, f"{SLUG}.bundle", "pull-request.md", "SHA256SUMS",
    }  # fmt: skip


@pytest.mark.releases
def test_it_is_for_the_newest_release_unless_told(
    published: Source, tmp_path: Path, ran: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And was run on the newest that it is proven on, which is another."""
    kept = tmp_path / "cache" / "wheels" / NEWEST
    kept.mkdir(parents=True)
    wheels.pack(wheels.files_of(published(NEWEST), NEWEST), kept / wheels.name_of(NEWEST))
    monkeypatch.setenv("MRV2_CACHE", str(tmp_path / "cache"))
    said = (submit(tmp_path / "here", monkeypatch) / "pull-request.md").read_text()
    assert "vLLM 0.32.0 as published, without the change:" in said
    assert f"Not run: the base of the branch, vLLM {NEWEST}; anything on a GPU." in said


@pytest.mark.releases
def test_a_base_that_it_is_proven_on_is_what_is_run(
    published: Source, tmp_path: Path, ran: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = submit(tmp_path / "here", monkeypatch, published("0.31.0"))
    said = (built / "pull-request.md").read_text()
    assert "vLLM 0.31.0 as published, without the change:" in said
    assert "the base of the branch, files of vLLM 0.31.0;" in said


UNPROVEN = [
    cell(PASSES, PASSES),
    cell(FAILS, FAILS),
    cell(side(Result.DID_NOT_RUN, ""), PASSES),
    cell(side(Result.FAILS_OTHERWISE, WITHOUT), PASSES),
]


@pytest.mark.releases
@pytest.mark.parametrize("unproven", UNPROVEN)
def test_nothing_is_written_of_what_is_not_proven(
    published: Source,
    tmp_path: Path,
    ran: list[Cell],
    monkeypatch: pytest.MonkeyPatch,
    unproven: Cell,
) -> None:
    """Nor when one reproducer of several is none; an earlier build stays."""
    ran.append(unproven)
    clone = of_newest(published, tmp_path)
    with pytest.raises(Mrv2Error) as raised:
        submit(tmp_path / "here", monkeypatch, clone)
    assert raised.value.exit_status == 1
    assert f"{SLUG} on 0.32.0: not proven, so nothing is written: " in str(raised.value)
    assert unproven.without.value in str(raised.value)
    assert not list((tmp_path / "here").iterdir())

    ran.pop()
    built = submit(tmp_path / "here", monkeypatch, clone)
    before = {path: path.read_bytes() for path in built.iterdir()}
    ran.append(unproven)
    with pytest.raises(Mrv2Error):
        submit(tmp_path / "here", monkeypatch, clone)
    assert {path: path.read_bytes() for path in built.iterdir()} == before


@pytest.mark.releases
def test_what_no_build_wrote_is_left_alone_before_an_engine_runs(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    taken = tmp_path / "elsewhere" / "dist" / f"pull-request-{SLUG}"
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    done = mrv2("build", of_newest(published, tmp_path), "--pull-request", SLUG)
    assert done.returncode == 2
    assert f"{taken}: holds what no build wrote" in done.stderr
    assert "an engine" not in done.stderr
    assert [path.name for path in taken.iterdir()] == ["notes.txt"]


# With the real engine, and the rules that vLLM has for its files


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """vLLM's repository at the newest release, as far as its source distribution has it."""
    with tarfile.open(sdist.sdist(NEWEST, say)) as archive:
        archive.extractall(tmp_path, filter="data")
    root = (tmp_path / f"vllm-{NEWEST}").rename(tmp_path / "clone")
    return commit_release(root, NEWEST)


# Of those that vLLM runs on each commit, what needs neither a network nor a whole clone.
HOOKS = [
    "check_spdx_header",
    "check_forbidden_imports",
    "check_torch_cuda",
    "check_boolean_context_manager",
    "check_test_tethering",
]
SUBMITTABLE = [
    patch.slug
    for patch in series.load().patches
    if known.releases()[NEWEST].states[patch.slug] == plan.State.NEEDED
]


@pytest.mark.engine
@pytest.mark.releases
def test_the_files_meet_vllms_own_rules(checkout: Path, mrv2: Mrv2) -> None:
    """Formatting, lint and hooks of the newest release, by its own settings and scripts."""
    python = engine.environment(engine.newest()).python  # has what the scripts import
    ruff = Path(sys.executable).with_name("ruff")
    assert SLUG in SUBMITTABLE
    for slug in SUBMITTABLE:
        done = mrv2("branch", checkout, "--patch", slug, "--name", slug)
        assert done.returncode == 0, done.stderr
        git(checkout, "switch", "-q", slug)
        files = git(checkout, "diff", "--name-only", "main").split("\n")
        assert set(files) >= set(series.load().patch(slug).header.adds)
        commands: list[list[str | Path]] = [
            [ruff, "check", "-q"],
            [ruff, "format", "--check", "-q"],
        ]
        commands += [[python, f"tools/pre_commit/{hook}.py"] for hook in HOOKS]
        for command in commands:
            checked = subprocess.run(
                [*command, *files], cwd=checkout, capture_output=True, text=True, check=False
            )
            assert checked.returncode == 0, (slug, command, checked.stdout, checked.stderr)


@pytest.mark.engine
@pytest.mark.releases
def test_what_the_readme_says_to_send_upstream(checkout: Path, tmp_path: Path) -> None:
    """The README's own lines: run, and in the clone that they name."""
    here = tmp_path / "here"
    here.mkdir()
    lines = "\n".join(["set -e", *SUBMIT]).replace(".venv/bin", str(Path(sys.executable).parent))
    done = subprocess.run(
        ["bash", "-c", lines.replace("CLONE", shlex.quote(str(checkout)))],
        cwd=here,
        env={**os.environ, **IDENTITY, "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b.c"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = (here / "dist" / f"pull-request-{SLUG}" / "pull-request.md").read_text()
    title, purpose, tests, result, _ = said.split("\n## ")
    assert title == f"{PATCH.header.title}\n"
    assert PATCH.header.description.split("\n")[-2] in purpose
    without, with_ = result.split("With the change:")
    for reproducer in PATCH.header.reproducers:
        assert reproducer.test in tests
        assert reproducer.failure.message in without
        assert (checkout / reproducer.test.partition("::")[0]).exists()
    assert " at 0x" not in without
    assert "3 passed" in with_
    assert "failed" not in with_
    commit = git(checkout, "rev-parse", "--short=12", "HEAD~1")
    assert f"Not run: the base of the branch, commit {commit}; anything on a GPU." in with_
    assert git(checkout, "branch", "--show-current") == SLUG
    assert git(checkout, "log", "-1", "--format=%s") == PATCH.header.title
