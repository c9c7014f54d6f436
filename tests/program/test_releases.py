"""What the plan says of every published release, and what it makes of those that need it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mrv2_fixes import known, plan, series
from mrv2_fixes.maintain import known as renew
from mrv2_fixes.maintain import views
from mrv2_fixes.record import Record
from mrv2_fixes.targets import folder

from .conftest import AFFECTED, Source

pytestmark = pytest.mark.releases

NEWER = ["0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0"]
NEWER += ["0.31.0", "0.32.0", "0.33.0"]

# Patches and the releases that they affect.
CASES = [
    (release, patch.slug)
    for release in known.releases()
    for patch in series.load().patches
    if patch.affects(release)
]
# Release to the states of the three patches of the core, in order.
STATES = {
    "0.20.2": "needed, not affected, not affected",
    **dict.fromkeys(["0.21.0", "0.22.0", "0.22.1"], "needed, needed, needed"),
    **dict.fromkeys(["0.23.0", "0.24.0"], "upstream, needed, needed"),
    **dict.fromkeys(NEWER, "upstream, upstream, upstream"),
}


def planned(root: Path, *slugs: str) -> plan.Plan:
    target = folder.read(root)
    return plan.make(series.load().select(slugs), target.files, version=target.version)


def states(made: plan.Plan) -> str:
    return ", ".join(step.state.value for step in made.steps)


def write(root: Path, texts: Mapping[str, bytes]) -> None:
    for path, text in texts.items():
        (root / path).write_bytes(text)


def ruff_format(path: Path) -> None:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", str(path)]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("release", STATES)
def test_each_release_has_the_states_that_its_code_gives(published: Source, release: str) -> None:
    made = planned(published(release))
    assert (made.release, states(made)) == (release, STATES[release])


@pytest.mark.parametrize("release", STATES)
def test_known_data_are_those_of_the_release(published: Source, release: str) -> None:
    """`make known` would change nothing, so a status that rests on the data alone is right."""
    entry = renew.describe(folder.Files(published(release)), known.paths(known.releases()))
    assert entry == known.releases()[release]


def test_data_name_every_state_of_every_published_release() -> None:
    slugs = {patch.slug for patch in series.load().patches}
    for release in known.releases().values():
        assert set(release.states) == slugs
    assert list(known.releases())[-len(NEWER) :] == NEWER


def test_there_is_a_view_of_each_patch_and_release_that_it_affects() -> None:
    folder = series.root() / "patches"
    there = {(path.stem, path.parent.name) for path in folder.glob("*/*.diff")}
    assert there == {*CASES}


@pytest.mark.parametrize(("release", "slug"), CASES)
def test_views_are_what_the_edits_make(published: Source, release: str, slug: str) -> None:
    patch = series.load().patch(slug)
    text = (patch.folder / f"{release}.diff").read_bytes().decode()
    assert text == views.view(patch, folder.Files(published(release)))


@pytest.mark.parametrize("release", AFFECTED)
def test_views_in_order_give_the_plan_with_nothing_but_git_apply(
    source: Source, release: str
) -> None:
    root = source(release)
    made = planned(root)
    for step in made.steps:
        view = step.patch.folder / f"{release}.diff"
        if step.state is plan.State.NEEDED:
            subprocess.run(["git", "apply", "--unidiff-zero", view], cwd=root, check=True)
    assert {path: (root / path).read_bytes() for path in made.after} == made.after


@pytest.mark.parametrize("release", ["0.20.2", *AFFECTED])
def test_a_second_run_changes_nothing_and_knows_whose_fix_it_is(
    source: Source, release: str
) -> None:
    root = source(release)
    made = planned(root)
    write(root, made.after)
    again = planned(root)
    assert not again.after
    assert states(again) == STATES[release].replace("needed", "applied")
    assert again.release == release


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("release", STATES)
def test_recorded_outcomes_are_those_of_the_edits(
    source: Source, release: str, applied: bool
) -> None:
    """Also with fixes in, whole or in part, so what rests on the record says and gives the same."""
    root = source(release)
    slugs = [patch.slug for patch in series.load().core]
    if applied:
        write(root, planned(root, slugs[1]).after)
    files = folder.read(root).files
    for chosen in ((), *((slug,) for slug in slugs), tuple(slugs[:2]), tuple(slugs[1:])):
        patches = series.load().select(chosen)
        made, quick = (way(patches, files, version=release) for way in (plan.make, plan.quick))
        assert (quick.release, states(quick)) == (made.release, states(made))
        assert (quick.before, quick.after) == (made.before, made.after)


@pytest.mark.parametrize(("release", "slug"), CASES)
def test_each_patch_alone_converges(source: Source, release: str, slug: str) -> None:
    root = source(release)
    write(root, planned(root, slug).after)
    assert not planned(root, slug).after


@pytest.mark.parametrize("release", dict(CASES))
def test_results_meet_vllms_own_formatting(source: Source, release: str) -> None:
    root = source(release)
    made = planned(root, *(patch.slug for patch in series.load().patches))
    for path in made.before:
        ruff_format(root / path)
    before = {path: (root / path).read_bytes() for path in made.before}
    write(root, made.after)
    for path, text in made.after.items():
        ruff_format(root / path)
        unchanged = {*before.get(path, b"").splitlines(), *text.splitlines()}
        assert set((root / path).read_bytes().splitlines()) <= unchanged


def test_a_base_is_known_by_its_files_whatever_its_version_says(source: Source) -> None:
    root = source("0.22.0")
    metadata = next(root.glob("*.dist-info/METADATA"))
    metadata.write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.22.0+rocm722\n\n")
    assert planned(root).release == "0.22.0"
    metadata.write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 9.9\n\n")
    assert planned(root).release == "0.22.1"  # the newest with the very same files


def test_an_applied_fix_that_was_changed_since_is_tampered(source: Source) -> None:
    root = source("0.24.0")
    made = planned(root)
    write(root, made.after)
    record = Record(
        "apply",
        "0",
        tuple(step.patch.slug for step in made.steps if step.state is plan.State.NEEDED),
        {path: known.digest(text) for path, text in made.after.items()},
    )
    files = folder.read(root).files
    patches = series.load().core
    assert states(plan.make(patches, files, record=record)) == "upstream, applied, applied"
    changed = {**files, next(iter(made.after)): next(iter(made.after.values())) + b"# mine\n"}
    tampered = plan.make(patches, changed, record=record)
    assert states(tampered) == "upstream, tampered, tampered"
    assert "mamba_hybrid.py: changed since" in tampered.steps[1].detail
