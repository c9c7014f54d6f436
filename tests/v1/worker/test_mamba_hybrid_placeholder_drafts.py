# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Hybrid models on Model Runner V2: a one-token prompt that joins running decodes.

With speculative decoding the scheduler may pad a request that has one token left with
drafts that stand for nothing. None of them may stay in its recurrent state.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from vllm import LLM

from .tiny_models import (
    TinyModel,
    deviation,
    generate,
    hybrid_engine,
    write_model,
    write_recalling_draft,
)

NUM_SPECULATIVE_TOKENS = 3
# A request takes up to six: four of states, one in each attention layer.
NUM_GPU_BLOCKS = 20
# Of log-probabilities, by bfloat16.
ROUNDING = 0.4
KINDS: dict[str, dict[str, Any]] = {
    "granite": {},
    # The CPU kernels of gated delta nets want exactly these.
    "qwen3_next_wide": {"dtype": "bfloat16", "mamba_ssm_cache_dtype": "float32"},
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind: str) -> TinyModel:
    model = write_model(kind)
    if KINDS[kind]:
        # As vLLM rounds the weights.
        model.reference.bfloat16().float()
    return model


@pytest.fixture(scope="module")
def llm(kind: str, model: TinyModel) -> Iterator[LLM]:
    # That its drafts are wrong changes no token.
    draft = write_recalling_draft(model.folder, (1, 2, 3))
    with hybrid_engine(
        model,
        num_gpu_blocks_override=NUM_GPU_BLOCKS,
        speculative_config={
            "method": "eagle",
            "model": draft,
            "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        },
        **KINDS[kind],
    ) as llm:
        yield llm


@pytest.mark.parametrize("length", [1, 6])
def test_prompt_joins_decodes(llm: LLM, model: TinyModel, length: int) -> None:
    # Leave states of other requests in every block.
    others = [range(first, first + 16) for first in (10, 60, 110, 160)]
    generate(llm, others, [4] * len(others))
    # The third begins when the first ends, while the second decodes.
    prompts = [range(1, 6), range(5, 40), range(50, 50 + length)]
    completions = generate(llm, prompts, [2, 16, 6])

    deviations = [
        round(deviation(model, *request), 3)
        for request in zip(prompts, completions, strict=True)
    ]
    assert max(deviations) < ROUNDING, (
        "drafts that stand for nothing stayed in the recurrent state: "
        f"log-probabilities {deviations} from transformers'"
    )
