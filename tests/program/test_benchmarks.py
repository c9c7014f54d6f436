"""What the results of the benchmarks, and the plots, can be relied on for."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import growth, measure, plots

RESULTS = sorted(measure.RESULTS.glob("*.json"))
named = pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.stem)


@named
def test_a_result_speaks_of_the_code_as_it_is(result: Path) -> None:
    kept = json.loads(result.read_text())
    assert kept["digest"] == measure.digest(map(measure.ROOT.joinpath, kept["of"])), (
        f"{', '.join(kept['of'])}: changed since it was measured: make bench"
    )


@named
def test_a_result_names_no_place_and_no_machine(result: Path) -> None:
    text = result.read_text()
    assert os.uname().nodename not in text
    assert not re.search(r"(/home|/root|/tmp|/work)\b", text)


@named
def test_a_plot_is_what_its_result_gives(result: Path) -> None:
    if result.stem in plots.DRAWN:
        drawn = plots.PLOTS / f"{result.stem}.svg"
        assert drawn.read_bytes() == plots.plot(result), "make plots"


def test_plots_are_those_of_results_that_are_there() -> None:
    kept = {path.stem for path in RESULTS}
    assert {path.stem for path in plots.PLOTS.iterdir()} == kept & {*plots.DRAWN}


def test_every_benchmark_runs_with_make_bench_and_has_a_result() -> None:
    (listed,) = re.findall(r"^BENCHMARKS := (.*)$", (measure.ROOT / "Makefile").read_text(), re.M)
    folder = Path(measure.__file__).parent
    scripts = {path.stem for path in folder.glob("*.py") if "\ndef main(" in path.read_text()}
    # the result of a GPU is there once one has been found
    assert {*listed.split()} == scripts - {"plots", "gpu"}
    assert {path.stem for path in RESULTS} - {"gpu"} == {*listed.split()}


def test_every_action_runs_once_a_round_and_not_always_behind_the_same() -> None:
    order: list[str] = []
    actions = {name: (lambda name=name: order.append(name)) for name in "abc"}
    taken = measure.interleaved(actions, 20)
    rounds = [tuple(order[at : at + 3]) for at in range(0, len(order), 3)]
    assert {name: len(seconds) for name, seconds in taken.items()} == dict.fromkeys("abc", 20)
    assert {tuple(sorted(one)) for one in rounds} == {("a", "b", "c")}
    assert len({*rounds}) > 1


def test_ratios_are_those_of_each_round() -> None:
    # the second round met a machine that was ten times as busy
    taken = {"one": [1.0, 10.0, 1.0, 1.0], "other": [2.0, 20.0, 3.0, 9.0]}
    assert measure.compared(taken, to="one")["other"] == {
        "seconds": 6.0,
        "ratio": 2.5,
        "least": 2.0,
        "most": 4.5,
    }
    assert measure.compared({"one": [1.0], "other": [2.0]}, to="one")["other"]["ratio"] == 2.0


def test_a_result_says_what_it_was_measured_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    (tmp_path / "of").mkdir()
    script, deep = tmp_path / "script.py", tmp_path / "of" / "deep.py"
    for path in (script, deep):
        path.write_text("one")
    kept = json.loads(
        measure.write("name", {"a": 1}, [script, tmp_path / "of"], {"vllm": "0.24.0"}).read_text()
    )
    assert kept["figures"] == {"a": 1}
    assert kept["of"] == ["of", "script.py"]
    assert kept["versions"]["vllm"] == "0.24.0"
    assert kept["machine"]["cpu"]
    assert kept["machine"]["cores"] >= 1
    before = measure.digest([script, tmp_path / "of"])
    assert before == kept["digest"]
    deep.write_text("two")
    assert measure.digest([script, tmp_path / "of"]) != before


@pytest.mark.parametrize(("patches", "files"), [(3, 1), (1, 3)])
def test_what_grows_is_planned_as_it_was_made(patches: int, files: int, tmp_path: Path) -> None:
    assert set(growth.actions(tmp_path, patches, files)) == {
        "git apply --check",
        "git apply",
        "mrv2 status",
        "mrv2 apply",
        "hook",
        "plan",
    }


def test_a_plot_keeps_text_as_text_on_a_clear_ground(tmp_path: Path) -> None:
    group: dict[str, Any] = measure.compared({"git apply": [1.0], "mrv2": [2.5]}, to="git apply")
    result = tmp_path / "commands.json"
    result.write_text(json.dumps({"figures": {"look": group, "bytes": 1}}))
    drawn = plots.plot(result).decode()
    assert ">git apply<" in drawn
    assert "2.5" in drawn
    assert "#ffffff" not in drawn
    assert drawn == plots.plot(result).decode()
