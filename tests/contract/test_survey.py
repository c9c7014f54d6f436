"""The check on the real engine: each known breach is found, and nothing else is ever said."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import pytest
from packaging.specifiers import SpecifierSet

from mrv2_fixes.cli import WORKERS
from tests.contract import survey
from tests.contract.outcome import Outcome
from tests.contract.scenarios import SCENARIOS, Draft

pytestmark = pytest.mark.engine

# Per release and what is patched, those that show something that no other row does.
RUNS: dict[tuple[str, str], tuple[str, ...]] = {
    ("0.21.0", "core"): ("eagle", "lfm2"),
    ("0.21.0", "all"): ("eagle",),
    ("0.22.1", "none"): ("lfm2", "eagle, async"),
    ("0.22.1", "core"): ("llama, preempted", "lfm2", "eagle, async", "granite, eagle"),
    ("0.22.1", "all"): ("granite, eagle",),
    ("0.23.0", "core"): ("lfm2, async", "mtp"),
    ("0.24.0", "none"): ("llama", "granite", "mtp, async"),
    ("0.24.0", "core"): (
        *("llama, async", "gemma3, prefix caching", "lfm2, preempted", "granite, all"),
        *("granite, all, idle", "mamba2", "eagle, preempted", "granite, eagle", "dflash"),
    ),
    ("0.24.0", "all"): ("granite", "eagle, preempted", "granite, eagle", "dflash"),
    ("0.30.0", "core"): ("lfm2, align", "granite", "eagle, prefix caching", "qwen3_next, mtp"),
    ("0.31.0", "core"): ("deepseek", "lfm2, align, idle", "mtp, async", "draft model, async"),
    ("0.32.0", "core"): (
        *("llama, async", "llama, preempted", "gemma3, prefix caching", "deepseek", "bert"),
        *("lfm2, align", "granite, preempted", "mamba2", "qwen3_next", "qwen3_next, align"),
        *("eagle, async", "eagle, idle", "mtp", "qwen3_next, mtp", "dflash"),
        *("draft model", "ngram"),
    ),
    ("0.32.0", "all"): ("draft model", "qwen3_next, mtp"),
}
Run = tuple[str, str]
Cell = tuple[str, str, str]
CELLS: list[Cell] = [(*run, name) for run, names in RUNS.items() for name in names]


@dataclass(frozen=True)
class Known:
    """A breach that is there: in which metadata, of which field, where, and what comes of it.

    mended_by: the patch that takes it away, if there is one. wrong: tokens are. ends: the line
    that ends the engine, or empty.
    """

    of: Literal["target", "draft"]
    field: str
    _: KW_ONLY
    releases: str
    scenarios: tuple[str, ...]
    mended_by: str = ""
    wrong: bool = False
    ends: str = ""

    def concerns(self, release: str, name: str) -> bool:
        """Whether it is there in a scenario, unless it is mended."""
        return release in SpecifierSet(self.releases) and name in self.scenarios

    def mended(self, patched: str) -> bool:
        """Whether the patch that takes it away is in."""
        return self.mended_by in {patch.slug for patch in survey.patches(patched)}


def _drafts(*methods: Draft) -> tuple[str, ...]:
    return tuple(name for name, scenario in SCENARIOS.items() if scenario.draft in methods)


EAGLE_AND_MTP = _drafts("eagle", "mtp")
DRAFT_MODELS = _drafts("draft_model")
HYBRIDS = ("lfm2", "granite")
IDLE_HYBRIDS = ("lfm2, align, idle", "granite, all, idle")
HYBRID_WITH_DRAFTS = ("granite, eagle",)
NO_BOUND = "assert seq_lens_cpu is not None"
NOT_TOLD = "assert is_prefilling is not None"
KNOWN = (
    Known(
        "target",
        "seq_lens_cpu_upper_bound",
        releases="<0.25",
        scenarios=HYBRIDS,
        mended_by="forward-seq-lens-cpu-upper-bound",
        ends=NO_BOUND,
    ),
    Known(
        "target",
        "max_seq_len",
        releases="<0.23",
        scenarios=HYBRIDS,
        mended_by="batch-max-seq-len",
    ),
    Known(
        "draft",
        "max_seq_len",
        releases="<0.23",
        scenarios=EAGLE_AND_MTP,
        mended_by="batch-max-seq-len",
    ),
    Known(
        "target",
        "num_accepted_tokens",
        releases="<0.25",
        scenarios=("granite",),
        mended_by="gate-speculative-tensors",
    ),
    Known(
        "target",
        "num_decode_draft_tokens_cpu",
        releases="<0.25",
        scenarios=("granite",),
        mended_by="gate-speculative-tensors",
    ),
    # A model without attention has the model state of one that has no other layers.
    Known("target", "is_prefilling", releases="<0.26", scenarios=("mamba2",), ends=NOT_TOLD),
    # The draft's metadata have no bound.
    Known(
        "draft",
        "seq_lens_cpu_upper_bound",
        releases="<0.27",
        scenarios=EAGLE_AND_MTP,
        mended_by="forward-draft-seq-lens-cpu-upper-bound",
    ),
    # Drafts that go beyond max_model_len; where there is a bound, it does so too.
    Known("draft", "seq_lens_cpu_upper_bound", releases="<0.28", scenarios=("dflash",)),
    Known("draft", "max_seq_len", releases="<0.28", scenarios=("dflash",)),
    Known("draft", "block_table_tensor", releases="<0.28", scenarios=("dflash",)),
    # The host goes on counting tokens that were rejected; a draft's bound is made of the target's.
    Known("target", "seq_lens_cpu_upper_bound", releases="==0.21.0", scenarios=("eagle",)),
    Known("target", "max_seq_len", releases="==0.21.0", scenarios=("eagle",)),
    Known("draft", "seq_lens_cpu_upper_bound", releases="==0.21.0", scenarios=("eagle",)),
    # A prompt no longer than the drafts stands before rows that verify drafts.
    Known(
        "target",
        "row order",
        releases="<0.26",
        scenarios=HYBRID_WITH_DRAFTS,
        mended_by="decodes-before-short-prefills",
        wrong=True,
    ),
    # What the row's last owner had accepted.
    Known(
        "target",
        "num_accepted_tokens",
        releases="<0.26",
        scenarios=HYBRID_WITH_DRAFTS,
        mended_by="reset-accepted-tokens-on-slot-reuse",
    ),
    # A dummy batch has the blocks of the last real one, and writes its state to the first of them.
    Known("target", "block_table_tensor", releases="<0.27", scenarios=IDLE_HYBRIDS, wrong=True),
    # One token more is in the sequences than the bound counts; nobody sets max_seq_len.
    Known(
        "draft",
        "seq_lens_cpu_upper_bound",
        releases=">=0.31",
        scenarios=DRAFT_MODELS,
        mended_by="draft-model-metadata-bounds",
    ),
    Known(
        "draft",
        "max_seq_len",
        releases=">=0.31",
        scenarios=DRAFT_MODELS,
        mended_by="draft-model-metadata-bounds",
    ),
)


def known(release: str, patched: str, name: str) -> list[Known]:
    """What is wrong in a scenario."""
    return [one for one in KNOWN if one.concerns(release, name) and not one.mended(patched)]


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


@pytest.mark.parametrize(
    "one",
    [one for one in KNOWN if one.mended_by],
    ids=lambda one: f"{one.of}-{one.field}-{one.releases}",
)
def test_what_a_patch_mends_is_run_without_it_and_with_it(one: Known) -> None:
    ways: dict[tuple[str, str], set[bool]] = {}
    for release, patched, name in CELLS:
        if one.concerns(release, name):
            ways.setdefault((release, name), set()).add(one.mended(patched))
    assert {False, True} in ways.values()


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
