"""The page says of each patch and release what the kept runs prove, and nothing else."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from mrv2_fixes import known, series, verify
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.report import matrix, page
from mrv2_fixes.report.matrix import Entry, Proof
from mrv2_fixes.verify import Cell, Result, Side

from . import browser
from .conftest import Mrv2

SERIES = series.load()
# One with several reproducers on one release, for what holds of a part of them.
SEVERAL = SERIES.patch("batch-max-seq-len")
RELEASE = "0.22.1"
TESTS = [one.test for one in SEVERAL.reproducers(RELEASE)]
HOSTILE = (
    "</pre></details><script>window.marked = 1</script>"
    '<img src=x onerror="window.marked = 2"><a href="javascript:window.marked = 3">'
    "\x1b[31mred\x1b[0m\x00\x07 & \" ' {{ 7 * 7 }} {% raise %} \u202e\U0001f600"
)


def cell(
    patch: series.Patch = SEVERAL,
    release: str = RELEASE,
    test: str = TESTS[0],
    without: Result = Result.FAILS,
    with_: Result = Result.PASSES,
    output: str = "E   AssertionError: what was seen",
    **others: Any,
) -> Cell:
    """One that proves its patch, unless told otherwise."""
    versions = {"python": "3.11.7", "vllm": f"{release}+cpu"}
    sides = (
        Side(without, (), 20.5, "a line", versions, (), output),
        Side(with_, (patch.slug,), 10.0, "", versions, (), "1 passed"),
    )
    date = "2026-11-30T20:00:00+00:00"
    digest = verify.digest(patch, SERIES)
    made = Cell(patch.slug, release, test, without, with_, 30.5, date, digest, sides)
    return msgspec.structs.replace(made, **others)


def every() -> list[Cell]:
    """A cell for all that there is to prove."""
    return [
        cell(job.patch, job.release, reproducer.test)
        for job in verify.jobs(SERIES.patches, ())
        for reproducer in job.reproducers
    ]


def entry(cells: Iterable[Cell], slug: str = SEVERAL.slug, release: str = RELEASE) -> Entry:
    rows = matrix.make(SERIES, cells).rows
    return next(
        one
        for row in rows
        for one in row.entries
        if (one.patch.slug, one.release) == (slug, release)
    )


FIRST, SECOND = cell(), cell(test=TESTS[1])
FAILED = cell(test=TESTS[1], with_=Result.FAILS)
OLD = cell(test=TESTS[1], digest="0" * 64)
PROOFS = [
    ("all of its reproducers prove it", [FIRST, SECOND], Proof.PROVEN),
    ("nothing was run", [], Proof.NOT_RUN),
    ("one of two was not run", [FIRST], Proof.NOT_RUN),
    ("a reproducer that it no longer has proves nothing", [FIRST, cell(test="x")], Proof.NOT_RUN),
    ("it fails with the patch too", [FIRST, FAILED], Proof.NOT_PROVEN),
    ("it passes without the patch",
     [FIRST, cell(test=TESTS[1], without=Result.PASSES)], Proof.NOT_PROVEN),
    ("it fails in another way",
     [FIRST, cell(test=TESTS[1], without=Result.FAILS_OTHERWISE)], Proof.NOT_PROVEN),
    ("it did not run", [FIRST, cell(test=TESTS[1], with_=Result.DID_NOT_RUN)], Proof.NOT_PROVEN),
    ("one is of another patch than the one that stands there", [FIRST, OLD], Proof.OLD),
    ("what failed then says nothing of the patch now",
     [FIRST, msgspec.structs.replace(FAILED, digest="0" * 64)], Proof.OLD),
    ("a failure weighs more than an old run",
     [cell(without=Result.PASSES), OLD], Proof.NOT_PROVEN),
    ("another release's run proves nothing here",
     [FIRST, cell(test=TESTS[1], release="0.21.0")], Proof.NOT_RUN),
]  # fmt: skip


@pytest.mark.parametrize(("why", "cells", "proof"), PROOFS, ids=[case[0] for case in PROOFS])
def test_proven_is_only_what_was_run_as_it_stands(
    why: str, cells: list[Cell], proof: Proof
) -> None:
    assert entry(cells).proof is proof, why
    assert entry(cells).word == proof.value


WORDS = [
    ("batch-max-seq-len", "0.24.0", "upstream"),
    ("draft-model-metadata-bounds", "0.24.0", "not affected"),
    # needed by its files, and no proof of it there
    ("draft-model-metadata-bounds", "0.33.0", "needed"),
]


@pytest.mark.parametrize(("slug", "release", "word"), WORDS)
def test_where_there_is_nothing_to_prove_the_state_stands(
    slug: str, release: str, word: str
) -> None:
    assert entry(every(), slug, release).word == word


def test_the_matrix_has_every_patch_and_every_release_since_the_first_affected() -> None:
    made = matrix.make(SERIES, every())
    assert [row.patch for row in made.rows] == list(SERIES.patches)
    numbers = list(known.releases())
    assert list(made.releases) == numbers[numbers.index("0.21.0") :]
    pairs = {(job.patch.slug, job.release) for job in verify.jobs(SERIES.patches, ())}
    assert {(one.patch.slug, one.release) for one in made.entries(Proof.PROVEN)} == pairs


def written(cells: Iterable[Cell], plots: Iterable[page.Plot] = ()) -> str:
    return page.render(matrix.make(SERIES, cells), list(plots))


def cells_of(text: str, slug: str) -> list[str]:
    """The words of a row of the page's matrix."""
    row = re.search(rf'<th scope="row"><a href="#{slug}">.*?</tr>', text, re.DOTALL)
    assert row
    cells = re.findall(r"<td>(.*?)</td>", row[0], re.DOTALL)
    return [re.sub(r"<[^>]*>|[^\x00-\x7f]|&nbsp;|!", "", one) for one in cells]


