"""Each rule of mrv2 audit speaks where a small vLLM is wrong, and not where it is right."""

from __future__ import annotations

import textwrap

import pytest

from mrv2_fixes.audit import audit
from mrv2_fixes.audit.finding import Kind

from .small_vllm import BOUND, GIVEN, LONG, STATE, kinds, of_state, vllm

# Body of `prepare_attn` and methods beside it: max_seq_len is right there.
RIGHT_LENGTHS = {
    "cut at the maximum": (
        f"""
        longest = min(self.max_model_len, input_batch.{BOUND}.max() + 3)
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
    ),
    "an attribute that each batch renews": (
        f"return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})",
        f"""
        def set_groups(self, groups):
            self.longest = self.max_model_len
        def prepare(self, input_batch):
            self.longest = int(input_batch.{BOUND}.max())
        """,
    ),
    "an attribute that is renewed for each batch before": (
        f"""
        self.longest = input_batch.longest
        return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})
        """,
        "",
    ),
    "the maximum in the branch that left": (
        f"""
        longest = self.max_model_len
        if self.groups:
            longest = input_batch.longest
        if not self.groups:
            return None
        longest = min(longest, self.max_model_len)
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
    ),
    "the maximum within the whole": (
        f"""
        longest = int(self.max_model_len if for_capture else input_batch.longest)
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
    ),
    "an attribute that a method of each batch renews": (
        f"""
        self.renew(input_batch.{BOUND}.max())
        return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})
        """,
        """
        def set_groups(self, groups):
            self.longest = self.max_model_len
        def renew(self, longest):
            self.longest = longest
        """,
    ),
    "an attribute that is set by its name": (
        f"""
        setattr(self, "longest", input_batch.longest)
        return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})
        """,
        """
        def set_groups(self, groups):
            self.longest = self.max_model_len
        """,
    ),
    "an attribute that somebody with the batch has renewed": (
        f"return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})",
        """
        def set_groups(self, groups):
            self.longest = self.max_model_len
        def renew(self, longest):
            self.longest = longest

    def run(state, input_batch):
        state.renew(input_batch.longest)
        """,
    ),
    "an attribute that somebody else sets": (
        f"return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})",
        """
        def set_groups(self, groups):
            self.longest = self.max_model_len
        def hand_over(self, other):
            other.longest = 3
        """,
    ),
    "a method for capture": (
        "return None",
        f"""
        def inputs_to_capture(self, input_batch):
            return build_attn_metadata(self.groups, 1, self.max_model_len, {GIVEN})
        """,
    ),
    "a build that is told to capture": (
        "return None",
        f"""
        def dummy(self, input_batch):
            return build_attn_metadata(
                self.groups, 1, self.max_model_len, {GIVEN}, for_cudagraph_capture=True
            )
        """,
    ),
    "a flag for capture by another name": (
        f"""
        static = for_capture and self.groups
        longest = self.max_model_len if static else input_batch.longest
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
    ),
    "what is known after a branch that left": (
        f"""
        if not for_capture:
            return build_attn_metadata(self.groups, 1, input_batch.longest, {GIVEN})
        return build_attn_metadata(self.groups, 1, self.max_model_len, {GIVEN})
        """,
        "",
    ),
    "a method that nobody runs": (
        "return None",
        f"""
        def _unused(self, input_batch):
            return build_attn_metadata(self.groups, 1, self.max_model_len, {GIVEN})
        """,
    ),
}
# A line that gives `longest`, which was the longest of the batch: it is still right.
RIGHT_LINES = [
    "longest = self.max_model_len if for_capture is True else longest",
    "longest = longest if for_capture is not True else self.max_model_len",
    "longest = self.max_model_len if self.phase is Phase.CAPTURE else longest",
    "longest = longest if longest < self.max_model_len else self.max_model_len",
    "longest = longest if input_batch.num_reqs else self.max_model_len",
    f"longest = self.max_model_len if input_batch.{BOUND} is None else longest",
    "longest = self.max_model_len if input_batch.is_dummy else longest",
    "if longest > self.max_model_len:\n    longest = self.max_model_len",
    "longest = self.worst(longest, worst=for_capture)",
    "match for_capture:\n"
    "    case True:\n"
    "        longest = self.max_model_len\n"
    "    case False | _:\n"
    "        longest = input_batch.longest",
    "while True:\n"
    "    longest = self.max_model_len\n"
    "    if for_capture:\n"
    "        break\n"
    "    longest = input_batch.longest\n"
    "    break",
]
# The same: it is wrong then.
WRONG_LINES = [
    "longest = self.max_model_len if self.graphs_captured else longest",
    "longest = self.worst(longest, True)",
    "longest = self.worst(longest, worst=not for_capture)",
    "longest = longest if input_batch.num_reqs > 4 else self.max_model_len",
]
WORST = """
def worst(self, longest, worst):
    if worst:
        return self.max_model_len
    return longest
"""
# The same for where it is wrong, and the field that is named.
WRONG_LENGTHS = {
    "at once": (
        f"return build_attn_metadata(self.groups, 1, self.max_model_len, {GIVEN})",
        "",
        Kind.OVER,
        "max_seq_len",
    ),
    "through a name and arithmetic": (
        f"""
        limit = self.vllm_config.model_config.max_model_len
        longest = max(input_batch.longest, limit - 1)
        return build_attn_metadata(self.groups, 1, int(longest), {GIVEN})
        """,
        "",
        Kind.OVER,
        "max_seq_len",
    ),
    "cut at itself": (
        f"""
        longest = min(self.longest(), self.max_model_len)
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        """
        def longest(self):
            return self.max_model_len
        """,
        Kind.OVER,
        "max_seq_len",
    ),
    "after a branch of capture": (
        f"""
        if for_capture:
            longest = input_batch.longest
        else:
            longest = self.max_model_len
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
        Kind.OVER,
        "max_seq_len",
    ),
    "in the branch that is no capture": (
        f"""
        longest = input_batch.longest if for_capture else self.max_model_len
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
        Kind.OVER,
        "max_seq_len",
    ),
    "in a branch of something else": (
        f"""
        longest = self.max_model_len if for_capture or self.groups else input_batch.longest
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        "",
        Kind.OVER,
        "max_seq_len",
    ),
    "through a wrapper that is told to capture at times": (
        """
        self.build(input_batch, True)
        return self.build(input_batch, False)
        """,
        f"""
        def build(self, input_batch, for_capture):
            return build_attn_metadata(self.groups, 1, self.max_model_len, {GIVEN})
        """,
        Kind.OVER,
        "max_seq_len",
    ),
    "renewed with the same": (
        """
        self.longest = self.max_model_len
        return self.build(input_batch)
        """,
        f"""
        def build(self, input_batch):
            return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})
        """,
        Kind.OVER,
        "max_seq_len",
    ),
    "set once": (
        f"return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})",
        """
        def set_groups(self, groups):
            self.longest = self.max_model_len
        """,
        Kind.ONCE,
        "longest",
    ),
    "set once, and cut": (
        f"""
        longest = min(self.longest, self.max_model_len)
        return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
        """
        def set_groups(self, groups):
            self.longest = self.max_model_len
        """,
        Kind.ONCE,
        "longest",
    ),
    "by replace": (
        f"""
        common = CommonAttentionMetadata(num_reqs=1, max_seq_len=1, {GIVEN})
        return replace(common, max_seq_len=self.max_model_len)
        """,
        "",
        Kind.OVER,
        "max_seq_len",
    ),
}


@pytest.mark.parametrize(("body", "beside"), RIGHT_LENGTHS.values(), ids=RIGHT_LENGTHS)
def test_the_models_maximum_is_no_finding_where_it_is_right(body: str, beside: str) -> None:
    assert kinds(of_state(body, beside)) == []


@pytest.mark.parametrize(
    ("body", "beside", "kind", "field"), WRONG_LENGTHS.values(), ids=WRONG_LENGTHS
)
def test_the_models_maximum_is_found_where_a_batch_runs(
    body: str, beside: str, kind: Kind, field: str
) -> None:
    assert [one[1:] for one in kinds(of_state(body, beside))] == [(kind.value, field)]


@pytest.mark.parametrize(
    ("line", "right"),
    [*((line, True) for line in RIGHT_LINES), *((line, False) for line in WRONG_LINES)],
)
def test_what_a_line_makes_of_the_longest_is_judged_by_its_conditions(
    line: str, right: bool
) -> None:
    given = f"return build_attn_metadata(self.groups, 1, longest, {GIVEN})"
    found = kinds(of_state(f"longest = input_batch.longest\n{line}\n{given}", WORST))
    assert [kind for _, kind, _ in found] == ([] if right else [Kind.OVER.value])


def test_an_attribute_that_grows_from_itself_is_no_endless_question() -> None:
    body = f"""
    self.longest += 1
    return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})
    """
    assert kinds(of_state(body)) == []


@pytest.mark.parametrize(
    ("start", "step", "given"),
    [
        ("None", "x[:n]", f"{LONG}, {BOUND}=x"),
        ("self.max_model_len", "x + 1", f"x, {GIVEN}"),
    ],
)
def test_twenty_conditions_on_the_way_are_followed_to_the_end(
    start: str, step: str, given: str
) -> None:
    """As a tree they have more ends than could ever be looked at."""
    blocks = [f"if self.c{n}:\n    x = {step} if self.d{n} else x" for n in range(20)]
    body = [f"x = {start}", *blocks, f"return build_attn_metadata(self.groups, 1, {given})"]
    assert len(kinds(of_state("\n".join(body)))) == 1


def test_classes_that_derive_from_each_other_are_audited_like_any() -> None:
    state = """
    class OneState(TwoState):
        def prepare_attn(self, input_batch, for_capture=False):
            return build_attn_metadata(self.groups, 1, input_batch.longest)

    class TwoState(OneState):
        pass
    """
    assert kinds(vllm(state)) == [("OneState.prepare_attn", Kind.BOUND.value, BOUND)]


INHERITED = f"""
    class BaseState(ModelState):
        def __init__(self, vllm_config):
            super().__init__(vllm_config)
            self.longest = self.max_model_len

        def _build(self, input_batch):
            return build_attn_metadata(self.groups, 1, self.longest, {GIVEN})

    class RenewsState(BaseState):
        def prepare_attn(self, input_batch, for_capture=False):
            self.longest = input_batch.longest
            return self._build(input_batch)

    class KeepsState(BaseState):
        def prepare_attn(self, input_batch, for_capture=False):
            return self._build(input_batch)

    class KeepsTooState(KeepsState):
        pass

    class AbstractState(BaseState):
        def show(self, input_batch):
            return self._build(input_batch)

    class RenewsTooState(AbstractState):
        def prepare_attn(self, input_batch, for_capture=False):
            self.longest = input_batch.longest

    class BuildsNothingState(BaseState):
        def prepare_attn(self, input_batch, for_capture=False):
            return None
