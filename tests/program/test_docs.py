"""The pages in docs/ say what the survey and the audit found, and where they point to is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from mrv2_fixes import series
from mrv2_fixes.maintain import findings
from tests.contract import survey
from tests.contract.__main__ import RELEASES, main
from tests.contract.test_survey import KNOWN, RUNS, Known, known

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (ROOT / "docs" / "attention-metadata.md", ROOT / "docs" / "attention-backends.md")
SURVEY = ".venv/bin/python -m tests.contract "

Cell = tuple[str, str, str]


class Told(NamedTuple):
    """A row of "Seen by running", with what its section names and runs.

    patches: those that the section names. cells: what its commands run.
    """

    section: str
    of: str
    field: str
    releases: tuple[str, ...]
    patches: set[str]
    cells: list[Cell]


def commands(text: str) -> list[str]:
    """The commands in a page's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]


def anchors(page: Path) -> set[str]:
    """What a link can name in a page, as GitHub makes it of the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def cells(text: str) -> list[Cell]:
    """What the survey's commands in a text run."""
    calls = [shlex.split(one.removeprefix(SURVEY)) for one in commands(text) if SURVEY in one]
    parsed = [main.make_context("tests.contract", call).params for call in calls]
    return [
        (release, one["patched"], name)
        for one in parsed
        for release in one["releases"]
        for name in one["names"]
    ]


def slugs(text: str) -> set[str]:
    """The patches that a text names."""
    return {patch.slug for patch in series.load().patches if f"`{patch.slug}`" in text}


def told() -> list[Told]:
    """Every row of the findings that were seen by running."""
    text = PAGES[0].read_text().partition("\n## Seen by running\n")[2].partition("\n## ")[0]
    return [
        Told(
            *(section.partition("\n")[0], of, field, tuple(releases.split(", "))),
            *(slugs(section), cells(section)),
        )
        for section in text.split("\n### ")
        for of, field, releases in re.findall(
            r"^\| (target|draft) \| `(.*?)` \| (.*?) \|", section, re.MULTILINE
        )
    ]


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)(.*?)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_those_that_other_tests_run(page: Path) -> None:
    text = page.read_text()
    run_elsewhere = commands(README.read_text())
    assert [one for one in commands(text) if SURVEY not in one and one not in run_elsewhere] == []
    assert all(name in survey.applicable(release) for release, _, name in cells(text))


def rows_of(one: Known) -> list[Told]:
    """Where the page tells of a breach: with a command that shows it."""
    return [
        row
        for row in told()
        if (row.of, row.field) == (one.of, one.field)
        and any(one in known(*cell) for cell in row.cells)
    ]


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: f"{one.of}-{one.field}-{one.releases}")
def test_each_breach_that_the_survey_knows_is_told_with_what_shows_it(one: Known) -> None:
    (row,) = rows_of(one)
    held = {
        release
        for (release, patched), names in RUNS.items()
        if any(one in known(release, patched, name) for name in names)
    }
    assert held <= set(row.releases)
    assert set(row.releases) <= set(RELEASES)
    assert all(one.concerns(release, one.scenarios[0]) for release in row.releases)


def test_a_section_names_the_patches_that_mend_what_it_tells_and_no_other() -> None:
    mend: dict[str, set[str]] = {row.section: set() for row in told()}
    for one in KNOWN:
        for row in rows_of(one):
            mend[row.section] |= {one.mended_by} - {""}
    assert {row.section: row.patches for row in told()} == mend


def test_nothing_else_is_told_to_have_been_seen() -> None:
    assert len(told()) == len(KNOWN)


@pytest.mark.parametrize("patch", series.load().patches, ids=lambda patch: patch.slug)
def test_readme_names_the_symptom_and_the_releases(patch: series.Patch) -> None:
    """What vLLM's own code says, and the releases that the header names."""
    (row,) = re.findall(rf"^\| .*\| `{patch.slug}`.*\|$", README.read_text(), re.MULTILINE)
    for reproducer in patch.header.reproducers:
        said = reproducer.failure
        assert not said.file.startswith("vllm/") or said.message in row
    affected = {release: patch for release in findings.releases() if patch.affects(release)}
    assert row.endswith(f"| {findings.spans(affected, findings.releases())} |")


@pytest.mark.releases
def test_the_findings_of_the_audit_are_those_of_the_published_releases() -> None:
    page = findings.PAGE.read_text()
    assert findings.renewed(page) == page
