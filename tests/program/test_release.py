"""A release of this project: what there is to download, and that it is what it says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from mrv2_fixes import known, program_version
from mrv2_fixes.errors import Mrv2Error, WrongCall
from mrv2_fixes.maintain.release import assets, provenance, tag

from . import wheels
from .conftest import Source, git
from .test_readme import RELEASE

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NUMBER = "0.24.0"
PACKAGE = f"vllm_mrv2_fixes-{program_version()}"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose one commit is this work tree, as it stands."""
    copy = tmp_path / "repository"
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return committed(copy)


def committed(root: Path) -> Path:
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "all of it")
    return root


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# What there is


def test_releases_are_those_with_a_view() -> None:
    """`patches/*/*.diff` is there for each release that a patch affects."""
    views = {path.stem for path in (ROOT / "patches").glob("*/*.diff")}
    assert assets.releases() == sorted(views, key=Version)
    for number in assets.releases():
        assert "needed" in known.releases()[number].states.values()


def test_a_release_that_no_patch_affects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="no patch affects it: make releases prints"):
        assets.of_vllm("0.33.0", tmp_path, ROOT, print)
    assert not list(tmp_path.iterdir())


def test_workflows_do_what_make_does_here() -> None:
    """Their steps are targets of the Makefile, and no release is named by hand."""
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in WORKFLOWS:
        commands = re.sub(r"\$\{\{.*?\}\}", "", path.read_text())
        for line in re.findall(r"\bmake ([^\n)]*)", commands):
            words = {word for word in line.split() if not word.startswith("-") and "=" not in word}
            assert words <= set(rules), (path.name, line)
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert not set(assets.releases()) & set(re.findall(r"[\d.]+", text))
    assert [target for target in RELEASE if target.split()[1] not in text] == []