"""


def test_an_attribute_is_judged_for_each_class_that_inherits_the_build() -> None:
    """The class that keeps it is named, once; not its siblings, nor the abstract base."""
    assert kinds(vllm(INHERITED)) == [("KeepsState", Kind.ONCE.value, "longest")]


# What fills the tensor, given the name `tensor`, and whether it is right.
TENSOR = "self.accepted[input_batch.idx_mapping]"
GATES = {
    "always": (f"tensor = {TENSOR}", False),
    "outside capture": (f"tensor = None if for_capture else {TENSOR}", False),
    "by its own being there": (
        f"tensor = {TENSOR}\nif tensor is not None:\n    tensor = tensor[:1]",
        False,
    ),
    "where there is no speculation": (
        f"tensor = None\nif self.vllm_config.num_speculative_tokens == 0:\n    tensor = {TENSOR}",
        False,
    ),
    "where either": (
        f"tensor = {TENSOR} if self.groups or self.vllm_config.num_speculative_tokens else None",
        False,
    ),
    "by a condition": (
        "tensor = None\n"
        "if not for_capture and self.vllm_config.num_speculative_tokens > 0:\n"
        f"    tensor = {TENSOR}",
        True,
    ),
    "by a branch that left": (
        "tensor = None\nif self.vllm_config.speculative_config is None:\n"
        "    return OneMetadata(tensor)\n"
        f"tensor = {TENSOR}",
        True,
    ),
    "by a flag": (
        f"on = self.vllm_config.num_speculative_tokens >= 1\ntensor = {TENSOR} if on else None",
        True,
    ),
    "by an attribute that is None without": (
        f"tensor = None\nif self.per_request is not None:\n    tensor = {TENSOR}",
        True,
    ),
    "in another method": ("tensor = self.filled(input_batch)", True),
    "by what is named alike": (
        f"tensor = {TENSOR} if self.kv_cache_spec and self.inspected else None",
        False,
    ),
    "in each round that is not gone on from": (
        "tensor = None\nfor group in self.groups:\n"
        "    if not self.vllm_config.num_speculative_tokens:\n        continue\n"
        f"    tensor = {TENSOR}",
        True,
    ),
    **{
        f"by {test}": (f"tensor = {TENSOR} if {test} else None", True)
        for test in (
            "0 < self.k",
            "1 <= self.k",
            "None is not self.vllm_config.speculative_config",
            "0 < self.k < 9",
            "(n := self.k) > 0",
            "all((self.k, self.groups))",
            "getattr(self.vllm_config, 'num_speculative_tokens', 0) > 0",
            "(1 if self.k else 0)",
            "bool(self.k)",
            "self.verifies",
            "self.does_verify()",
            "verifies(self.vllm_config)",
        )
    },
    "by what it is and-ed with": (f"tensor = self.k and {TENSOR}", True),
}


def speculating(body: str) -> str:
    """A model state whose `prepare_attn` fills `tensor` so."""
    return f"""
        from vllm.v1.worker.gpu.model_states.interface import ModelSpecificAttnMetadata

        def verifies(config):
            return config.speculative_config is not None

        @dataclass
        class OneMetadata(ModelSpecificAttnMetadata):
            num_decode_draft_tokens_cpu: object = None

            def get_extra_attn_kwargs(self, builder, num_reqs):
                return {{
                    "num_decode_draft_tokens_cpu": None
                    if self.num_decode_draft_tokens_cpu is None
                    else self.num_decode_draft_tokens_cpu[:num_reqs]
                }}

        class OneState(ModelState):
            def __init__(self, vllm_config):
                super().__init__(vllm_config)
                self.accepted = torch.ones(3)
                self.k = vllm_config.num_speculative_tokens
                self.per_request = None
                if vllm_config.num_speculative_tokens > 0:
                    self.per_request = torch.ones(3)

            @property
            def verifies(self):
                return self.k > 0

            def does_verify(self):
                return self.verifies

            def filled(self, input_batch):
                if not self.vllm_config.num_speculative_tokens:
                    return None
                return self.accepted[input_batch.idx_mapping]

            def prepare_attn(self, input_batch, for_capture=False):
                {textwrap.indent(body, " " * 16).lstrip()}
                return OneMetadata(num_decode_draft_tokens_cpu=tensor)
    """


@pytest.mark.parametrize(("body", "right"), GATES.values(), ids=GATES)
def test_speculative_tensors_are_found_where_nothing_of_speculation_lets_them_in(
    body: str, right: bool
) -> None:
    files = vllm(speculating(body))
    wrong = [("OneState.prepare_attn", Kind.SPECULATIVE.value, "num_decode_draft_tokens_cpu")]
    assert kinds(files) == ([] if right else wrong)


@pytest.mark.parametrize(
    ("made", "right"),
    [
        (f"OneMetadata({TENSOR})", False),
        (f"OneMetadata(num_decode_draft_tokens_cpu={TENSOR}) if self.k else OneMetadata()", True),
    ],
)
def test_speculative_tensors_are_found_in_what_is_made_at_once(made: str, right: bool) -> None:
    found = kinds(vllm(speculating(f"return {made}")))
    assert [kind for _, kind, _ in found] == ([] if right else [Kind.SPECULATIVE.value])


GIVEN_TO_BUILDERS = """
    class OneState(ModelState):
        def prepare_attn(self, input_batch, for_capture=False):
            for group in self.groups:
                group.build(input_batch, num_accepted_tokens=self.accepted[input_batch.idx_mapping])
                group.build(input_batch, num_accepted_tokens=None)
            build_stats(num_accepted_tokens=input_batch.accepted)