def test_the_page_shows_the_matrix_and_how_each_proof_was_seen() -> None:
    made = matrix.make(SERIES, every())
    text = page.render(made)
    for row in made.rows:
        assert cells_of(text, row.patch.slug) == [one.word for one in row.entries]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    shown = re.search(rf'<div id="{SEVERAL.slug}-{RELEASE}">(.*?)</details>', text, re.DOTALL)
    assert shown
    for part in (*TESTS, "fails as declared", "20.5 s", "what was seen", "2026-11-30 20:00:00 UTC"):
        assert part in shown[1]


def test_the_page_tells_a_reader_by_ear_what_is_what() -> None:
    text = written(every())
    assert '<html lang="en">' in text
    assert re.search(r"<title>[^<]+</title>", text)
    assert not re.search(r"<th(?! scope=)\b", text)
    assert set(re.findall(r'aria-labelledby="([^"]+)"', text)) <= set(
        re.findall(r'id="([^"]+)"', text)
    )


def test_a_cell_that_is_old_says_how_to_run_it_anew() -> None:
    text = written([FIRST, OLD])
    assert f"mrv2 verify {RELEASE} --patch {SEVERAL.slug}" in text
    assert "mrv2 verify 0.2" not in written([FIRST, SECOND])


def test_runs_of_what_the_series_has_not_are_named() -> None:
    stray = msgspec.structs.replace(FIRST, patch="of-a-fork", release="0.9.0")
    assert "<code>of-a-fork</code> on 0.9.0." in written([stray])


def test_the_same_runs_give_the_same_page() -> None:
    assert written(every()) == written(every())


def test_what_was_printed_is_text_and_nothing_else() -> None:
    text = written([cell(output=HOSTILE), cell(test=TESTS[1], release=RELEASE, output=HOSTILE)])
    assert "<script" not in text
    assert "<img" not in text
    shown = re.search(r"<pre tabindex.*?>(&lt;/pre&gt;.*?)</pre>", text, re.DOTALL)
    assert shown
    said = html.unescape(shown[1])
    plain = HOSTILE.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert said == plain.replace("\x00\x07", "\N{REPLACEMENT CHARACTER}" * 2)


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9" height="9">{title}'
    '<rect width="9" height="9" fill="#808080"/></svg>'
)
RESULT = {"date": "2026-11-30T21:00:00+00:00",
          "machine": {"cpu": "A processor", "cores": 2, "memory": 23.5}, "load": [3.5, 2, 1],
          "versions": {"python": "3.11.7"}, "figures": {"ratio": 1.5}}  # fmt: skip


def test_a_plot_stands_in_the_page_with_its_title_and_its_circumstances(tmp_path: Path) -> None:
    (tmp_path / "a-plot.svg").write_text(SVG.format(title="<title>Seconds &lt; files</title>"))
    (tmp_path / "bare-one.svg").write_text(SVG.format(title=""))
    (tmp_path / "a-plot.json").write_text(json.dumps(RESULT))
    text = written([], page.plots(tmp_path, tmp_path))
    assert text.count('src="data:image/svg+xml;base64,') == 2
    assert 'alt="Seconds &lt; files"' in text
    assert 'alt="bare one"' in text
    # and its text is that of the page, in both schemes
    shown = base64.b64decode(re.findall(r"base64,([^\"]+)", text)[0]).decode()
    assert ElementTree.fromstring(shown).findtext("{*}title") == "Seconds < files"
    assert "prefers-color-scheme: dark" in shown
    caption = text.partition("<figcaption>")[2].partition("</figcaption>")[0]
    assert "2026-11-30 21:00:00 UTC" in caption
    on = "A processor, 2 cores, 24 GiB, load 3.5, with python 3.11.7."
    assert on in " ".join(caption.split())


