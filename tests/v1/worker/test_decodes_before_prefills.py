# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Model Runner V2: in a batch decodes stand before prefills, however long each is.

With drafts a decode has up to 1 + K tokens, and a prefill can have fewer. Mamba2's
builder takes all that stands behind the first prefill for prefills. Run as one, a
decode continues from a state that is not its own, and keeps its rejected drafts in it.
"""

import dataclasses
from typing import Any

import pytest

from .tiny_models import (
    engine,
    generate,
    record_batches,
    write_eagle_draft,
    write_model,
)


@dataclasses.dataclass(frozen=True)
class Case:
    engine: dict[str, Any]
    prompts: list[list[int]]
    max_tokens: list[int]


CASES = {
    # The third request joins as the first one ends, while the second decodes.
    "short_prompt": Case(
        {}, [list(range(1, 6)), list(range(5, 17)), [50, 51]], [3, 9, 4]
    ),
    # No request gets more than two tokens in a step, those that decode included.
    "clipped": Case(
        {"long_prefill_token_threshold": 2},
        [list(range(5, 21)), list(range(1, 5))],
        [2, 8],
    ),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a case came to: which rows of each batch are prefills, and the tokens."""

    batches: list[list[bool]]
    token_ids: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest) -> Run:
    case = CASES[request.param]
    granite = write_model("granite")
    draft = {
        "method": "eagle",
        # Of the same sizes; what it drafts is of no account.
        "model": write_eagle_draft(write_model("llama").folder),
        "num_speculative_tokens": 3,
    }
    with (
        engine(
            granite.folder, max_model_len=64, speculative_config=draft, **case.engine
        ) as llm,
        pytest.MonkeyPatch.context() as patch,
    ):
        batches = record_batches(llm, patch)
        completions = generate(llm, case.prompts, case.max_tokens)
    requests = zip(case.prompts, case.max_tokens, strict=True)
    return Run(
        batches,
        [completion.token_ids for completion in completions],
        [granite.greedy(*request).token_ids for request in requests],
    )


def test_decodes_stand_first(run: Run) -> None:
    mixed = [batch for batch in run.batches if any(batch) and not all(batch)]
    assert mixed
    assert mixed == [sorted(batch) for batch in mixed], (
        "a decode stands behind a prefill, and is taken for one"
    )


def test_drafts_change_no_token(run: Run) -> None:
    assert run.token_ids == run.expected, (
        "a request that decoded beside a prefill continued from a wrong state"
    )
