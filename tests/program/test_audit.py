"""mrv2 audit finds what is known to be wrong in the releases, and is silent where code is right."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from mrv2_fixes import plan, series, targets
from mrv2_fixes.audit import acceptance, audit
from mrv2_fixes.audit.finding import Finding, Kind
from mrv2_fixes.targets import folder

from .conftest import AFFECTED, Mrv2, Source

GPU = "vllm/v1/worker/gpu/"
BOUND = "seq_lens_cpu_upper_bound"
MAMBA = "MambaHybridModelState.prepare_attn"
EAGLE = "EagleSpeculator._build_draft_attn_metadata"
DRAFT = "DraftModelSpeculator._build_draft_attn_metadata"
DFLASH = "_prepare_dflash_inputs_to_capture"
ENCODER_DECODER = "EncoderDecoderModelState.prepare_attn"
DIFFUSION = "DiffusionGemmaModelState.prepare_attn"

Found = set[tuple[str, Kind, str]]

UNGATED: Found = {
    (MAMBA, Kind.SPECULATIVE, "num_accepted_tokens"),
    (MAMBA, Kind.SPECULATIVE, "num_decode_draft_tokens_cpu"),
}
HYBRID: Found = {*UNGATED, (MAMBA, Kind.BOUND, BOUND)}
LONGEST: Found = {(MAMBA, Kind.OVER, "max_seq_len"), (EAGLE, Kind.OVER, "max_seq_len")}
OF_EAGLE: Found = {*HYBRID, *LONGEST, (EAGLE, Kind.BOUND, BOUND)}
OF_DRAFT: Found = {(DRAFT, Kind.BOUND, BOUND)}
OF_DFLASH: Found = {(DFLASH, Kind.BOUND, BOUND)}
# What the runner of each release does wrong, beside the fields that a model state drops.
KNOWN: dict[str, Found] = {
    "0.21.0": OF_EAGLE,
    "0.22.0": OF_EAGLE,
    "0.22.1": OF_EAGLE,
    "0.23.0": {*HYBRID, *OF_DRAFT},
    "0.24.0": {*HYBRID, *OF_DRAFT, *OF_DFLASH},
    "0.25.0": {*OF_DRAFT, *OF_DFLASH},
    "0.25.1": {*OF_DRAFT, *OF_DFLASH},
    "0.26.0": {*OF_DRAFT, *OF_DFLASH},
    "0.27.0": OF_DFLASH,
    "0.27.1": OF_DFLASH,
    "0.28.0": OF_DFLASH,
    "0.29.0": OF_DFLASH,
    "0.30.0": OF_DFLASH,
    "0.31.0": {
        *OF_DFLASH,
        ("PlainDraftModelSpeculator", Kind.ONCE, "draft_max_seq_len"),
        ("PlainDraftModelSpeculator._prefill", Kind.BEHIND, BOUND),
    },
    "0.32.0": {
        *OF_DFLASH,
        ("StandaloneARSpeculator", Kind.ONCE, "draft_max_seq_len"),
        ("StandaloneARSpeculator._prefill", Kind.BEHIND, BOUND),
    },
    "0.33.0": {
        *OF_DFLASH,
        ("StandaloneARSpeculator", Kind.ONCE, "draft_max_seq_len"),
        ("StandaloneARSpeculator._prefill", Kind.BEHIND, BOUND),
    },
}
DROPPED = {
    "0.22.1": {MAMBA: {"positions"}, "WhisperModelState.prepare_attn": {"positions"}},
    "0.25.1": {MAMBA: {"positions", "mm_req_doc_ranges"}, ENCODER_DECODER: {"positions"}},
    "0.26.0": {
        MAMBA: {"positions", "mm_req_doc_ranges"},
        ENCODER_DECODER: {"positions", "is_prefilling"},
    },
    "0.32.0": {
        MAMBA: {
            *("mm_req_doc_ranges", "dcp_local_seq_lens_cpu_upper_bound"),
            *("req_idx", "fast_prefill"),
        },
        ENCODER_DECODER: {"positions", "is_prefilling", "fast_prefill"},
    },
}


def told(findings: list[Finding]) -> Found:
    """The findings without the fields that are dropped."""
    return {(one.symbol, one.kind, one.field) for one in findings if one.kind is not Kind.DROPPED}


def dropped(findings: list[Finding]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in findings:
        if one.kind is Kind.DROPPED:
            found.setdefault(one.symbol, set()).add(one.field)
    return found


@pytest.mark.releases
@pytest.mark.parametrize("release", KNOWN)
def test_what_is_known_to_be_wrong_in_a_release_is_found_and_nothing_else(
    release: str, published: Source
) -> None:
    findings = audit(folder.read(published(release)).files)
    assert told(findings) == KNOWN[release]
    if release in DROPPED:
        assert dropped(findings) == DROPPED[release]


@pytest.mark.releases
@pytest.mark.parametrize("release", AFFECTED)
def test_the_core_of_the_series_takes_out_its_own_findings_and_brings_none(
    release: str, published: Source
) -> None:
    files = dict(folder.read(published(release)).files)
    made = plan.make(series.load().core, files)
    before, after = told(audit(files)), told(audit({**files, **made.after}))
    assert before - after == before & {*HYBRID, *LONGEST}
    assert after <= before


@pytest.mark.releases
def test_a_model_file_that_makes_its_own_metadata_is_audited_too_in_a_wheel() -> None:
    findings = audit(targets.open_target("0.24.0", print).files)
    assert told(findings) - KNOWN["0.24.0"] == {
        (DIFFUSION, Kind.BOUND, BOUND),
        (DIFFUSION, Kind.OVER, "max_seq_len"),
    }
    assert dropped(findings)[DIFFUSION] == {
        *("dcp_local_seq_lens", "positions", "for_cudagraph_capture")
    }


# A small vLLM of the same shape, in which one method at a time is another.

BUILD = """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    def build_attn_metadata(
        groups,
        num_reqs,
        max_seq_len,
        seq_lens_cpu_upper_bound=None,
        positions=None,
        for_cudagraph_capture=False,
        model_specific_attn_metadata=None,
    ):
        if seq_lens_cpu_upper_bound is not None:
            seq_lens_cpu_upper_bound = seq_lens_cpu_upper_bound[:num_reqs]
        for group in groups:
            if not group:
                continue
            common = CommonAttentionMetadata(
                num_reqs=num_reqs,
                max_seq_len=max_seq_len,
                seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
                positions=positions,
            )
            group.build(common, for_cudagraph_capture)
