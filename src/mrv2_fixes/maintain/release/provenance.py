"""Where files come from: in-toto statements with SLSA's provenance, written and read back.

https://in-toto.io/Statement/v1, https://slsa.dev/spec/v1.0/provenance. A statement is not signed:
it is worth what the place is worth that one has it from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from mrv2_fixes import DISTRIBUTION, git
from mrv2_fixes.errors import Mrv2Error, WrongCall

SUFFIX = ".provenance.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = f"urn:{DISTRIBUTION}:make"  # a target of the Makefile, at the commit that is named
LOCAL = f"urn:{DISTRIBUTION}:unnamed-machine"
CHUNK = 1 << 20  # bytes


class Resource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or a commit.

    digest: algorithm to hexadecimal digest: sha256 of a file, gitCommit of a commit.
    """

    name: str
    digest: dict[str, str]
    uri: str = ""


class Parameters(msgspec.Struct, frozen=True):
    """command: what was called, word by word."""

    command: tuple[str, ...]


class Definition(msgspec.Struct, frozen=True, rename="camel"):
    """What was built, and from what."""

    build_type: str
    external_parameters: Parameters
    resolved_dependencies: tuple[Resource, ...]


class Builder(msgspec.Struct, frozen=True):
    """id: the workflow that built it, or `LOCAL`."""

    id: str


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """invocation_id: the run of that workflow, or empty."""

    invocation_id: str = ""


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where it was built."""

    builder: Builder
    metadata: Metadata = Metadata()


class Predicate(msgspec.Struct, frozen=True, rename="camel"):
    """SLSA's provenance."""

    build_definition: Definition
    run_details: Run


class Statement(msgspec.Struct, frozen=True, rename="camel"):
    """in-toto's statement; the subjects are files."""

    type: str = msgspec.field(name="_type")
    subject: tuple[Resource, ...]
    predicate_type: str
    predicate: Predicate


def file(path: Path) -> Resource:
    """A file, by its name and content."""
    digest = hashlib.sha256()
    with path.open("rb") as opened:
        while chunk := opened.read(CHUNK):  # a wheel is larger than what one likes in memory
            digest.update(chunk)
    return Resource(path.name, {"sha256": digest.hexdigest()})


def commit(root: Path, env: Mapping[str, str] = os.environ) -> Resource:
    """The commit that the repository `root` is at.

    Raises WrongCall when there is something in it that is not committed, GitError without git.
    """
    # Whatever of it the user's own settings of git would hide.
    seen = ("-c", f"core.excludesFile={os.devnull}", "status", "--untracked-files=all")
    changed = git.run(*seen, "--porcelain", "-z", folder=root).decode().split("\0")[0]
    if changed:
        fault = f"{changed[3:]} is not committed, and a release is of a commit"
        raise WrongCall(f"{root}: {fault}: commit it, or put it away")
    number = git.run("rev-parse", "HEAD", folder=root).decode().strip()
    uri = ""
    if "GITHUB_REPOSITORY" in env:
        uri = f"git+{env['GITHUB_SERVER_URL']}/{env['GITHUB_REPOSITORY']}@{env['GITHUB_REF']}"
    return Resource(DISTRIBUTION, {"gitCommit": number}, uri)


def builder(env: Mapping[str, str] = os.environ) -> Run:
    """Where this runs, as GitHub's environment says; a machine of one's own is not named."""
    if "GITHUB_WORKFLOW_REF" not in env:
        return Run(Builder(LOCAL))
    server = env["GITHUB_SERVER_URL"]
    run = f"{env['GITHUB_REPOSITORY']}/actions/runs/{env['GITHUB_RUN_ID']}"
    attempt = f"{server}/{run}/attempts/{env['GITHUB_RUN_ATTEMPT']}"
    return Run(Builder(f"{server}/{env['GITHUB_WORKFLOW_REF']}"), Metadata(attempt))


def write(
    output: Path,
    name: str,
    subjects: Iterable[Path],
    command: Sequence[str],
    materials: Sequence[Resource],
) -> Path:
    """Write the statement `name` on files in `output`, made by `command` of `materials`."""
    definition = Definition(BUILD, Parameters(tuple(command)), tuple(materials))
    statement = Statement(
        STATEMENT, tuple(map(file, subjects)), PREDICATE, Predicate(definition, builder())
    )
    path = output / f"{name}{SUFFIX}"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(statement), indent=2) + b"\n")
    return path


def check(folder: Path, besides: Sequence[str]) -> list[Resource]:
    """The files in `folder` that its statements speak of, when all is as they say.

    besides: names of files that no statement has to speak of.
    Raises Mrv2Error that names the first file that is another, is missing or that no statement
    speaks of, and when there are no statements, or they are of several commits or of none.
    """
    present = {path.name: path for path in sorted(folder.glob("*")) if path.name not in besides}
    statements = {name: _read(present.pop(name)) for name in [*present] if name.endswith(SUFFIX)}
    faults = []
    subjects: list[Resource] = []
    for name, statement in statements.items():
        subjects += statement.subject
        for subject in statement.subject:
            found = present.pop(subject.name, None)
            if found is None:
                faults.append(f"{subject.name}: named in {name}, and not there")
            elif file(found).digest != subject.digest:
                faults.append(f"{subject.name}: not the file that {name} is about")
    faults += [f"{name}: no statement is about it" for name in present]
    faults += [f"{name}: names no commit" for name, one in statements.items() if not _commits(one)]
    commits = {one.digest["gitCommit"] for two in statements.values() for one in _commits(two)}
    if len(commits) > 1:
        faults.append(f"statements of {len(commits)} commits: {', '.join(sorted(commits))}")
    if not statements:
        faults.append(f"no *{SUFFIX} in it")
    if faults:
        others = f" (and {len(faults) - 1} more)" if faults[1:] else ""
        raise Mrv2Error(f"{folder}: {faults[0]}{others}: make or download all of it again")
    return subjects


def _read(path: Path) -> Statement:
    try:
        statement = msgspec.json.decode(path.read_bytes(), type=Statement)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Mrv2Error(f"{path}: {error}: make or download it again") from error
    if (statement.type, statement.predicate_type) != (STATEMENT, PREDICATE):
        raise Mrv2Error(f"{path}: not a {STATEMENT} with {PREDICATE}: make or download it again")
    return statement


def _commits(statement: Statement) -> list[Resource]:
    dependencies = statement.predicate.build_definition.resolved_dependencies
    return [one for one in dependencies if "gitCommit" in one.digest]
