"""Each rule of the check, broken on purpose in the code of the release, ends the engine by name.

What only a CUDA graph has, padding, cannot be had here: tests/v1 hands such metadata over as they
are. Dummy batches and the order of rows are wrong in releases as they are: see test_survey.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import libcst as cst
import libcst.matchers as m
import pytest

from mrv2_fixes import engine
from mrv2_fixes.cli import WORKERS
from tests.contract import survey

pytestmark = pytest.mark.engine

STATES = "vllm/v1/worker/gpu/model_states/"
BUILD, HYBRID = "build_attn_metadata", "MambaHybridAttnMetadata"


class Break(NamedTuple):
    """A keyword of the one call in a model state, given something else; {0} is what it was.

    says: the end of what the check says of it.
    """

    keyword: str
    given: str
    says: str
    call: str = BUILD
    scenario: str = "llama"

    @property
    def path(self) -> str:
        return STATES + ("mamba_hybrid.py" if self.call == HYBRID else "default.py")


GRANITE = (HYBRID, "granite")
DRAFTS = (HYBRID, "granite, eagle")
BOUND, TABLES = "seq_lens_cpu_upper_bound", "block_tables"
ON_BOTH = (
    Break("max_seq_len", "{0} - 1", "max_seq_len, row 1: expected 43 or more, found 42"),
    Break("max_seq_len", "self.max_model_len", "max_seq_len: expected 43 or less, found 128"),
    Break(BOUND, "None", f"{BOUND}: expected a tensor on the CPU, found None"),
    Break(BOUND, "{0} - 1", f"{BOUND}, row 0: expected 5 or more, its seq_len, found 4"),
    Break(BOUND, "{0} + 1", f"{BOUND}, row 0: expected 5 or less, by its seq_len, found 6"),
    Break("slot_mappings", "{0} + 10**6", "slot_mapping, row 0: expected slots 0 to"),
    Break(TABLES, "[t + 10**6 for t in {0}]", "block_table_tensor, row 0: expected blocks 0 to"),
    Break(
        "num_accepted_tokens",
        "torch.ones(num_reqs, dtype=torch.int32)",
        "num_accepted_tokens: expected None, as nothing is speculative, found 2 entries",
        *GRANITE,
    ),
)
ON_ONE = (
    Break(BOUND, "{0}[:1]", f"{BOUND}: expected 2 entries, found 1"),
    Break("max_query_len", "{0} - 1", "max_query_len, row 1: expected 43 or more, found 42"),
    Break("query_start_loc_cpu", "{0}.flip(0)", "query_start_loc_cpu, row 0: expected 0, found"),
    Break(
        "query_start_loc_gpu",
        "{0} + {0}.gt(0).int()",
        "query_start_loc, row 1: expected 5, as on the host, found 6",
    ),
    Break("num_tokens", "{0} + 1", "num_actual_tokens: expected 48, the end of query_start_loc"),
    Break(TABLES, "[t[:1] for t in {0}]", "block_table_tensor: expected 2 entries, found 1"),
    Break(TABLES, "[t[:, :1] for t in {0}]", "expected no more than 1 columns of the block table"),
    Break(
        "num_accepted_tokens",
        "None if {0} is None else {0} + 9",
        "num_accepted_tokens, row 0: expected 1 to 4, found 10",
        *DRAFTS,
    ),
    Break(
        "num_decode_draft_tokens_cpu",
        "None if {0} is None else {0}[:1]",
        "num_decode_draft_tokens_cpu: expected 2 entries, found 1",
        *DRAFTS,
    ),
    Break("is_prefilling", "{0}[:1]", "is_prefilling: expected 2 entries, found 1", *GRANITE),
)
CELLS = [("0.24.0", one) for one in (*ON_BOTH, *ON_ONE)] + [("0.32.0", one) for one in ON_BOTH[:4]]


class _Given(m.MatcherDecoratableTransformer):
    """Gives the keyword of the call something else, and counts where."""

    def __init__(self, one: Break) -> None:
        super().__init__()
        self.one = one
        self.places = 0

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if not m.matches(original_node.func, m.Name(self.one.call)):
            return updated_node
        return updated_node.with_changes(args=[self._argument(arg) for arg in updated_node.args])

    def _argument(self, arg: cst.Arg) -> cst.Arg:
        if arg.keyword is None or arg.keyword.value != self.one.keyword:
            return arg
        self.places += 1
        was = f"({cst.Module([]).code_for_node(arg.value)})"
        return arg.with_changes(value=cst.parse_expression(self.one.given.format(was)))


def broken(release: str, one: Break) -> bytes:
    """The file of the release, patched, with one keyword given something else."""
    environment = engine.environment(release)
    there = (environment.site_packages / one.path).read_bytes()
    given = _Given(one)
    made = cst.parse_module(survey.checked(environment, "core").get(one.path, there)).visit(given)
    assert given.places == 1, one
    return made.bytes


def _seen(cell: tuple[str, Break]) -> str:
    release, one = cell
    files = {one.path: broken(release, one)}
    (outcome,) = survey.run(release, "core", [one.scenario], broken=files)
    return outcome.error


@pytest.fixture(scope="session")
def errors(request: pytest.FixtureRequest) -> dict[int, str]:
    """What ends the engine of each cell that is asked for; several at a time."""
    parameters = [
        getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items
    ]
    wanted = [one["broken_cell"] for one in parameters if "broken_cell" in one]
    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(wanted, pool.map(_seen, [CELLS[i] for i in wanted]), strict=True))


@pytest.mark.parametrize(
    "broken_cell",
    range(len(CELLS)),
    ids=[f"{release}-{one.keyword}-{one.given}" for release, one in CELLS],
)
def test_the_check_names_it(errors: dict[int, str], broken_cell: int) -> None:
    assert errors[broken_cell].startswith("AttnMetadataError: "), errors[broken_cell]
    assert CELLS[broken_cell][1].says in errors[broken_cell]
