# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Hybrid models on Model Runner V2: `num_accepted_tokens` of a request that begins.

Its first step has accepted nothing yet, whatever the request before it in the same
slot has: the state that a KV connector loaded is in the first block, not in that of
a draft.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from vllm import LLM
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from .tiny_models import (
    BLOCK_SIZE,
    TinyModel,
    assert_same,
    generate,
    hybrid_engine,
    model_runner,
    write_model,
    write_recalling_draft,
)

NUM_SPECULATIVE_TOKENS = 3
# Told from every other size of a cache tensor.
NUM_GPU_BLOCKS = 41
PROMPT = list(range(50, 60))
OTHER_PROMPT = list(range(1, 6))
MAX_TOKENS = 9


@dataclass
class Transfers(KVConnectorMetadata):
    """Prompts, and the first block of each KV cache group that their state is in."""

    saves: list[tuple[tuple[int, ...], list[int]]]
    loads: list[tuple[tuple[int, ...], list[int]]]


class PrefixConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps what was computed for a prompt, for the prompts that are one token longer.

    As where one instance computes the prompt and another one goes on from there. All
    is in this process, and a prompt fits into one block.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.groups = [group.layer_names for group in kv_cache_config.kv_cache_groups]
        self.layers = vllm_config.compilation_config.static_forward_context
        self.known: set[tuple[int, ...]] = set()
        self.states: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self.next = Transfers([], [])

    # The scheduler's half.

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        prefix = tuple(request.prompt_token_ids[:-1])
        return (len(prefix) if prefix in self.known else 0), False

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        prompt = tuple(request.prompt_token_ids)
        assert len(prompt) <= BLOCK_SIZE
        first_blocks = [block_ids[0] for block_ids in blocks.get_block_ids()]
        if num_external_tokens:
            self.next.loads.append((prompt[:-1], first_blocks))
        else:
            self.known.add(prompt)
            self.next.saves.append((prompt, first_blocks))

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:
        transfers, self.next = self.next, Transfers([], [])
        return transfers

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        return False, None

    # The worker's half.

    def views(self, first_blocks: list[int]) -> Iterator[torch.Tensor]:
        for block, names in zip(first_blocks, self.groups, strict=True):
            for name in names:
                cache = self.layers[name].kv_cache
                for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
                    yield tensor.select(tensor.shape.index(NUM_GPU_BLOCKS), block)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for prefix, first_blocks in self._get_connector_metadata().loads:
            for view, state in zip(
                self.views(first_blocks), self.states[prefix], strict=True
            ):
                view.copy_(state)

    def wait_for_save(self) -> None:
        for prompt, first_blocks in self._get_connector_metadata().saves:
            self.states[prompt] = [view.clone() for view in self.views(first_blocks)]

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return write_model("granite")


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Iterator[LLM]:
    completion = model.greedy(OTHER_PROMPT, MAX_TOKENS).token_ids
    draft = write_recalling_draft(model.folder, (OTHER_PROMPT[-1], *completion))
    with hybrid_engine(
        model,
        max_num_seqs=1,
        num_gpu_blocks_override=NUM_GPU_BLOCKS,
        speculative_config={
            "method": "eagle",
            "model": draft,
            "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        },
        kv_transfer_config={
            "kv_connector": PrefixConnector.__name__,
            "kv_connector_module_path": __name__,
            "kv_role": "kv_both",
        },
    ) as llm:
        yield llm


def test_slot_of_a_request_with_accepted_drafts(llm: LLM, model: TinyModel) -> None:
    expected = [model.greedy(PROMPT, MAX_TOKENS)]
    # Another instance would compute this.
    generate(llm, [PROMPT[:-1]], [1])
    assert_same(generate(llm, [PROMPT], [MAX_TOKENS]), expected)

    other = model.greedy(OTHER_PROMPT, MAX_TOKENS)
    assert_same(generate(llm, [OTHER_PROMPT], [MAX_TOKENS]), [other])
    accepted = model_runner(llm).model_state.num_accepted_tokens_gpu.tolist()
    assert accepted == [1 + NUM_SPECULATIVE_TOKENS]

    (completion,) = generate(llm, [PROMPT], [MAX_TOKENS])
    assert completion.token_ids == expected[0].token_ids, (
        "a request read its loaded state where a draft's would be, by the number of "
        "tokens that the request before it in the slot had accepted"
    )