@pytest.mark.releases
def test_the_readmes_lines_make_a_release(
    repository: Path, published: Source, tmp_path: Path
) -> None:
    """On a small wheel of a release: what is made is whole, true, and can be installed."""
    cache = tmp_path / "cache"
    base = cache / "wheels" / NUMBER / wheels.name_of(NUMBER)
    base.parent.mkdir(parents=True)
    wheels.pack(wheels.files_of(published(NUMBER), NUMBER), base)
    venv = Path(sys.executable).parents[1]
    env = {**os.environ, "PYTHONPATH": str(repository / "src"), "MRV2_CACHE": str(cache)}
    env |= {"GIT_AUTHOR_NAME": "Ada Byron", "GIT_AUTHOR_EMAIL": "ada@example.org"}

    def make(line: str) -> str:
        words = line.replace("VERSION", program_version()).split()
        command = [*words, "--silent", f"VENV={venv}", f"--old-file={venv}/complete"]
        done = subprocess.run(
            command, cwd=repository, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    printed = {line: make(line) for line in RELEASE}
    assert json.loads(printed[RELEASE[1]]) == assets.releases()

    made = repository / "dist" / "release"
    names = {path.name for path in made.iterdir()}
    patched = {name for name in names if name.startswith(f"vllm-{NUMBER}+mrv2.")}
    assert len(patched) == 2
    lot = {f"mrv2-fixes-{NUMBER}{end}" for end in ("-core.tar", "-all.tar", ".provenance.json")}
    package = {f"{PACKAGE}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".provenance.json")}
    assert names == {*patched, *lot, *package, "SHA256SUMS"}
    for name in names - {"SHA256SUMS"}:
        assert f"{sha256(made / name)}  {name}\n" in (made / "SHA256SUMS").read_text()
        assert f"{name}: OK\n" in printed[RELEASE[3]] or name.endswith(provenance.SUFFIX)

    make(RELEASE[2])  # once more, and the same bytes
    checking = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(checking, cwd=made, check=True, capture_output=True)

    statement = json.loads((made / f"mrv2-fixes-{NUMBER}.provenance.json").read_text())
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"command": RELEASE[2].split()}
    assert [one["digest"] for one in definition["resolvedDependencies"]] == [
        {"gitCommit": git(repository, "rev-parse", "HEAD")},
        {"sha256": sha256(base)},
    ]

    for group, count in ("core", 2), ("all", 7):
        with tarfile.open(made / f"mrv2-fixes-{NUMBER}-{group}.tar") as archive:
            archive.extractall(tmp_path, filter="data")
        unpacked = tmp_path / f"mrv2-fixes-{NUMBER}-{group}"
        assert len(list(unpacked.glob("*.patch"))) == count
        for name in patched:
            shutil.copy(made / name, unpacked)
        subprocess.run(checking, cwd=unpacked, check=True, capture_output=True)

    uv = [sys.executable, "-m", "uv", "--quiet"]
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run([*uv, "venv", "--python", sys.executable, tmp_path / "fresh"], check=True)
    wheel = made / f"{PACKAGE}-py3-none-any.whl"
    subprocess.run([*uv, "pip", "install", "--python", python, wheel], check=True)
    env.pop("PYTHONPATH")
    mrv2 = python.with_name("mrv2")
    done = subprocess.run(
        [mrv2, "status", NUMBER], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count(" needed\n")) == (1, 2), done.stderr


@pytest.mark.releases
def test_package_is_the_same_bytes_from_anywhere(repository: Path, tmp_path: Path) -> None:
    """And holds the program and the series, no file more or less."""
    again = tmp_path / "again"
    git(tmp_path, "clone", "-q", repository, again)
    for path in again.rglob("*.toml"):
        os.utime(path, (0, 0))
    first, second = (
        {path.name: sha256(path) for path in assets.of_package(tmp_path / f"of-{n}" / "out", root)}
        for n, root in enumerate((repository, again))
    )
    assert first == second

    names = git(repository, "ls-files", "src", "patches", "tests/v1", "vllm").split()
    series = {f"mrv2_fixes/series/{name}" for name in names if not name.startswith("src/")}
    program = {name.removeprefix("src/") for name in names if name.startswith("src/")}
    with zipfile.ZipFile(tmp_path / "of-0" / "out" / f"{PACKAGE}-py3-none-any.whl") as opened:
        packed = {name for name in opened.namelist() if not name.startswith(PACKAGE)}
    assert packed == series | program
    with tarfile.open(tmp_path / "of-0" / "out" / f"{PACKAGE}.tar.gz") as archive:
        sources = {name.removeprefix(f"{PACKAGE}/") for name in archive.getnames()}
    assert sources >= {*names, "pyproject.toml", "README.md", "LICENSE", "Makefile"}


# Where it comes from


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder of two lots of files, with their provenance."""
    repository = tmp_path / "small"
    repository.mkdir()
    committed(repository)
    folder = tmp_path / "made"
    folder.mkdir()
    for lot in ("one", "two"):
        files = [folder / f"{lot}.whl", folder / f"{lot}.tar"]
        for path in files:
            path.write_text(f"{path.name}, whole")
        material = provenance.commit(repository, env={})
        provenance.write(folder, lot, files, ["make", lot], [material])
    return folder


def flip(folder: Path) -> None:
    content = bytearray((folder / "two.whl").read_bytes())
    content[3] ^= 1
    (folder / "two.whl").write_bytes(content)


def other_commit(folder: Path) -> None:
    path = folder / "one.provenance.json"
    path.write_text(re.sub(r'"[0-9a-f]{40}"', f'"{"0" * 40}"', path.read_text()))


def no_commit(folder: Path) -> None:
    path = folder / "one.provenance.json"
    path.write_text(path.read_text().replace("gitCommit", "sha1"))


def other_kind(folder: Path) -> None:
    path = folder / "one.provenance.json"
    path.write_text(path.read_text().replace(provenance.PREDICATE, "https://example.org/v1"))


def two_faults(folder: Path) -> None:
    flip(folder)
    (folder / "one.tar").unlink()


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "one bit": (flip, "two.whl: not the file that two.provenance.json is about: make or"),
    "missing": (lambda at: (at / "one.tar").unlink(), "one.tar: named in one.provenance.json, and"),
    "two": (two_faults, "one.tar: named in one.provenance.json, and not there (and 1 more)"),
    "more": (lambda at: (at / "more.whl").touch(), "more.whl: no statement is about it"),
    "no statement": (lambda at: (at / "two.provenance.json").unlink(), "two.tar: no statement"),
    "of two commits": (other_commit, "statements of 2 commits: 0000000000"),
    "of no commit": (no_commit, "one.provenance.json: names no commit"),
    "of another kind": (other_kind, "one.provenance.json: not a https://in-toto.io/Statement/v1"),
    "no JSON": (lambda at: (at / "one.provenance.json").write_text("{"), "one.provenance.json: "),
    "nothing": (shutil.rmtree, "no *.provenance.json in it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_as_its_provenance_says_is_named(made: Path, case: str) -> None:
    assert len(provenance.check(made, besides=[])) == 4
    change, said = WRONG[case]
    change(made)
    with pytest.raises(Mrv2Error) as raised:
        provenance.check(made, besides=[])
    assert said in str(raised.value)


def test_statement_is_in_totos_with_slsas_predicate(made: Path) -> None:
    """The names that others' tools look for."""
    statement = json.loads((made / "one.provenance.json").read_text())
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    assert statement["subject"] == [
        {"name": name, "digest": {"sha256": sha256(made / name)}} for name in ("one.whl", "one.tar")
    ]
    assert set(statement["predicate"]) == {"buildDefinition", "runDetails"}
    definition = statement["predicate"]["buildDefinition"]
    assert set(definition) == {"buildType", "externalParameters", "resolvedDependencies"}


def test_on_github_the_run_and_the_tag_are_named(tmp_path: Path) -> None:
    env = {
        "GITHUB_SERVER_URL": "https://example.org",
        "GITHUB_REPOSITORY": "ada/fixes",
        "GITHUB_REF": "refs/tags/v1.0",
        "GITHUB_WORKFLOW_REF": "ada/fixes/.github/workflows/release.yml@refs/tags/v1.0",
        "GITHUB_RUN_ID": "12",
        "GITHUB_RUN_ATTEMPT": "1",
    }
    run = msgspec.to_builtins(provenance.builder(env))
    assert run == {
        "builder": {"id": f"https://example.org/{env['GITHUB_WORKFLOW_REF']}"},
        "metadata": {"invocationId": "https://example.org/ada/fixes/actions/runs/12/attempts/1"},
    }
    uri = provenance.commit(committed(tmp_path), env).uri
    assert uri == "git+https://example.org/ada/fixes@refs/tags/v1.0"


@pytest.mark.parametrize("change", ["changed", "new"])
def test_what_is_not_committed_is_of_no_commit(tmp_path: Path, change: str) -> None:
    """Also where git is told to keep quiet about new files."""
    (tmp_path / "changed").touch()
    committed(tmp_path)
    git(tmp_path, "config", "status.showUntrackedFiles", "no")
    (tmp_path / change).write_text("more")
    with pytest.raises(WrongCall, match=f"{change} is not committed, and a release is of a commit"):
        provenance.commit(tmp_path)


# Its numbers


def numbered(root: Path, version: str, revision: int) -> None:
    (root / "patches").mkdir(exist_ok=True)
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (root / "patches" / "series.toml").write_text(f"revision = {revision}\n")
    committed(root)


@pytest.mark.parametrize(
    ("version", "revision", "wanted", "said"),
    [
        ("0.2.0", 2, "v0.2.0", "v0.2.0: version 0.2.0, revision 2 of the series"),
        ("0.10.0", 2, "v0.10.0", "v0.10.0: version 0.10.0, revision 2 of the series"),
        ("0.2.0", 2, "v0.3.0", "pyproject.toml says version 0.2.0: the tag has to be v0.2.0"),
        ("0.2.0", 2, "0.2.0", "the tag has to be v0.2.0"),
        ("0.2.0", 1, "v0.2.0", "series.toml: revision 1, and v0.1.0 has 1: raise it, or two"),
        ("0.0.9", 2, "v0.0.9", "pyproject.toml: version 0.0.9, and v0.1.0 is there: raise it"),
    ],
)
def test_a_tag_wants_new_numbers_that_agree(
    tmp_path: Path, version: str, revision: int, wanted: str, said: str
) -> None:
    numbered(tmp_path, "0.1.0", 1)
    git(tmp_path, "tag", "v0.1.0")
    git(tmp_path, "tag", "very-good")
    numbered(tmp_path, version, revision)
    git(tmp_path, "tag", f"v{version}")  # in the workflow it is there already
    try:
        answer = tag.check(tmp_path, wanted)
    except WrongCall as error:
        answer = str(error)
    assert said in answer


def test_the_first_tag_has_no_other_to_differ_from(tmp_path: Path) -> None:
    numbered(tmp_path, "0.1.0", 1)
    assert tag.check(tmp_path, "v0.1.0").startswith("v0.1.0: ")


def test_a_tag_that_another_commit_has_is_taken(tmp_path: Path) -> None:
    numbered(tmp_path, "0.1.0", 1)
    git(tmp_path, "tag", "--annotate", "--message", "the first", "v0.1.0")
    assert tag.check(tmp_path, "v0.1.0").startswith("v0.1.0: ")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "more")
    with pytest.raises(WrongCall, match="another commit has that tag"):
        tag.check(tmp_path, "v0.1.0")