"""
IMPORTS = """
    from dataclasses import dataclass, replace
    from functools import partial
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.worker.gpu import attn_utils
    from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
    from vllm.v1.worker.gpu.model_states.interface import ModelState
"""
INTERFACE = """
    from abc import ABC, abstractmethod

    class ModelState(ABC):
        def __init__(self, vllm_config):
            self.vllm_config = vllm_config
            self.groups = []
            self.max_model_len = vllm_config.model_config.max_model_len

        @abstractmethod
        def prepare_attn(self, input_batch, for_capture=False):
            pass
"""
STATE = GPU + "model_states/state.py"


def vllm(state: str, more: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The files of a small vLLM: a model state, and what it needs."""
    texts = {
        "vllm/__init__.py": "",
        GPU + "__init__.py": "",
        GPU + "attn_utils.py": BUILD,
        GPU + "model_states/interface.py": INTERFACE,
        STATE: textwrap.dedent(IMPORTS) + textwrap.dedent(state),
        **(more or {}),
    }
    return {path: textwrap.dedent(text).encode() for path, text in texts.items()}


def of_state(body: str, beside: str = "") -> dict[str, bytes]:
    """A vLLM whose one model state has this `prepare_attn`; beside: other methods."""
    method = "def prepare_attn(self, input_batch, for_capture=False):\n"
    whole = method + textwrap.indent(textwrap.dedent(body), "    ") + textwrap.dedent(beside)
    return vllm("class OneState(ModelState):\n" + textwrap.indent(whole, "    "))


