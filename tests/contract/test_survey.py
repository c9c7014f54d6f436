"""The check on the real engine: each known breach is found, and nothing else is ever said."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest
from packaging.specifiers import SpecifierSet

from mrv2_fixes.cli import WORKERS
from tests.contract import survey
from tests.contract.outcome import Outcome
from tests.contract.scenarios import SCENARIOS

pytestmark = pytest.mark.engine

# Per release and what is patched, those that show something that no other row does.
RUNS: dict[tuple[str, str], tuple[str, ...]] = {
    ("0.21.0", "core"): ("eagle", "lfm2"),
    ("0.22.1", "none"): ("lfm2", "eagle"),
    ("0.22.1", "core"): ("llama, preempted", "eagle, async", "granite, eagle"),
    ("0.23.0", "core"): ("lfm2, async", "mtp"),
    ("0.24.0", "none"): ("llama", "granite", "mtp, async"),
    ("0.24.0", "core"): (
        *("llama, async", "gemma3, prefix caching", "lfm2, preempted", "granite, all"),
        *("granite, all, idle", "mamba2", "eagle, preempted", "granite, eagle", "dflash"),
    ),
    ("0.30.0", "core"): ("lfm2, align", "granite", "eagle, prefix caching", "qwen3_next, mtp"),
    ("0.31.0", "core"): ("deepseek", "lfm2, align, idle", "mtp, async", "draft model, async"),
    ("0.32.0", "core"): (
        *("llama, async", "llama, preempted", "gemma3, prefix caching", "deepseek", "bert"),
        *("lfm2, align", "granite, preempted", "mamba2", "qwen3_next", "qwen3_next, align"),
        *("eagle, async", "eagle, idle", "mtp", "qwen3_next, mtp", "dflash"),
        *("draft model", "ngram"),
    ),
}
Run = tuple[str, str]
Cell = tuple[str, str, str]
CELLS: list[Cell] = [(*run, name) for run, names in RUNS.items() for name in names]


class Known(NamedTuple):
    """A breach that is there: in which metadata, of which field, where, and what comes of it.

    wrong: tokens are. ends: the line that ends the engine, or empty.
    """

    of: str
    field: str
    releases: SpecifierSet
    scenarios: tuple[str, ...]
    patched: tuple[str, ...] = ("none", "core")
    wrong: bool = False
    ends: str = ""


def _drafts(*methods: str) -> tuple[str, ...]:
    return tuple(name for name, scenario in SCENARIOS.items() if scenario.draft in methods)


EAGLE_AND_MTP = _drafts("eagle", "mtp")
HYBRIDS = ("lfm2", "granite")
IDLE_HYBRIDS = ("lfm2, align, idle", "granite, all, idle")
NO_BOUND = "assert seq_lens_cpu is not None"
NOT_TOLD = "assert is_prefilling is not None"
KNOWN = (
    # The core mends these.
    Known(
        "target",
        "seq_lens_cpu_upper_bound",
        SpecifierSet("<0.25"),
        HYBRIDS,
        ("none",),
        ends=NO_BOUND,
    ),
    Known("target", "max_seq_len", SpecifierSet("<0.23"), HYBRIDS, ("none",)),
    Known("draft", "max_seq_len", SpecifierSet("<0.23"), EAGLE_AND_MTP, ("none",)),
    Known("target", "num_accepted_tokens", SpecifierSet("<0.25"), ("granite",), ("none",)),
    Known("target", "num_decode_draft_tokens_cpu", SpecifierSet("<0.25"), ("granite",), ("none",)),
    # A model without attention has the model state of one that has no other layers.
    Known("target", "is_prefilling", SpecifierSet("<0.26"), ("mamba2",), ends=NOT_TOLD),
    # The draft's metadata have no bound.
    Known("draft", "seq_lens_cpu_upper_bound", SpecifierSet("<0.27"), (*EAGLE_AND_MTP, "dflash")),
    # Drafts that go beyond max_model_len.
    Known("draft", "max_seq_len", SpecifierSet("<0.28"), ("dflash",)),
    Known("draft", "block_table_tensor", SpecifierSet("<0.28"), ("dflash",)),
    # The host goes on counting tokens that were rejected.
    Known("target", "seq_lens_cpu_upper_bound", SpecifierSet("==0.21.0"), ("eagle",)),
    Known("target", "max_seq_len", SpecifierSet("==0.21.0"), ("eagle",)),
    # A prompt no longer than the drafts stands before rows that verify drafts.
    Known("target", "row order", SpecifierSet("<0.26"), ("granite, eagle",), wrong=True),
    # What the row's last owner had accepted.
    Known("target", "num_accepted_tokens", SpecifierSet("<0.26"), ("granite, eagle",)),
    # A dummy batch has the blocks of the last real one, and writes its state to the first of them.
    Known("target", "block_table_tensor", SpecifierSet("<0.27"), IDLE_HYBRIDS, wrong=True),
    # One token more is in the sequences than the bound counts; nobody sets max_seq_len.
    Known("draft", "seq_lens_cpu_upper_bound", SpecifierSet(">=0.31"), _drafts("draft_model")),
    Known("draft", "max_seq_len", SpecifierSet(">=0.31"), _drafts("draft_model")),
)


def known(release: str, patched: str, name: str) -> list[Known]:
    """What is wrong in a scenario."""
    return [
        one
        for one in KNOWN
        if release in one.releases and patched in one.patched and name in one.scenarios
    ]


def found(outcome: Outcome) -> set[tuple[str, str]]:
    """Whose metadata have which field wrong; each target has two layers, 0 and 1."""
    layers = ("model.layers.0.", "model.layers.1.", "encoder.", "backbone.")
    return {
        ("target" if finding.layer.startswith(layers) else "draft", finding.field)
        for finding in outcome.findings
    }


@pytest.fixture(scope="session")
def surveys(request: pytest.FixtureRequest) -> Iterator[dict[Run, Future[list[Outcome]]]]:
    """What is seen on each release, of the scenarios that are asked for; several at a time."""
    wanted: dict[Run, dict[str, None]] = {}
    for item in request.session.items:
        cell: Cell | None = getattr(getattr(item, "callspec", None), "params", {}).get("cell")
        if cell:
            wanted.setdefault(cell[:2], {})[cell[2]] = None
    with ThreadPoolExecutor(WORKERS) as pool:
        yield {run: pool.submit(survey.run, *run, list(names)) for run, names in wanted.items()}


@pytest.fixture
def outcome(surveys: dict[Run, Future[list[Outcome]]], cell: Cell) -> Outcome:
    release, patched, name = cell
    outcomes = surveys[release, patched].result()
    return next(one for one in outcomes if one.scenario == name)


cells = pytest.mark.parametrize("cell", CELLS, ids=["-".join(cell) for cell in CELLS])


@cells
def test_the_check_says_what_is_known_and_nothing_else(outcome: Outcome, cell: Cell) -> None:
    expected = {(one.of, one.field) for one in known(*cell)}
    assert found(outcome) == expected, outcome.findings


@cells
def test_the_scenario_shows_what_it_is_for(outcome: Outcome, cell: Cell) -> None:
    release, _, name = cell
    scenario = SCENARIOS[name]
    ends = [one.ends for one in known(*cell) if one.ends]
    if ends:
        assert ends[0] in outcome.error
        return
    assert not outcome.error
    assert all(outcome.counters[counter] for counter in scenario.shows), outcome.counters
    if release in scenario.right.releases:
        assert bool(outcome.wrong) is any(one.wrong for one in known(*cell)), outcome.wrong
