"""A value is followed to where it comes from, by whatever way, in a small vLLM."""

from __future__ import annotations

import pytest

from mrv2_fixes.audit.finding import Kind

from .small_vllm import BOUND, GIVEN, LONG, STATE, kinds, of_state

RIGHT = f"input_batch.{BOUND}"


def forwarding(bound: str) -> dict[str, tuple[str, str]]:
    """Body of `prepare_attn` and methods beside it: the bound is `bound`, each time another way."""
    given = f"{BOUND}={bound}"
    return {
        "at once": (f"return build_attn_metadata(self.groups, 1, {LONG}, {given})", ""),
        "by position": (
            f"return build_attn_metadata(self.groups, 1, {LONG}, {bound})",
            "",
        ),
        "by the module": (
            f"return attn_utils.build_attn_metadata(self.groups, 1, {LONG}, {given})",
            "",
        ),
        "through a name": (
            f"""
            if for_capture:
                longest = self.max_model_len
            else:
                longest = int(input_batch.longest)
            bound = {bound}
            bound = bound[:2]
            return build_attn_metadata(self.groups, 1, longest, {BOUND}=bound)
            """,
            "",
        ),
        "where a capture leaves first": (
            f"""
            if for_capture:
                return build_attn_metadata(self.groups, 1, self.max_model_len, {given})
            return build_attn_metadata(self.groups, 1, input_batch.longest, {given})
            """,
            "",
        ),
        "where a wrapper is told to capture": (
            """
            self.build(input_batch, self.max_model_len, True)
            return self.build(input_batch, input_batch.longest, False)
            """,
            f"""
            def build(self, input_batch, longest, for_capture):
                return build_attn_metadata(self.groups, 1, longest, {given})
            """,
        ),
        "in a dictionary": (
            f"""
            given = dict(groups=self.groups, {given})
            given["max_seq_len"] = {LONG}
            given.update(num_reqs=1)
            return build_attn_metadata(**given)
            """,
            "",
        ),
        "in a dictionary, set": (
            f"""
            given = {{"num_reqs": 1}}
            given["{BOUND}"] = {bound}
            return build_attn_metadata(self.groups, max_seq_len={LONG}, **given)
            """,
            "",
        ),
        "in a dictionary, as its default": (
            f"""
            given = {{"num_reqs": 1}}
            given.setdefault("{BOUND}", {bound})
            return build_attn_metadata(self.groups, max_seq_len={LONG}, **given)
            """,
            "",
        ),
        "in a dictionary, updated": (
            f"""
            given = {{"{BOUND}": None}}
            given.update({given})
            return build_attn_metadata(self.groups, 1, max_seq_len={LONG}, **given)
            """,
            "",
        ),
        "in a dictionary of another method": (
            f"return build_attn_metadata(self.groups, 1, {LONG}, **self.common(input_batch))",
            f"""
            def common(self, input_batch):
                return {{"{BOUND}": {bound}}} | {{"positions": None}}
            """,
        ),
        "by partial": (
            f"""
            build = partial(build_attn_metadata, self.groups, {given})
            return build(1, max_seq_len={LONG})
            """,
            "",
        ),
        "by an attribute that is a partial": (
            f"return self.build(1, {LONG}, {given})",
            """
            def set_groups(self, groups):
                self.build = partial(build_attn_metadata, groups)
            """,
        ),
        "through a wrapper": (
            f"return self.build({bound}, longest={LONG})",
            f"""
            def build(self, bound=None, longest=0):
                return build_attn_metadata(self.groups, 1, longest, {BOUND}=bound)
            """,
        ),
        "through a wrapper of keywords": (
            f"return self.build(num_reqs=1, max_seq_len={LONG}, {given})",
            """
            def build(self, **more):
                more.setdefault("positions", None)
                return build_attn_metadata(self.groups, **more)
            """,
        ),
        "in the branch that is not left": (
            f"""
            bound = None
            if self.groups:
                bound = {bound}
            if not self.groups:
                return None
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "after a condition that came to mean something else": (
            f"""
            bound = None
            found = self.groups
            if found:
                return None
            found = input_batch
            if found:
                bound = {bound}
                return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "before a loop is broken off": (
            f"""
            bound = None
            while True:
                bound = {bound}
                break
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "before a loop goes on": (
            f"""
            bound = input_batch.{BOUND}
            for group in self.groups:
                if group:
                    bound = {bound}
                    continue
                bound = input_batch.{BOUND}
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "in the round before": (
            f"""
            bound = input_batch.{BOUND}
            for group in self.groups:
                build_attn_metadata(group, 1, {LONG}, {BOUND}=bound)
                bound = {bound}
            """,
            "",
        ),
        "in what a failure leaves": (
            f"""
            bound = input_batch.{BOUND}
            try:
                bound = {bound}
                bound = input_batch.longer(bound)
            except ValueError:
                pass
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "in one of two dictionaries": (
            f"""
            given = {{"{BOUND}": {bound}}} if self.groups else dict({BOUND}=input_batch.{BOUND})
            return build_attn_metadata(self.groups, 1, {LONG}, **given)
            """,
            "",
        ),
        "as another type": (
            f"return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=cast(Tensor, {bound}))",
            "",
        ),
        "where there is no other": (
            f"""
            bound = self.groups or {bound}
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "within a context": (
            f"""
            with torch.no_grad():
                bound = {bound}
                return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "in every case": (
            f"""
            bound = None
            match self.groups:
                case [one]:
                    bound = {bound}
                case _:
                    bound = {bound}[:1]
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "where it is asserted to be so": (
            f"""
            bound = None
            if self.groups:
                bound = {bound}
            assert self.groups
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
            """,
            "",
        ),
        "by another name": (
            f"""
            from vllm.v1.worker.gpu.attn_utils import build_attn_metadata as made
            build: object = made
            return build(self.groups, 1, {LONG}, {given})
            """,
            "",
        ),
        "by a partial that is called at once": (
            f"return partial(build_attn_metadata, self.groups, {given})(1, max_seq_len={LONG})",
            "",
        ),
        "in a class of its own": (
            f"return OneMetadata(num_reqs=1, max_seq_len={LONG}, {given})",
            "",
        ),
        "set over what was given": (
            f"""
            common = CommonAttentionMetadata(num_reqs=1, max_seq_len=1, {BOUND}=self.groups)
            common.{BOUND} = {bound}
            return common
            """,
            "",
        ),
        "set on what was made": (
            f"""
            common = CommonAttentionMetadata(num_reqs=1, max_seq_len={LONG})
            common.{BOUND} = {bound}
            return common
            """,
            "",
        ),
        "kept by replace": (
            f"""
            common = CommonAttentionMetadata(num_reqs=1, max_seq_len={LONG}, {given})
            return replace(common, max_seq_len=1), common.replace(num_reqs=2)
            """,
            "",
        ),
    }


# The bound may be None, or anything, and nothing is said.
UNKNOWN = {
    "through what cannot be followed": (
        f"return build_attn_metadata(*self.arguments(input_batch), max_seq_len={LONG})",
        "",
    ),
    "in a dictionary, under a name": (
        f"""
        given = {{"positions": None}}
        for name in ("{BOUND}", "query_start_loc"):
            given[name] = getattr(input_batch, name)
        return build_attn_metadata(self.groups, 1, {LONG}, **given)
        """,
        "",
    ),
    "in a dictionary that loses it": (
        f"""
        given = {{"{BOUND}": None}}
        given.pop("{BOUND}")
        return build_attn_metadata(self.groups, 1, {LONG}, **given)
        """,
        "",
    ),
    "in a dictionary of computed keys": (
        f"return build_attn_metadata(self.groups, 1, {LONG}, **{{self.name: input_batch}})",
        "",
    ),
    "in a dictionary that another fills": (
        f"""
        given = dict(positions=None)
        self.fill(given)
        return build_attn_metadata(self.groups, 1, {LONG}, **given)
        """,
        "",
    ),
    "in a dictionary where there is one": (
        f"""
        given = {{}}
        if input_batch.{BOUND} is not None:
            given["{BOUND}"] = input_batch.{BOUND}
        return build_attn_metadata(self.groups, 1, {LONG}, **given)
        """,
        "",
    ),
    "where the batch has one": (
        f"""
        bound = input_batch.{BOUND} if hasattr(input_batch, "{BOUND}") else None
        return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
        """,
        "",
    ),
    "where a None is filled in": (
        f"""
        {BOUND} = None
        if {BOUND} is None:
            {BOUND} = input_batch.{BOUND}
        return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}={BOUND})
        """,
        "",
    ),
    "by a function within": (
        f"""
        bound = None
        def fill():
            nonlocal bound
            bound = input_batch.{BOUND}
        fill()
        return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
        """,
        "",
    ),
    "in each round of a loop": (
        f"""
        bound = None
        for group in self.groups:
            bound = input_batch.{BOUND}
        return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
        """,
        "",
    ),
    "anew, of something else": ("return replace(self.stats, max_seq_len=self.max_model_len)", ""),
    "where None is handed on": (
        f"""
        bound = input_batch.{BOUND}
        {BOUND} = None if bound is None else bound[:1]
        if input_batch.{BOUND} is None:
            {BOUND} = None
        return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}={BOUND})
        """,
        "",
    ),
}


@pytest.mark.parametrize(
    ("body", "beside"),
    [*forwarding(RIGHT).values(), *UNKNOWN.values()],
    ids=[*forwarding(RIGHT), *UNKNOWN],
)
def test_what_is_forwarded_is_no_finding_by_whatever_way(body: str, beside: str) -> None:
    assert kinds(of_state(body, beside)) == []


@pytest.mark.parametrize(("body", "beside"), forwarding("None").values(), ids=forwarding("None"))
def test_the_same_ways_end_in_a_finding_where_the_bound_is_none(body: str, beside: str) -> None:
    assert {kind for _, kind, _ in kinds(of_state(body, beside))} == {Kind.BOUND.value}


@pytest.mark.parametrize(
    "body",
    [
        f"""
        bound = input_batch.{BOUND}
        if bound is not None:
            bound = bound[:1] if self.groups else None
        return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
        """,
        f"""
        common = CommonAttentionMetadata(num_reqs=1, max_seq_len={LONG}, {GIVEN})
        common.{BOUND} = None
        return common
        """,
    ],
)
def test_a_bound_that_was_there_and_is_taken_away_is_found(body: str) -> None:
    assert [kind for _, kind, _ in kinds(of_state(body))] == [Kind.BOUND.value]


def test_a_bound_that_a_helper_leaves_out_is_found_where_the_call_stands() -> None:
    files = of_state(
        f"return build_attn_metadata(self.groups, 1, {LONG}, **more(input_batch))",
    )
    files[STATE] += b"\ndef more(batch):\n    return {'positions': batch.positions}\n"
    assert kinds(files) == [("OneState.prepare_attn", Kind.BOUND.value, BOUND)]


def test_a_function_with_another_name_in_its_module_is_followed() -> None:
    files = of_state(f"return build(self.groups, 1, {LONG})")
    files[STATE] += b"\nbuild = build_attn_metadata\n"
    assert kinds(files) == [("OneState.prepare_attn", Kind.BOUND.value, BOUND)]


def test_who_leaves_the_bound_out_is_found_through_a_function_of_keywords() -> None:
    files = of_state(f"return make(max_seq_len={LONG})")
    files[STATE] += b"\ndef make(**more):\n    return CommonAttentionMetadata(**more)\n"
    assert kinds(files) == [("OneState.prepare_attn", Kind.BOUND.value, BOUND)]