def kinds(files: dict[str, bytes]) -> list[tuple[str, str, str]]:
    found = audit(files)
    assert all(one.why and "\n" not in one.why for one in found)
    return [(one.symbol, one.kind.value, one.field) for one in found]


LONG = "self.max_model_len if for_capture else input_batch.seq_lens_cpu_upper_bound.max().item()"
GIVEN = "seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound"
# Body of `prepare_attn` and methods beside it: the bound is forwarded, each time by another way.
FORWARDED = {
    "at once": (f"return build_attn_metadata(self.groups, 1, {LONG}, {GIVEN})", ""),
    "by position": (
        f"return build_attn_metadata(self.groups, 1, {LONG}, input_batch.{BOUND})",
        "",
    ),
    "by the module": (
        f"return attn_utils.build_attn_metadata(self.groups, 1, {LONG}, {GIVEN})",
        "",
    ),
    "through a name": (
        f"""
        if for_capture:
            longest = self.max_model_len
        else:
            longest = int(input_batch.{BOUND}[:1].max())
        bound = input_batch.{BOUND}
        bound = bound[:2]
        return build_attn_metadata(self.groups, 1, longest, {BOUND}=bound)
        """,
        "",
    ),
    "where a capture leaves first": (
        f"""
        if for_capture:
            return build_attn_metadata(self.groups, 1, self.max_model_len, {GIVEN})
        return build_attn_metadata(self.groups, 1, input_batch.longest, {GIVEN})
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
            return build_attn_metadata(self.groups, 1, longest, {GIVEN})
        """,
    ),
    "in a dictionary": (
        f"""
        given = dict(groups=self.groups, {GIVEN})
        given["max_seq_len"] = {LONG}
        given.update(num_reqs=1)
        return build_attn_metadata(**given)
        """,
        "",
    ),
    "in a dictionary, set": (
        f"""
        given = {{"num_reqs": 1}}
        given["{BOUND}"] = input_batch.{BOUND}
        return build_attn_metadata(self.groups, max_seq_len={LONG}, **given)
        """,
        "",
    ),
    "in a dictionary, as its default": (
        f"""
        given = {{"num_reqs": 1}}
        given.setdefault("{BOUND}", input_batch.{BOUND})
        return build_attn_metadata(self.groups, max_seq_len={LONG}, **given)
        """,
        "",
    ),
    "in a dictionary, updated": (
        f"""
        given = {{"{BOUND}": None}}
        given.update({GIVEN})
        return build_attn_metadata(self.groups, 1, max_seq_len={LONG}, **given)
        """,
        "",
    ),
    "in a dictionary of another method": (
        f"return build_attn_metadata(self.groups, 1, {LONG}, **self.common(input_batch))",
        f"""
        def common(self, input_batch):
            return {{"{BOUND}": input_batch.{BOUND}}} | {{"positions": None}}
        """,
    ),
    "by partial": (
        f"""
        build = partial(build_attn_metadata, self.groups, {GIVEN})
        return build(1, max_seq_len={LONG})
        """,
        "",
    ),
    "by an attribute that is a partial": (
        f"return self.build(1, {LONG}, {GIVEN})",
        """
        def set_groups(self, groups):
            self.build = partial(build_attn_metadata, groups)
        """,
    ),
    "through a wrapper": (
        f"return self.build(input_batch.{BOUND}, longest={LONG})",
        f"""
        def build(self, bound=None, longest=0):
            return build_attn_metadata(self.groups, 1, longest, {BOUND}=bound)
        """,
    ),
    "through a wrapper of keywords": (
        f"return self.build(num_reqs=1, max_seq_len={LONG}, {GIVEN})",
        """
        def build(self, **more):
            more.setdefault("positions", None)
            return build_attn_metadata(self.groups, **more)
        """,
    ),
    "through what cannot be followed": (
        f"return build_attn_metadata(*self.arguments(input_batch), max_seq_len={LONG})",
        "",
    ),
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
    "in the branch that is not left": (
        f"""
        bound = None
        if self.groups:
            bound = input_batch.{BOUND}
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
            bound = input_batch.{BOUND}
            return build_attn_metadata(self.groups, 1, {LONG}, {BOUND}=bound)
        """,
        "",
    ),
    "set on what was made": (
        f"""
        common = CommonAttentionMetadata(num_reqs=1, max_seq_len={LONG})
        common.{BOUND} = input_batch.{BOUND}
        return common
        """,
        "",
    ),
    "kept by replace": (
        f"""
        common = CommonAttentionMetadata(num_reqs=1, max_seq_len={LONG}, {GIVEN})
        return replace(common, max_seq_len=1), common.replace(num_reqs=2)
        """,
        "",
    ),
}


