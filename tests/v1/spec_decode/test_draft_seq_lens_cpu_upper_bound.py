# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Model Runner V2: draft steps come with a bound on their sequence lengths.

`seq_lens_cpu_upper_bound` is what backends read in place of the lengths themselves,
which would have to be copied from the device. Some fail without it.
"""

from collections.abc import Iterator

import pytest

from vllm import LLM, _custom_ops
from vllm.v1.attention.backends.utils import split_decodes_prefills_and_extends
from vllm.version import __version_tuple__

from ..worker.tiny_models import (
    Build,
    Proposal,
    TinyModel,
    assert_like_transformers,
    engine,
    generate,
    model_runner,
    record_builds,
    record_proposals,
    write_dflash_draft,
    write_eagle_draft,
    write_model,
)

MAX_MODEL_LEN = 128
NUM_SPECULATIVE_TOKENS = 3
# Tokens of one request in DFlash's only step: the anchor and the drafts.
MOST = NUM_SPECULATIVE_TOKENS + 1


@pytest.fixture(scope="module")
def target() -> TinyModel:
    return write_model("llama")


# EAGLE drafts one token a step, DFlash all of them in one, behind an anchor.
DRAFTS = {
    "eagle": write_eagle_draft,
    "dflash": lambda target: write_dflash_draft(),
}


@pytest.fixture(scope="module", params=DRAFTS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(target: TinyModel, method: str) -> Iterator[LLM]:
    config = {
        "method": method,
        "model": DRAFTS[method](target.folder),
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    }
    with pytest.MonkeyPatch.context() as patch:
        # oneDNN takes the weights away from layers, and DFlash of 0.24.0 reads them.
        patch.setattr(_custom_ops, "_supports_onednn", False)
        with engine(
            target.folder, max_model_len=MAX_MODEL_LEN, speculative_config=config
        ) as llm:
            yield llm


def limit(method: str, longest: int) -> int:
    """The longest that a draft's sequence can be, where the target has `longest`."""
    if method == "dflash":
        # Up to 0.27.1 its lengths go beyond the model's maximum.
        return longest + MOST
    return min(longest + NUM_SPECULATIVE_TOKENS, MAX_MODEL_LEN)


def draft_steps(proposals: list[Proposal]) -> list[tuple[Proposal, Build]]:
    steps = [(proposal, build) for proposal in proposals for build in proposal.builds]
    assert steps
    return steps


def test_draft_steps_are_split_as_decodes(
    llm: LLM, target: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposals = record_proposals(llm, monkeypatch)
    # Greedy tokens do not depend on the draft.
    assert_like_transformers(llm, target, [list(range(1, 6))], [8])

    for proposal, build in draft_steps(proposals):
        # The first thing that the builder of ROCM_AITER_FA does.
        num_decodes, *_ = split_decodes_prefills_and_extends(build.common, MOST)
        assert num_decodes == len(proposal.bound)


# The second is up to the longest sequence that the model can have.
@pytest.mark.parametrize(
    ("prompts", "max_tokens"),
    [
        pytest.param([list(range(1, 6)), list(range(5, 40))], [12, 8], id="batch"),
        pytest.param([list(range(1, 116))], [13], id="longest"),
    ],
)
def test_draft_steps_are_bounded_row_by_row(
    llm: LLM,
    method: str,
    target: TinyModel,
    prompts: list[list[int]],
    max_tokens: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proposals = record_proposals(llm, monkeypatch)

    assert_like_transformers(llm, target, prompts, max_tokens)

    for proposal, build in draft_steps(proposals):
        bound = build.common.seq_lens_cpu_upper_bound
        assert bound is not None, (
            f"a draft step over {build.seq_lens} tokens has no bound: "
            "backends that ask for it fail, or wait for the device"
        )
        assert bound.device.type == "cpu"
        limits = [limit(method, longest) for longest in proposal.bound]
        rows = zip(build.seq_lens, bound.tolist(), limits, strict=True)
        assert all(length <= most <= limit for length, most, limit in rows), (
            f"a draft step over {build.seq_lens} tokens is said to have at most "
            f"{bound.tolist()}, for a batch of at most {proposal.bound}"
        )


@pytest.mark.skipif(
    __version_tuple__ >= (0, 27), reason="vLLM's own fix, with other parameters"
)
def test_padding_has_no_tokens(
    llm: LLM, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(llm, [list(range(1, 6))], [2])
    speculator = model_runner(llm).speculator
    groups = [group for groups in speculator.attn_groups for group in groups]
    builds = record_builds([g.get_metadata_builder(0) for g in groups], monkeypatch)

    # For a FULL CUDA graph of two requests, when there is one.
    num_tokens_padded = 2 * (MOST if method == "dflash" else 1)
    speculator._build_draft_attn_metadata(1, 2, num_tokens_padded)

    assert builds
    for build in builds:
        longest, padding = build.common.seq_lens_cpu_upper_bound.tolist()
        assert longest > 0
        assert padding == 0
