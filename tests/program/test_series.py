"""The series itself: headers, order, what a patch may hold."""

from __future__ import annotations

import gc
import re
import shutil
from pathlib import Path

import libcst as cst
import pytest
from packaging.specifiers import SpecifierSet

from mrv2_fixes import known, plan, printing, series
from mrv2_fixes.edit import Vllm
from mrv2_fixes.errors import SeriesError

ROOT = series.root()
PATCHES = series.load().patches


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "patches", tmp_path / "patches")
    return tmp_path


def test_core_is_the_three_that_the_project_exists_for() -> None:
    assert [patch.slug for patch in series.load().core] == [
        "batch-max-seq-len",
        "forward-seq-lens-cpu-upper-bound",
        "gate-speculative-tensors",
    ]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.slug)
def test_headers_agree_with_the_published_releases(patch: series.Patch) -> None:
    """`affects` are the releases in which it is needed and its reproducers run; then upstream's."""
    header = patch.header
    for number, release in known.releases().items():
        if patch.affects(number):
            assert release.states[patch.slug] == plan.State.NEEDED
            assert patch.reproducers(number)
        elif header.applied_upstream and number in SpecifierSet(f">={header.applied_upstream}"):
            assert release.states[patch.slug] == plan.State.UPSTREAM


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.slug)
def test_headers_name_files_that_exist(patch: series.Patch) -> None:
    assert patch.header.adds
    for path in patch.header.adds:
        assert (ROOT / path).is_file()
    for reproducer in patch.header.reproducers:
        file, _, name = reproducer.test.partition("::")
        assert file in patch.header.adds
        assert f"def {name.split('[')[0]}(" in (ROOT / file).read_text()
        SpecifierSet(reproducer.releases)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.slug)
def test_titles_and_messages_meet_vllms_style(patch: series.Patch) -> None:
    assert re.fullmatch(r"(\[[A-Z][\w ]*\])+ [A-Z].*[^.]", patch.header.title)
    assert len(patch.header.title) <= 88
    assert max(map(len, patch.header.description.splitlines())) <= 88


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.slug)
def test_explain_says_all_that_the_header_says(patch: series.Patch) -> None:
    text = printing.explanation(patch)
    for said in (patch.slug, patch.header.title, patch.header.origin, *patch.header.touches):
        assert said in text
    # Nothing is said of what there is none of.
    rows = re.findall(r"^(\w+) {2,}", text, re.MULTILINE)
    assert ("origin" in rows) is bool(patch.header.origin)
    assert patch.header.applied_upstream or "not from upstream" not in text


def test_added_files_are_within_what_the_package_ships() -> None:
    for patch in PATCHES:
        for path in patch.header.adds:
            assert path.startswith(("tests/v1/", "vllm/"))


BROKEN = [
    ("series.toml", 'revision = 1\ncore = ["nix"]\nstable = []', r"nix/patch.toml: No such file"),
    (
        "series.toml",
        'revision = 1\ncore = ["gate-speculative-tensors"]\nstable = []',
        "requires forward-seq",
    ),
    ("series.toml", "revision = 1\ncore = []\nstable = []", "does not name batch-max-seq-len, "),
    ("series.toml", "core = []\nstable = []", "series.toml: .*`revision`"),
    ("series.toml", "core = [", "series.toml: "),
    ("batch-max-seq-len/patch.toml", "title = 1", r"patch.toml: Expected `str`"),
    ("batch-max-seq-len/patch.toml", "colour = 1", r"patch.toml: "),
]


@pytest.mark.parametrize(("file", "text", "says"), BROKEN)
def test_a_broken_series_is_named(copy: Path, file: str, text: str, says: str) -> None:
    (copy / "patches" / file).write_text(text)
    with pytest.raises(SeriesError, match=says):
        series.load(copy)


def adding(copy: Path, slug: str, path: str) -> None:
    """Let the header of a patch add one file more."""
    header = copy / "patches" / slug / "patch.toml"
    header.write_text(header.read_text().replace("adds = [", f'adds = ["{path}",'))


@pytest.mark.parametrize("path", ["vllm/v1/new.cu", "vllm/../new.py", "docs/new.md", ""])
def test_a_patch_that_adds_what_would_not_be_installed_is_an_error(copy: Path, path: str) -> None:
    """A way of delivery that left the file out would still say that the patch is applied."""
    adding(copy, "gate-speculative-tensors", path)
    with pytest.raises(SeriesError, match=rf"adds {re.escape(path)}: want paths below tests/"):
        series.load(copy)


def test_a_module_that_two_patches_add_is_an_error(copy: Path) -> None:
    """Neither could be taken out alone."""
    for slug in ("batch-max-seq-len", "gate-speculative-tensors"):
        adding(copy, slug, "vllm/new.py")
    says = r"vllm/new\.py: both batch-max-seq-len and gate-speculative-tensors add it"
    with pytest.raises(SeriesError, match=says):
        series.load(copy)


def test_a_file_to_add_that_is_not_there_is_named(copy: Path) -> None:
    adding(copy, "batch-max-seq-len", "vllm/new.py")
    patch = series.load(copy).patch("batch-max-seq-len")
    with pytest.raises(SeriesError, match=r"/vllm/new\.py: No such file.*batch-max-seq-len adds"):
        patch.modules()


def test_two_patches_at_odds_are_an_error() -> None:
    """A later patch that takes an earlier one's change back is found when the plan is read back."""
    source = {
        "vllm/v1/worker/gpu/a.py": b"class A:\n    def m(self):\n        return f(x=1)\n",
    }

    def want(now: str, was: str) -> series.Edit:
        def edit(vllm: Vllm) -> None:
            vllm.class_("a.py", "A").method("m").keyword("f", "x", now=now, was=was)

        return edit

    first, second = want("2", "1"), want("1", "2")
    patches = [_patch("first", first), _patch("second", second)]
    with pytest.raises(SeriesError, match="first: undone by a later patch"):
        plan.make(patches, source, releases={})


def test_a_file_is_parsed_once_for_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(content: bytes) -> cst.Module:
        parsed.append(content)
        return cst.Module([])

    monkeypatch.setattr("libcst.parse_module", parse)
    files = {"vllm/v1/worker/gpu/a.py": b"# no other test has this one\n"}
    for _ in range(2):
        Vllm(files).module("vllm/v1/worker/gpu/a.py")
    assert parsed == [*files.values()]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_plan_leaves_the_garbage_collector_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    seen: list[bool] = []

    def edit(vllm: Vllm) -> None:
        seen.append(gc.isenabled())
        raise ValueError("a mistake in an edit")

    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="a mistake"):
            plan.make([_patch("mistaken", edit)], {}, releases={})
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert seen == [False]


def _patch(slug: str, edit: series.Edit) -> series.Patch:
    header = PATCHES[0].header

    class Patch(series.Patch, frozen=True):
        @property
        def edit(self) -> series.Edit:
            return edit

    return Patch(slug, header, Path())


def test_selection_brings_what_is_required() -> None:
    selected = series.load().select(["gate-speculative-tensors"])
    assert [patch.slug for patch in selected] == [
        "forward-seq-lens-cpu-upper-bound",
        "gate-speculative-tensors",
    ]
