# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Model Runner V2, `method: draft_model`: the draft's metadata bounds its sequences.

In its prefill the draft reads one token more than the target did: the one that the
target has sampled. No length may be above its bound, and `max_seq_len` is what this
batch can reach and not what the model can.
"""

from collections.abc import Iterator

import pytest

from vllm import LLM
from vllm.v1.attention.backends.utils import split_decodes_prefills_and_extends

from ..worker.tiny_models import (
    Build,
    Proposal,
    TinyModel,
    assert_like_transformers,
    engine,
    record_proposals,
    write_model,
    write_shallow_draft,
)

MAX_MODEL_LEN = 128
NUM_SPECULATIVE_TOKENS = 3
# Growing, shrinking back, and up to the longest sequence that the model can have.
REQUESTS = [
    pytest.param([list(range(1, 6)), list(range(5, 40))], [12, 8], id="batch"),
    pytest.param([list(range(3, 8))], [8], id="shorter"),
    pytest.param([list(range(1, 116))], [13], id="longest"),
]


@pytest.fixture(scope="module")
def target() -> TinyModel:
    return write_model("llama")


@pytest.fixture(scope="module")
def llm(target: TinyModel) -> Iterator[LLM]:
    config = {
        "method": "draft_model",
        "model": write_shallow_draft(target.folder),
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    }
    with engine(
        target.folder, max_model_len=MAX_MODEL_LEN, speculative_config=config
    ) as llm:
        yield llm


def run(
    llm: LLM,
    target: TinyModel,
    prompts: list[list[int]],
    max_tokens: list[int],
    patch: pytest.MonkeyPatch,
) -> list[tuple[Proposal, Build]]:
    """Complete the prompts; each metadata of the draft, with the batch it was for."""
    proposals = record_proposals(llm, patch)
    # Greedy tokens do not depend on the draft.
    assert_like_transformers(llm, target, prompts, max_tokens)
    passes = [(proposal, build) for proposal in proposals for build in proposal.builds]
    assert passes
    return passes


@pytest.mark.parametrize(("prompts", "max_tokens"), REQUESTS)
def test_no_sequence_is_above_its_bound(
    llm: LLM,
    target: TinyModel,
    prompts: list[list[int]],
    max_tokens: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for proposal, build in run(llm, target, prompts, max_tokens, monkeypatch):
        bound = build.common.seq_lens_cpu_upper_bound.tolist()
        limits = [
            min(longest + NUM_SPECULATIVE_TOKENS, MAX_MODEL_LEN)
            for longest in proposal.bound
        ]
        rows = zip(build.seq_lens, bound, limits, strict=True)
        assert all(length <= most <= limit for length, most, limit in rows), (
            f"a draft pass over {build.seq_lens} tokens is said to have at most "
            f"{bound}: backends that go by it leave out the rest"
        )


@pytest.mark.parametrize(("prompts", "max_tokens"), REQUESTS)
def test_longest_of_the_batch(
    llm: LLM,
    target: TinyModel,
    prompts: list[list[int]],
    max_tokens: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for proposal, build in run(llm, target, prompts, max_tokens, monkeypatch):
        limit = min(max(proposal.bound) + NUM_SPECULATIVE_TOKENS, MAX_MODEL_LEN)
        assert build.longest <= build.common.max_seq_len <= limit, (
            f"a draft pass over {build.longest} tokens has max_seq_len "
            f"{build.common.max_seq_len}, for a batch of at most {limit} with drafts"
        )


def test_first_prefill_is_one_of_the_draft_too(
    llm: LLM, target: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(range(1, 6)), list(range(5, 40))]
    passes = run(llm, target, prompts, [2, 2], monkeypatch)
    first = passes[0][1]
    assert first.seq_lens == [6, 36]
    # How ROCM_AITER_FA tells apart what has a context to attend to.
    split = split_decodes_prefills_and_extends(first.common)
    num_decodes, num_extends, num_prefills, *_ = split
    assert (num_decodes, num_extends, num_prefills) == (0, 0, 2), (
        "the first tokens of two sequences are taken for a continuation, "
        "with a context of -1 tokens"
    )
