"""The stable patches: what each is to every release that has its code, together and alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from mrv2_fixes import known, plan, series
from mrv2_fixes.plan import State
from mrv2_fixes.targets import folder

from .conftest import Mrv2, Source

pytestmark = pytest.mark.releases

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
FIRST = SpecifierSet(">=0.21.0")
# The releases in which the code is wrong, and those that have the fix in another form or in ours.
# More need a patch than its header names, which are those that it is proven on.
NEEDED, UPSTREAM = State.NEEDED, State.UPSTREAM
STATES = {
    "forward-draft-seq-lens-cpu-upper-bound": {"<0.27.0": NEEDED, ">=0.27.0": UPSTREAM},
    "draft-model-metadata-bounds": {">=0.31.0": NEEDED},
    "reset-accepted-tokens-on-slot-reuse": {"<0.26.0": NEEDED, ">=0.26.0": UPSTREAM},
    "one-token-prompt-is-a-prefill": {"<0.31.0": NEEDED, ">=0.31.0": UPSTREAM},
    "decodes-before-short-prefills": {"<0.28.0": NEEDED, ">=0.28.0": UPSTREAM},
    "no-placeholder-drafts-on-first-tokens": {">=0.25.0": NEEDED},
    "check-attn-metadata": {">=0.21.0": NEEDED},
}


def state(slug: str, release: str) -> State:
    for releases, there in STATES[slug].items():
        if release in SpecifierSet(releases):
            return there
    return State.NOT_AFFECTED


@pytest.mark.parametrize("release", [one for one in known.releases() if one in FIRST])
def test_each_is_what_the_code_of_a_release_says(published: Source, release: str) -> None:
    """With the core in as well, and by the data alone."""
    files = folder.Files(published(release))
    made = plan.make(series.load().patches, files, version=release)
    stable = [step for step in made.steps if step.patch in series.load().stable]
    for step in stable:
        assert step.state is state(step.patch.slug, release), step.detail
        assert known.releases()[release].states[step.patch.slug] == step.state.value
    assert {step.patch.slug for step in stable} == STATES.keys()
    after = {**files, **made.after}
    assert not plan.make(series.load().patches, after, version=release).after


def test_a_fix_in_another_form_needs_no_module_of_ours(published: Source) -> None:
    patch = series.load().patch("one-token-prompt-is-a-prefill")
    assert patch.modules()
    files = folder.Files(published("0.31.0"))
    for way in (plan.make, plan.quick):
        (step,) = way([patch], files, version="0.31.0").steps
        assert (step.state, step.detail) == (State.UPSTREAM, "")


@pytest.mark.parametrize("release", ["0.24.0", "0.26.0", "0.31.0"])
def test_each_alone_is_known_without_the_edits(
    published: Source, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """As published, and with it in."""
    files = folder.Files(published(release))
    choices = [series.load().select([slug]) for slug in STATES]
    made = [plan.make(patches, files, version=release) for patches in choices]
    monkeypatch.delattr(plan, "make")
    for patches, one in zip(choices, made, strict=True):
        quick = plan.quick(patches, files, version=release)
        assert [step.state for step in quick.steps] == [step.state for step in one.steps]
        assert (quick.before, quick.after) == (one.before, one.after)
        again = plan.quick(patches, {**files, **one.after}, version=release)
        ours = {step.state for step in again.steps} - {State.UPSTREAM, State.NOT_AFFECTED}
        assert ours <= {State.APPLIED}
        assert (again.release, again.after) == (release, {})


LAYOUTS: dict[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "tabs": lambda text: re.sub(r"^( {4})+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.M),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("release", ["0.24.0", "0.31.0"])
def test_a_file_keeps_its_layout(published: Source, release: str, layout: str) -> None:
    files = dict(folder.Files(published(release)))
    made = plan.make(series.load().patches, files, version=release)

    def laid_out(text: bytes) -> bytes:
        return LAYOUTS[layout](text.decode()).encode()

    other = plan.make(
        series.load().patches, {**files, **{path: laid_out(files[path]) for path in made.before}}
    )
    assert [step.state for step in other.steps] == [step.state for step in made.steps]
    assert other.before.keys() == made.before.keys()
    for path in made.before:
        assert other.after[path] == laid_out(made.after[path]), path


def test_a_status_that_names_none_says_which_are_needed(published: Source, mrv2: Mrv2) -> None:
    """Else who has a fault that one of them mends reads that all is in order."""
    root = published("0.26.0")
    done = mrv2("status", root)
    assert done.returncode == 0
    needed = [step.patch.slug for step in plan_of(root).needed()]
    assert f"needed too, opt-in (--series all): {', '.join(needed)}\n" in done.stdout
    assert json.loads(mrv2("status", "--json", root).stdout)["opt_in"] == needed
    for options in ["--series", "all"], ["--patch", "batch-max-seq-len"]:
        assert "opt-in" not in mrv2("status", root, *options).stdout


def test_a_status_that_names_none_shows_those_that_are_in(source: Source, mrv2: Mrv2) -> None:
    """And that one of them was changed since."""
    root = source("0.26.0")
    mrv2("apply", root, "--series", "all")
    done = mrv2("status", root)
    assert done.returncode == 0
    assert re.search(r"one-token-prompt-is-a-prefill +applied\n", done.stdout)
    assert "opt-in" not in done.stdout
    (root / SCHEDULER).write_bytes((root / SCHEDULER).read_bytes() + b"# mine\n")
    done = mrv2("status", root)
    assert done.returncode == 3
    assert f"no-placeholder-drafts-on-first-tokens: {SCHEDULER}: changed since" in done.stdout


def plan_of(root: Path) -> plan.Plan:
    return plan.quick(series.load().patches, folder.Files(root), version="0.26.0")
