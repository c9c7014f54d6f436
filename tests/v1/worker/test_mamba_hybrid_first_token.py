# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Hybrid models on Model Runner V2: a request whose first chunk is one token.

Its recurrent state begins at zero, whoever had the block of the cache before it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from vllm import LLM
from vllm.platforms import current_platform

from .tiny_models import TinyModel, deviation, generate, hybrid_engine, write_model

# The CPU kernels of gated delta nets want exactly these.
DTYPES = {"dtype": "bfloat16", "mamba_ssm_cache_dtype": "float32"}
# Of log-probabilities, by bfloat16.
ROUNDING = 0.4
# One block of state and one of attention for each of three requests, and one that is
# never used: each request gets blocks that another one had.
NUM_GPU_BLOCKS = 7


@pytest.fixture(scope="module", params=["qwen3_next_wide", "qwen3_5"])
def model(request: pytest.FixtureRequest) -> TinyModel:
    model = write_model(request.param)
    # As vLLM rounds the weights.
    model.reference.bfloat16().float()
    return model


def first_token_engine(model: TinyModel, **kwargs: Any) -> Any:
    if model.is_multimodal:
        kwargs["limit_mm_per_prompt"] = {"image": 0, "video": 0}
    return hybrid_engine(
        model,
        max_num_seqs=3,
        num_gpu_blocks_override=NUM_GPU_BLOCKS,
        **DTYPES,
        **kwargs,
    )


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Iterator[LLM]:
    with first_token_engine(model) as llm:
        yield llm


def use_every_block(llm: LLM) -> None:
    generate(llm, [range(first, first + 16) for first in (10, 110, 210)], [4, 4, 4])


def prompts_of(*lengths: int) -> list[list[int]]:
    return [list(range(40 * i, 40 * i + n)) for i, n in enumerate(lengths, start=1)]


# A pass takes up to 48 tokens.
@pytest.mark.parametrize(
    ("prompts", "max_tokens"),
    [
        pytest.param(prompts_of(1, 1, 1), [5, 5, 5], id="alone"),
        pytest.param(prompts_of(5, 20, 4, 1), [2, 12, 12, 5], id="joins-decodes"),
        pytest.param(prompts_of(5, 42, 2), [5, 5, 5], id="chunk"),
        # The other way round: the last chunk goes on from the state of the first.
        pytest.param([list(range(1, 50))], [5], id="last-chunk"),
    ],
)
def test_begins_without_a_state(
    llm: LLM, model: TinyModel, prompts: list[list[int]], max_tokens: list[int]
) -> None:
    use_every_block(llm)
    completions = generate(llm, prompts, max_tokens)

    deviations = [
        round(deviation(model, *request), 3)
        for request in zip(prompts, completions, strict=True)
    ]
    assert max(deviations) < ROUNDING, (
        "a request continued from the recurrent state of another one: "
        f"log-probabilities {deviations} from transformers'"
    )


@pytest.mark.skipif(not current_platform.is_cuda(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("cudagraph_mode", ["FULL_DECODE_ONLY", "PIECEWISE"])
def test_cuda_graphs(model: TinyModel, cudagraph_mode: str) -> None:
    request = prompts_of(5, 20, 4, 1), [2, 12, 12, 5]
    with first_token_engine(model, enforce_eager=True) as llm:
        eager = generate(llm, *request)
    config = {"cudagraph_mode": cudagraph_mode}
    with first_token_engine(
        model, enforce_eager=False, compilation_config=config
    ) as llm:
        use_every_block(llm)
        completions = generate(llm, *request)
    assert [c.token_ids for c in completions] == [c.token_ids for c in eager]