@pytest.mark.parametrize(("body", "beside"), FORWARDED.values(), ids=FORWARDED)
def test_what_is_forwarded_is_no_finding_by_whatever_way(body: str, beside: str) -> None:
    assert kinds(of_state(body, beside)) == []


@pytest.mark.parametrize(
    ("body", "beside"),
    [
        one
        for way, one in FORWARDED.items()
        if way not in ("through what cannot be followed", "where None is handed on")
    ],
)
def test_the_same_ways_end_in_a_finding_where_the_bound_is_none(body: str, beside: str) -> None:
    """Each way is really followed: at its end there is None, and that is seen."""
    body = body.replace(f"input_batch.{BOUND}[:1].max()", "input_batch.longest")
    files = of_state(body.replace(f"input_batch.{BOUND}", "None").replace("None.max()", "x()"))
    files[STATE] += textwrap.indent(
        textwrap.dedent(beside.replace(f"input_batch.{BOUND}", "None")), "    "
    ).encode()
    assert {kind for _, kind, _ in kinds(files)} == {Kind.BOUND.value}


# Body and methods beside it: max_seq_len is right there, though the model's maximum is in sight.
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
}
SPECULATION = """
    from vllm.v1.worker.gpu.model_states.interface import ModelSpecificAttnMetadata

    @dataclass
    class OneMetadata(ModelSpecificAttnMetadata):
        num_decode_draft_tokens_cpu: object = None

        def get_extra_attn_kwargs(self, builder, num_reqs):
            return {
                "num_decode_draft_tokens_cpu": None
                if self.num_decode_draft_tokens_cpu is None
                else self.num_decode_draft_tokens_cpu[:num_reqs]
            }

    class OneState(ModelState):
        def __init__(self, vllm_config):
            super().__init__(vllm_config)
            self.accepted = torch.ones(3)
            self.per_request = None
            if vllm_config.num_speculative_tokens > 0:
                self.per_request = torch.ones(3)

        def filled(self, input_batch):
            if not self.vllm_config.num_speculative_tokens:
                return None
            return self.accepted[input_batch.idx_mapping]

        def prepare_attn(self, input_batch, for_capture=False):
            BODY
            return OneMetadata(num_decode_draft_tokens_cpu=tensor)
"""


@pytest.mark.parametrize(("body", "right"), GATES.values(), ids=GATES)
def test_speculative_tensors_are_found_where_nothing_of_speculation_lets_them_in(
    body: str, right: bool
) -> None:
    files = vllm(SPECULATION.replace("BODY", textwrap.indent(body, " " * 12).lstrip()))
    wrong = [("OneState.prepare_attn", Kind.SPECULATIVE.value, "num_decode_draft_tokens_cpu")]
    assert kinds(files) == ([] if right else wrong)


GIVEN_TO_BUILDERS = """
    class OneState(ModelState):
        def prepare_attn(self, input_batch, for_capture=False):
            for group in self.groups:
                group.build(input_batch, num_accepted_tokens=self.accepted[input_batch.idx_mapping])
                group.build(input_batch, num_accepted_tokens=None)
"""