"""


def test_speculative_tensors_are_found_in_the_call_of_a_builder() -> None:
    wrong = [("OneState.prepare_attn", Kind.SPECULATIVE.value, "num_accepted_tokens")]
    assert kinds(vllm(GIVEN_TO_BUILDERS)) == wrong


def siblings(positions: str, base: str, check: str, last: str = "") -> str:
    """Two model states: one forwards `positions`; the other does `check`, then gives `last`."""
    return f"""
        class ForwardsState(ModelState):
            def __init__(self, vllm_config):
                super().__init__(vllm_config)
                self.own = vllm_config.own

            def prepare_attn(self, input_batch, for_capture=False):
                return build_attn_metadata(
                    self.groups,
                    1,
                    {LONG},
                    {GIVEN},
                    positions={positions},
                    for_cudagraph_capture=for_capture,
                )

        class DropsState({base}):
            def prepare_attn(self, input_batch, for_capture=False):
                {check}
                return build_attn_metadata(
                    self.groups, 1, {LONG}, {GIVEN}, {last}for_cudagraph_capture=for_capture
                )
    """


POSITIONS = [("DropsState.prepare_attn", Kind.DROPPED.value, "positions")]


@pytest.mark.parametrize(
    ("positions", "base", "check", "expected"),
    [
        ("input_batch.positions[:1]", "ModelState", "pass", POSITIONS),
        ("self.own", "ForwardsState", "pass", POSITIONS),
        ("self.groups", "ModelState", "pass", []),  # of its own making
        ("None", "ModelState", "pass", []),  # nothing to forward
        ("input_batch.positions", "object", "pass", []),  # no sibling
        ("input_batch.positions", "ModelState", "assert input_batch.positions is None", []),
        ("input_batch.positions", "ModelState", "assert input_batch.num_reqs > 0", POSITIONS),
        ("input_batch.positions", "ModelState", "if input_batch.positions: raise TypeError", []),
    ],
)
def test_a_field_is_dropped_where_a_sibling_forwards_it_and_it_is_at_hand(
    positions: str, base: str, check: str, expected: list[tuple[str, str, str]]
) -> None:
    assert kinds(vllm(siblings(positions, base, check))) == expected


def test_every_call_of_a_method_is_judged_for_what_it_drops() -> None:
    """Also the first of two; one that is not for a capture need not speak of it."""
    told = "for_cudagraph_capture=for_capture"
    first = f"build_attn_metadata(self.groups, 1, 1, {GIVEN}, {told})"
    state = siblings(
        "input_batch.positions", "ModelState", first, last="positions=input_batch.positions, "
    )
    assert kinds(vllm(state)) == POSITIONS


WRONG = "return build_attn_metadata(self.groups, 1, self.max_model_len)"
V1 = """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    class OneModelState:  # of a backend, whatever its name
        def prepare_attn(self, input_batch):
            return CommonAttentionMetadata(max_seq_len=self.max_model_len)
"""


NESTED = """
    from ....v1.worker.gpu.attn_utils import build_attn_metadata
    from ....model_executor.models.one import OneState

    class TwoState(OneState):
        def prepare_attn(self, input_batch, for_capture=False):
            return build_attn_metadata(self.groups, 1, self.max_model_len)
"""


def test_only_what_v2_makes_is_judged_and_a_model_file_may_be_part_of_it() -> None:
    wrong = of_state(WRONG)
    model = wrong.pop(STATE)
    files = {
        **wrong,
        "vllm/model_executor/models/one.py": model,
        "vllm/models/two/backend.py": textwrap.dedent(V1).encode(),
        "vllm/models/two/nvidia/state.py": textwrap.dedent(NESTED).encode(),
        "vllm/v1/worker/gpu_model_runner.py": model,
    }
    assert {one.file for one in audit(files)} == {
        "vllm/model_executor/models/one.py",
        "vllm/models/two/nvidia/state.py",
    }
