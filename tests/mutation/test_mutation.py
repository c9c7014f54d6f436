"""Changed releases: the fix is in once and does what it should, or a drift names the place.

`make mutation COUNT=1000` judges more of them; a seed that was judged wrong is looked at with
`python -m tests.mutation show RELEASE FILE SEED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from mrv2_fixes import known, plan, series
from mrv2_fixes.plan import State
from mrv2_fixes.targets import folder

from ..program.conftest import Source, published
from . import mutants, oracle
from .oracle import (
    BATCH,
    CHECK,
    DRAFT_BOUND,
    DRAFT_MODEL,
    FIRST,
    FORWARD,
    GATE,
    ORDER,
    PLACEHOLDERS,
    SLOT,
)
from .subjects import (
    DEFAULT,
    DFLASH,
    EAGLE,
    ENCODER,
    HYBRID,
    RUNNER,
    SCHEDULER,
    STANDALONE,
    UTILS,
)
from .world import PACKAGE

__all__ = ["published"]

pytestmark = [
    pytest.mark.releases,
    # A mutant may make a method async, and nobody awaits it.
    pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning"),
]

# Of each touched file; 0.22.0 has the files of 0.22.1, and 0.25.1 and 0.27.1 those before them.
SEEDS = {
    **dict.fromkeys(["0.21.0", "0.22.1", "0.23.0", "0.24.0"], 30),
    **dict.fromkeys(["0.20.2", "0.25.0", "0.29.0", "0.31.0", "0.33.0"], 8),
    **dict.fromkeys(["0.26.0", "0.27.0", "0.28.0", "0.30.0", "0.32.0"], 3),
}
# Of each file that only patches of the group `stable` touch.
FEW = 2
FILES = [
    (release, path) for release in SEEDS for path in sorted(mutants.TOUCHED)
    if path in known.releases()[release].files
]  # fmt: skip


@pytest.mark.parametrize(("release", "path"), FILES, ids=[" ".join(file) for file in FILES])
def test_every_outcome_is_right(published: Source, release: str, path: str) -> None:
    files = folder.read(published(release)).files
    wrong = []
    few = mutants.OWN.get(path) == "stable"
    for seed in range(FEW if few else SEEDS[release]):
        mutant = mutants.mutant(release, files, path, seed)
        verdict = mutants.judge(mutant, oracle.PATCHES)
        wrong += [f"seed {seed} ({', '.join(mutant.kinds)}): {line}" for line in verdict.wrong]
    assert not wrong, "\n".join(wrong)


def test_every_patch_is_judged() -> None:
    assert oracle.RIGHT.keys() == {patch.slug for patch in series.load().patches}


@pytest.mark.parametrize("release", known.releases())
def test_a_release_as_published_is_judged_right(published: Source, release: str) -> None:
    files = folder.read(published(release)).files
    assert not oracle.judge(files, plan.make(oracle.PATCHES, files))


def test_a_seed_gives_the_same_mutant_each_time(published: Source) -> None:
    files = folder.read(published("0.22.1")).files
    first, again = (
        [mutants.mutant("0.22.1", files, HYBRID, seed) for seed in range(20)] for _ in range(2)
    )
    assert first == again
    assert len({mutant.files.get(HYBRID) for mutant in first}) > 15


def sub(pattern: str, replacement: str) -> Callable[[bytes], bytes]:
    def change(text: bytes) -> bytes:
        changed, times = re.subn(pattern, replacement, text.decode(), flags=re.MULTILINE)
        assert times == 1, f"{pattern} stands there {times} times"
        return changed.encode()

    return change


BOUND = r"^            seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound,\n"
# What an edit could get wrong, done to what the edits make of 0.22.1. Why; file; change; what the
# oracle says.
SABOTAGE = [
    ("keyword forgotten", HYBRID, sub(BOUND, ""), f"{FORWARD}: needed, and wrong"),
    ("keyword twice", HYBRID, sub(BOUND, r"\g<0>\g<0>"), "does not compile: keyword argument"),
    ("keyword with a part of it", HYBRID,
     sub(BOUND, "            seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound[:1],\n"),
     f"{FORWARD}: needed, and wrong"),
    ("at another call", HYBRID,
     sub(r"^        mamba_attn_metadata = Mamba",
         r"        build_attn_metadata(seq_lens_cpu_upper_bound=None)\n\g<0>"),
     "does something else"),
    ("capture bounded by the batch", HYBRID, sub("if for_capture$", "if False"),
     f"{BATCH}: needed, and wrong"),
    ("padding rows not looked at", HYBRID,
     sub(r"upper_bound\[:num_reqs\]", "upper_bound[:input_batch.num_reqs]"),
     f"{BATCH}: needed, and wrong"),
    ("gate the wrong way", HYBRID, sub("tokens > 0:", "tokens == 0:"),
     f"{GATE}: needed, and wrong"),
    ("gate open", HYBRID, sub(" and self.vllm_config.num_speculative_tokens > 0", ""),
     f"{GATE}: needed, and wrong"),
    ("gate closed", HYBRID, sub("tokens > 0:", "tokens > 0 and False:"),
     f"{GATE}: needed, and wrong"),
    ("a statement more", HYBRID,
     sub(r"^        mamba_attn_metadata = Mamba", r"        self.device.synchronize()\n\g<0>"),
     "does something else"),
    ("a line that is nobody's", HYBRID, sub(r"# need the -1 sentinel", "# need a sentinel"),
     "lines that no patch is about"),
    ("int still there", DEFAULT, sub(r"= (seq_lens_cpu_upper_bound\[.*)$", r"= int(\1)"),
     f"{BATCH}: needed, and wrong"),
    ("renewed behind a return", EAGLE,
     sub(r"^        self.draft_max_seq_len = min\(",
         r"        if self.device:\n            return None\n\g<0>"), "does something else"),
    ("renewed but once", EAGLE,
     sub(r"^            max_seq_len=self.draft_max_seq_len,",
         "            max_seq_len=self.__dict__.setdefault('_n', self.draft_max_seq_len),"),
     f"{BATCH}: needed, and wrong"),
    ("without the draft steps", EAGLE, sub(r"^            \+ self.num_speculative_steps,", ","),
     f"{BATCH}: needed, and wrong"),
    ("beyond the model's maximum", EAGLE,
     sub(r"^            self.max_model_len,\n        \)\n\n        # NOTE", "            9999,\n"
         "        )\n\n        # NOTE"), f"{BATCH}: needed, and wrong"),
    ("not there before the first batch", EAGLE,
     sub(r"^        self.draft_max_seq_len = self.max_model_len\n", ""),
     f"{BATCH}: needed, and wrong"),
    ("twice", EAGLE,
     sub(r"^        self.draft_max_seq_len = self.max_model_len\n", r"\g<0>\g<0>"),
     "other names more or less"),
]  # fmt: skip


@pytest.fixture(scope="module")
def fixed(published: Source) -> tuple[dict[str, bytes], plan.Plan]:
    """The files of 0.22.1, and their plan."""
    files = dict(folder.read(published("0.22.1")).files)
    return files, plan.make(series.load().core, files)


STATEMENT = r"^        check_metadata\(.*\n"
# The same for the check, of 0.32.0.
UNCHECKED = [
    ("decorator forgotten", UTILS, sub("^@checked\n", ""), f"{CHECK}: needed, and wrong"),
    ("import forgotten", UTILS, sub("^from .* import checked\n", ""), "does something else"),
    ("decorated twice", UTILS, sub("^@checked\n", r"\g<0>\g<0>"), f"{CHECK}: needed, and wrong"),
    ("another one decorated", UTILS,
     lambda text: sub("^def build_slot", r"@checked\n\g<0>")(sub("^@checked\n", "")(text)),
     f"{CHECK}: needed, and wrong"),
    ("another name imported", UTILS,
     sub("import checked$", "import checked, check_metadata as check"),
     "has other names more or less"),
    ("statement forgotten", ENCODER, sub(STATEMENT, ""), f"{CHECK}: needed, and wrong"),
    ("statement twice", ENCODER, sub(STATEMENT, r"\g<0>\g<0>"), f"{CHECK}: needed, and wrong"),
    ("behind the builders", ENCODER,
     lambda text: sub(r"^        return attn_metadata\n\Z",
                      "        check_metadata(common_attn_metadata, self.encoder_attn_groups, "
                      r"for_capture)\n\g<0>")(sub(STATEMENT, "")(text)),
     f"{CHECK}: needed, and wrong"),
    ("only at capture", ENCODER,
     sub("^        check_", "        if for_capture:\n            check_"),
     f"{CHECK}: needed, and wrong"),
    ("capture told otherwise", ENCODER,
     sub(r"groups, for_capture\)\n", "groups, not for_capture)\n"), f"{CHECK}: needed, and wrong"),
    ("other groups", ENCODER, sub(r"a, self\.encoder_attn_groups, for", "a, [], for"),
     f"{CHECK}: needed, and wrong"),
]  # fmt: skip


SPECULATOR = f"{PACKAGE}spec_decode/speculator.py"
AUTO = f"{PACKAGE}spec_decode/autoregressive/speculator.py"
CLEAR = r"^        clear_old_states\(.*\n"
# The same for the patches of the group `stable`, of 0.24.0.
UNSTABLE = [
    ("drafts bounded without their steps", AUTO,
     sub(r"^                \+ self\.num_speculative_steps,$", "                ,"),
     f"{DRAFT_BOUND}: needed, and wrong"),
    ("drafts bounded beyond the model's maximum", AUTO,
     sub(r"^                max=self\.max_model_len,$", "                max=9999,"),
     f"{DRAFT_BOUND}: needed, and wrong"),
    ("drafts without rows for padding", AUTO,
     sub(r"^            \(0, self\.max_num_reqs - num_reqs\),$", "            (0, 0),"),
     f"{DRAFT_BOUND}: needed, and wrong"),
    ("block bounded by the batch alone", DFLASH, sub(r" \+ self\.num_query_per_req,$", ","),
     f"{DRAFT_BOUND}: needed, and wrong"),
    ("no bound before the first batch", SPECULATOR,
     sub(r"^        self\.draft_seq_lens_cpu_upper_bound = torch", "        bound = torch"),
     "does something else"),
    ("all slots reset", HYBRID, sub(r"gpu\[req_index\]\.fill_", "gpu.fill_"),
     f"{SLOT}: needed, and wrong"),
    ("slot reset to nothing", HYBRID, sub(r"fill_\(1\)", "fill_(0)"),
     f"{SLOT}: needed, and wrong"),
    ("what is overridden forgotten", HYBRID, sub(r"^        super\(\)\.add_request.*\n", ""),
     "does something else"),
    ("old states left", HYBRID, sub(CLEAR, ""), f"{FIRST}: needed, and wrong"),
    ("old states cleared twice", HYBRID, sub(CLEAR, r"\g<0>\g<0>"), f"{FIRST}: needed, and wrong"),
    ("old states cleared at capture", HYBRID,
     sub("^        clear_", "        if for_capture:\n            clear_"),
     f"{FIRST}: needed, and wrong"),
    ("other blocks cleared", HYBRID, sub("h, block_tables, kv", "h, slot_mappings, kv"),
     f"{FIRST}: needed, and wrong"),
    ("prefills first", RUNNER,
     sub(r"^        order = np\.argsort\(.*$", r"\g<0>[::-1]"), f"{ORDER}: needed, and wrong"),
    ("rows of a kind in another order", RUNNER, sub(', kind="stable"', ""),
     "hands over something else"),
    ("names left as they were", RUNNER, sub(r"^        req_ids = \[req_ids.*\n", ""),
     f"{ORDER}: needed, and wrong"),
    ("counts left as they were", RUNNER, sub(r"^        num_sch\w+ = num_sch\w+\[order\]\n", ""),
     f"{ORDER}: needed, and wrong"),
    ("slots left as they were", RUNNER, sub(r"^        idx_mapping_np = idx_\w+\[order\]\n", ""),
     f"{ORDER}: needed, and wrong"),
]  # fmt: skip
TERM = r"\(num_computed_tokens > 0 or not self\.has_mamba_layers\)"
# And of 0.32.0.
UNCHECKED += [
    ("no request padded", SCHEDULER, sub(TERM, "False"), "does something else"),
    ("no first token padded", SCHEDULER, sub(TERM, "num_computed_tokens > 0"),
     "does something else"),
    ("all first tokens padded", SCHEDULER, sub(TERM, "True"),
     f"{PLACEHOLDERS}: needed, and wrong"),
    ("prefill bounded as the batch", STANDALONE, sub("step=1,", "step=0,"),
     f"{DRAFT_MODEL}: needed, and wrong"),
    ("limit without the steps", STANDALONE,
     sub(r"^            \+ self\.num_speculative_steps,$", "            ,"),
     f"{DRAFT_MODEL}: needed, and wrong"),
    ("limit beyond the model's maximum", STANDALONE,
     sub(r"(steps,\n            )self\.max_model_len,$", r"\g<1>9999,"),
     f"{DRAFT_MODEL}: needed, and wrong"),
]  # fmt: skip


@pytest.fixture(scope="module")
def joined(published: Source) -> tuple[dict[str, bytes], plan.Plan]:
    """The files of 0.24.0, and the plan of the patches that join the core."""
    files = dict(folder.read(published("0.24.0")).files)
    slugs = [DRAFT_BOUND, SLOT, FIRST, ORDER]
    return files, plan.make([series.load().patch(slug) for slug in slugs], files)


@pytest.fixture(scope="module")
def newest(published: Source) -> tuple[dict[str, bytes], plan.Plan]:
    """The files of 0.32.0, and the plan of the check and of what is needed there."""
    files = dict(folder.read(published("0.32.0")).files)
    slugs = [DRAFT_MODEL, PLACEHOLDERS, CHECK]
    return files, plan.make([series.load().patch(slug) for slug in slugs], files)


WRONG = [
    *(("fixed", *row) for row in SABOTAGE),
    *(("joined", *row) for row in UNSTABLE),
    *(("newest", *row) for row in UNCHECKED),
]


@pytest.mark.parametrize(
    ("planned", "why", "file", "change", "says"), WRONG, ids=[row[1] for row in WRONG]
)
def test_the_oracle_sees_what_an_edit_gets_wrong(
    request: pytest.FixtureRequest,
    planned: str,
    why: str,
    file: str,
    change: Callable[[bytes], bytes],
    says: str,
) -> None:
    files, made = request.getfixturevalue(planned)
    assert not oracle.judge(files, made)
    spoilt = msgspec.structs.replace(made, after={**made.after, file: change(made.after[file])})
    wrong = oracle.judge(files, spoilt)
    assert any(says in line for line in wrong), f"{why}: {wrong}"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (State.UPSTREAM, "upstream, and wrong in"),
        (State.NOT_AFFECTED, "not affected, and wrong in"),
        (State.DRIFTED, "drift names no file"),
    ],
)
@pytest.mark.parametrize("number", range(3))
def test_the_oracle_sees_a_state_that_is_not_so(
    fixed: tuple[dict[str, bytes], plan.Plan], number: int, state: State, says: str
) -> None:
    """As of a silent miss: the plan changes nothing and says that nothing is to do."""
    files, made = fixed
    step = msgspec.structs.replace(made.steps[number], state=state, files={}, detail="somewhere")
    wrong = oracle.judge(files, plan.Plan(None, (step,), {}, {}))
    assert any(says in line for line in wrong), wrong


def test_the_oracle_sees_a_fix_that_is_made_where_it_is_in(
    fixed: tuple[dict[str, bytes], plan.Plan],
) -> None:
    files, made = fixed
    wrong = oracle.judge({**files, **made.after}, plan.Plan(None, made.steps, {}, {}))
    assert [line for line in wrong if "needed, and right without it" in line] == wrong[:3]