def test_speculative_tensors_are_found_in_the_call_of_a_builder() -> None:
    wrong = [("OneState.prepare_attn", Kind.SPECULATIVE.value, "num_accepted_tokens")]
    assert kinds(vllm(GIVEN_TO_BUILDERS)) == wrong


SIBLINGS = f"""
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
                positions=POSITIONS,
                for_cudagraph_capture=for_capture,
            )

    class DropsState(BASE):
        def prepare_attn(self, input_batch, for_capture=False):
            CHECK
            return build_attn_metadata(
                self.groups, 1, {LONG}, {GIVEN}, for_cudagraph_capture=for_capture
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
        ("input_batch.positions", "ModelState", "assert input_batch", []),  # it refuses
    ],
)
def test_a_field_is_dropped_where_a_sibling_forwards_it_and_it_is_at_hand(
    positions: str, base: str, check: str, expected: list[tuple[str, str, str]]
) -> None:
    state = SIBLINGS.replace("POSITIONS", positions).replace("BASE", base).replace("CHECK", check)
    assert kinds(vllm(state)) == expected


LENGTHENED = f"""
    class OneState(ModelState):
        def build(self, query_start_loc_np, {BOUND}, step):
            bound = torch.zeros(3)
            torch.add({BOUND}, step, out=bound)
            return build_attn_metadata(self.groups, 1, query_start_loc_np[-1], {BOUND}=bound)

        def prepare_attn(self, input_batch, for_capture=False):
            starts = input_batch.query_start_loc_np[:2]
            longer = starts + self.arange_np[:2]
            return self.build(query_start_loc_np=STARTS, {GIVEN}, step=STEP)
"""


@pytest.mark.parametrize(
    ("starts", "step", "found"),
    [("longer", "0", True), ("longer", "1", False), ("starts", "0", False)],
)
def test_a_bound_of_the_batch_is_found_behind_rows_that_were_made_longer(
    starts: str, step: str, found: bool
) -> None:
    files = vllm(LENGTHENED.replace("STARTS", starts).replace("STEP", step))
    behind = [("OneState.prepare_attn", Kind.BEHIND.value, BOUND)]
    assert kinds(files) == (behind if found else [])


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


def written(files: Mapping[str, bytes], root: Path) -> Path:
    """A folder with these files."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def test_findings_are_told_to_people_and_machines_and_in_the_exit_status(
    mrv2: Mrv2, tmp_path: Path
) -> None:
    wrong = written(of_state(WRONG), tmp_path / "wrong")
    done = mrv2("audit", wrong)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].endswith("(folder): 2 findings")
    line = len(textwrap.dedent(IMPORTS).splitlines()) + 3
    assert f"  {line:>4} OneState.prepare_attn: bound not forwarded, certain" in done.stdout
    data = json.loads(mrv2("audit", wrong, "--json").stdout)
    assert [one["key"] for one in data["findings"]] == [
        f"{STATE}: OneState.prepare_attn: bound not forwarded: {BOUND}",
        f"{STATE}: OneState.prepare_attn: max_seq_len over-estimated: max_seq_len",
    ]
    right = written(of_state(*FORWARDED["at once"]), tmp_path / "right")
    done = mrv2("audit", right)
    assert (done.returncode, done.stdout) == (0, f"{right} (folder): no findings\n")


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        (STATE, b"class :", f"{STATE}: does not parse (invalid syntax"),
        (STATE, b"\0", f"{STATE}: does not parse ("),
        (GPU + "attn_utils.py", b"", f"{GPU}: makes no CommonAttentionMetadata: "),
    ],
)
def test_what_cannot_be_audited_is_one_line_and_status_4(
    path: str, content: bytes, said: str, mrv2: Mrv2, tmp_path: Path
) -> None:
    done = mrv2("audit", written({**of_state(WRONG), path: content}, tmp_path / "fork"))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"mrv2: {said}")
    assert done.stderr.count("\n") == 1


