# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Model Runner V2: draft steps get a `max_seq_len` that goes with the batch.

It stands for the longest sequence that a draft can reach in this batch, and not for
`max_model_len`, by which attention backends would size their work.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from vllm import LLM
from vllm.platforms import current_platform

from ..worker.tiny_models import (
    Completion,
    TinyModel,
    assert_like_transformers,
    assert_same,
    engine,
    generate,
    record_proposals,
    write_eagle_draft,
    write_model,
)

MAX_MODEL_LEN = 128
NUM_SPECULATIVE_TOKENS = 3
PROMPTS = [list(range(1, 6)), list(range(5, 40)), list(range(50, 60))]
MAX_TOKENS = [3, 12, 5]


@pytest.fixture(scope="module")
def target() -> TinyModel:
    return write_model("llama")


def draft_engine(target: TinyModel, **kwargs: Any) -> Any:
    speculative_config = {
        "method": "eagle",
        "model": write_eagle_draft(target.folder),
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    }
    return engine(
        target.folder,
        max_model_len=MAX_MODEL_LEN,
        speculative_config=speculative_config,
        **kwargs,
    )


@pytest.fixture(scope="module")
def without_draft(target: TinyModel) -> list[Completion]:
    with engine(target.folder, max_model_len=MAX_MODEL_LEN) as llm:
        return generate(llm, PROMPTS, MAX_TOKENS)


# One engine at a time in a process, so that the one without the draft comes first.
@pytest.fixture(scope="module")
def llm(target: TinyModel, without_draft: list[Completion]) -> Iterator[LLM]:
    with draft_engine(target) as llm:
        yield llm


# Growing, shrinking back, and up to the longest sequence that the model can have.
@pytest.mark.parametrize(
    ("prompts", "max_tokens"),
    [
        pytest.param([list(range(1, 6)), list(range(5, 40))], [12, 8], id="batch"),
        pytest.param([list(range(3, 8))], [8], id="shorter"),
        pytest.param([list(range(1, 116))], [13], id="clamped"),
    ],
)
def test_draft_steps_are_bounded_by_the_batch(
    llm: LLM,
    target: TinyModel,
    prompts: list[list[int]],
    max_tokens: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proposals = record_proposals(llm, monkeypatch)

    # Greedy tokens do not depend on the draft.
    assert_like_transformers(llm, target, prompts, max_tokens)

    steps = [(proposal, build) for proposal in proposals for build in proposal.builds]
    assert steps
    for proposal, build in steps:
        limit = min(max(proposal.bound) + NUM_SPECULATIVE_TOKENS, MAX_MODEL_LEN)
        assert build.longest <= build.common.max_seq_len <= limit, (
            f"a draft step over {build.longest} tokens has max_seq_len "
            f"{build.common.max_seq_len}, for a batch of at most {max(proposal.bound)}"
        )


def test_every_proposal_renews_the_limit(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposals = record_proposals(llm, monkeypatch)
    prompts = [list(range(1, 6)), list(range(1, 120))]
    # The short request outlives the long one: larger and then smaller.
    generate(llm, prompts, [16, 8])

    limits = [proposal.draft_max_seq_len for proposal in proposals]
    assert limits == [
        min(max(proposal.bound) + NUM_SPECULATIVE_TOKENS, MAX_MODEL_LEN)
        for proposal in proposals
    ]
    assert MAX_MODEL_LEN in limits
    assert limits[-1] < MAX_MODEL_LEN
    assert all(type(limit) is int for limit in limits)


def test_draft_changes_no_token(llm: LLM, without_draft: list[Completion]) -> None:
    assert_same(generate(llm, PROMPTS, MAX_TOKENS), without_draft)


@pytest.mark.skipif(not current_platform.is_cuda(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("cudagraph_mode", ["FULL_AND_PIECEWISE", "PIECEWISE"])
def test_cuda_graphs(target: TinyModel, cudagraph_mode: str) -> None:
    with draft_engine(target, enforce_eager=True) as llm:
        eager = generate(llm, PROMPTS, MAX_TOKENS)
    config = {"cudagraph_mode": cudagraph_mode}
    with draft_engine(target, enforce_eager=False, compilation_config=config) as llm:
        assert_same(generate(llm, PROMPTS, MAX_TOKENS), eager)