WRONG = [("plot.svg", "<svg", "no SVG"), ("plot.json", "[]", "not what a benchmark keeps")]


@pytest.mark.parametrize(("name", "content", "said"), WRONG)
def test_a_plot_that_is_none_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / "plot.svg").write_text(SVG.format(title=""))
    (tmp_path / name).write_text(content)
    with pytest.raises(TargetUnusable, match=rf"{name}: {said}.*`make"):
        page.plots(tmp_path, tmp_path)


def test_the_command_writes_the_page(mrv2: Mrv2, tmp_path: Path) -> None:
    verify.write([FIRST, SECOND], tmp_path / "elsewhere" / "dist")
    done = mrv2("report")
    total = len(matrix.make(SERIES, ()).entries())
    assert (done.returncode, done.stdout) == (0, f"dist/report.html: 1 of {total} proven\n")
    made = (tmp_path / "elsewhere" / "dist" / "report.html").read_text(encoding="utf-8")
    assert made == written([FIRST, SECOND])


@pytest.mark.parametrize(("second", "word"), [(FAILED, "not proven"), (OLD, "old")])
def test_the_command_names_what_was_run_and_proves_nothing(
    mrv2: Mrv2, tmp_path: Path, second: Cell, word: str
) -> None:
    verify.write([FIRST, second], tmp_path)
    done = mrv2("report", "--results", tmp_path, "--output", tmp_path / "page" / "index.html")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{RELEASE} {SEVERAL.slug}: {word}\n")
    assert (tmp_path / "page" / "index.html").exists()


UNREADABLE: list[tuple[str, str | None, str]] = [
    ("none", None, "`mrv2 verify` makes it"),
    ("no JSON", "{", "`mrv2 verify` makes it anew"),
    ("of another form", '[{"patch": "x"}]', "`mrv2 verify` makes it anew"),
]


@pytest.mark.parametrize(("why", "content", "way"), UNREADABLE)
def test_without_results_the_command_says_in_one_line_what_to_run(
    mrv2: Mrv2, tmp_path: Path, why: str, content: str | None, way: str
) -> None:
    folder = tmp_path / "elsewhere" / "dist"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "verify.json").write_text(content)
    done = mrv2("report")
    assert (done.returncode, done.stdout) == (4, ""), why
    assert done.stderr.startswith("mrv2: dist/verify.json: ")
    assert way in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "report.html").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every word, a plot, and what must not be run."""
    scratch = tmp_path_factory.mktemp("page")
    (scratch / "plot.svg").write_text(SVG.format(title=""))
    (scratch / "plot.json").write_text(json.dumps(RESULT))
    cells = [one for one in every() if one.release != "0.23.0"]
    cells[-2] = msgspec.structs.replace(cells[-2], without=Result.PASSES)
    cells[-1] = msgspec.structs.replace(cells[-1], digest="0" * 64)
    cells += [cell(output=f"{HOSTILE}\n{'x' * 2000}", release="0.21.0", test=one) for one in TESTS]
    text = written(cells, page.plots(scratch, scratch))
    (scratch / "page.html").write_text(text, encoding="utf-8")
    return scratch / "page.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_it_in_any_light_and_width(whole: Path, tmp_path: Path, dark: bool) -> None:
    for width, seen in browser.look(whole, tmp_path, dark=dark).items():
        assert (max(seen["ground"]) < 64) is dark
        assert seen["contrast"][0] >= browser.CONTRAST, seen["contrast"]
        assert seen["over"] <= 0, f"at {width} the page is wider than the window"
        assert seen["opened"], "a click on a cell shows nothing"
        assert 0 <= seen["top"] < 200, "a click on a cell leads elsewhere"
        assert seen["scripts"] == 0
        assert seen["marked"] is None, "something that was printed was run"
        assert seen["fetched"] == []
        assert seen["images"] == [9], "the plot does not show"


def test_the_page_lets_no_script_run_and_loads_nothing(whole: Path, tmp_path: Path) -> None:
    """Should something of what was printed ever get in as it is."""
    text = whole.read_text(encoding="utf-8")
    (tmp_path / "mark.js").write_text("window.marked = 'loaded'")
    smuggled = '<script>window.marked = 1</script><script src="mark.js"></script></main>'
    (tmp_path / "page.html").write_text(text.replace("</main>", smuggled), encoding="utf-8")
    for seen in browser.look(tmp_path / "page.html", tmp_path, dark=False).values():
        assert seen["scripts"] == 2
        assert seen["marked"] is None