ENTRY = """
    [[accept]]
    symbol = "OneState.prepare_attn"
    kind = "{kind}"
    reason = "looked at"
    until = {until}
    {more}
"""
ENTRIES = [
    # kind, until, more, findings that count, what is said of the entry
    ("bound not forwarded", "2999-12-31", "", 1, "accepted until 2999-12-31: looked at"),
    ("bound not forwarded", "2999-12-31", 'field = "positions"', 2, "and not found: take it out"),
    ("bound not forwarded", "2999-12-31", 'file = "vllm/other.py"', 2, "take it out"),
    ("never renewed", "2999-12-31", "", 2, "and not found: take it out"),
    ("bound not forwarded", "2020-02-29", "", 2, "accepted until 2020-02-29, and counts again"),
    ("bound not forwarded", "2999-12-31", 'releases = "<0.30"', 1, "looked at"),
    ("bound not forwarded", "2999-12-31", 'releases = ">=0.30"', 2, ""),
]


@pytest.mark.parametrize(("kind", "until", "more", "count", "said"), ENTRIES)
def test_a_finding_that_is_accepted_does_not_count_while_that_holds(
    kind: str, until: str, more: str, count: int, said: str, mrv2: Mrv2, tmp_path: Path
) -> None:
    metadata = {"vllm-0.24.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.24.0\n\n"}
    fork = written({**of_state(WRONG), **metadata}, tmp_path / "fork")
    accept = tmp_path / "accept.toml"
    accept.write_text(textwrap.dedent(ENTRY.format(kind=kind, until=until, more=more)))
    done = mrv2("audit", fork, "--accept", accept)
    assert done.returncode == 1
    told = "1 finding, 1 more accepted" if count == 1 else "2 findings"
    assert done.stdout.splitlines()[0] == f"{fork} (folder): {told}"
    assert said in done.stdout
    findings = json.loads(mrv2("audit", fork, "--accept", accept, "--json").stdout)["findings"]
    assert sum(one["accepted"] is None for one in findings) == count


@pytest.mark.releases
def test_the_example_of_the_readme_accepts_what_it_says(published: Source) -> None:
    readme = (series.root() / "README.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    [entry] = acceptance.parse(example, "README.md")
    findings = audit(folder.read(published("0.24.0")).files)
    accepted = [one.key for one in findings if entry.names(one)]
    assert accepted == [
        f"{GPU}model_states/encoder_decoder.py: {ENCODER_DECODER}: field dropped: positions"
    ]
    assert entry.is_for("0.24.0+mrv2.1")
    assert not entry.is_for("0.23.0")


def test_nothing_counts_where_everything_is_accepted(mrv2: Mrv2, tmp_path: Path) -> None:
    fork = written(of_state(WRONG), tmp_path / "fork")
    entries = [
        ENTRY.format(kind=one, until="2999-12-31", more="")
        for one in ("bound not forwarded", "max_seq_len over-estimated")
    ]
    (tmp_path / "accept.toml").write_text(textwrap.dedent("".join(entries)))
    done = mrv2("audit", fork, "--accept", tmp_path / "accept.toml")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith("no findings, 2 more accepted")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("accept = 1", "Expected `array`"),
        ("[[accept]", "Expected"),
        (ENTRY.format(kind="wrong", until="2999-12-31", more=""), "Invalid enum value 'wrong'"),
        (ENTRY.format(kind="never renewed", until="soon", more=""), ""),
        (ENTRY.format(kind="never renewed", until="2999-12-31", more="line = 3"), "unknown field"),
        (
            ENTRY.format(kind="never renewed", until="2999-12-31", more='releases = "x"'),
            "specifier",
        ),
    ],
)
def test_a_file_of_what_is_accepted_that_cannot_be_read_is_a_wrong_call(
    text: str | None, said: str, mrv2: Mrv2, tmp_path: Path
) -> None:
    fork = written(of_state(WRONG), tmp_path / "fork")
    accept = tmp_path / "accept.toml"
    if text is not None:
        accept.write_text(textwrap.dedent(text))
    done = mrv2("audit", fork, "--accept", accept)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"mrv2: {accept}: ")
    assert said in done.stderr
