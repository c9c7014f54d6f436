# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Hybrid models on Model Runner V2: builders get the bound on sequence lengths.

The Mamba builders assert that `seq_lens_cpu_upper_bound` is there, so that without
it no hybrid model gets past its first forward pass.
"""

import dataclasses
from collections.abc import Iterator

import pytest

from vllm import LLM
from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.attention.backends.mamba1_attn import Mamba1AttentionMetadataBuilder
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.attention.backends.short_conv_attn import (
    ShortConvAttentionMetadataBuilder,
)
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

from .tiny_models import (
    Layers,
    Row,
    TinyModel,
    assert_like_transformers,
    assert_same,
    build_layers,
    generate,
    hybrid_engine,
    make_batch,
    num_preemptions,
    prepare_attn,
    record_batches,
    record_builds,
    write_model,
)

BUILDERS = {
    "lfm2": ShortConvAttentionMetadataBuilder,
    "jamba": Mamba1AttentionMetadataBuilder,
    "granite": Mamba2AttentionMetadataBuilder,
    "qwen3_next": GDNAttentionMetadataBuilder,
}


@pytest.fixture(scope="module", params=BUILDERS)
def layers(request: pytest.FixtureRequest) -> Iterator[Layers]:
    with build_layers(request.param) as layers:
        kinds = {type(builder) for builder in layers.builders}
        # One for the Mamba layers, one for the attention layers beside them.
        assert BUILDERS[request.param] in kinds
        assert len(kinds) == 2
        yield layers


@pytest.mark.parametrize(
    ("mode", "rows", "padding"),
    [
        pytest.param(
            CUDAGraphMode.NONE,
            [Row(40, 1), Row(7, 1), Row(0, 35, True), Row(16, 20, True)],
            0,
            id="eager",
        ),
        pytest.param(
            CUDAGraphMode.FULL, [Row(40, 1), Row(7, 1), Row(99, 1)], 2, id="padded"
        ),
    ],
)
def test_every_builder_receives_the_bound(
    layers: Layers,
    mode: CUDAGraphMode,
    rows: list[Row],
    padding: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = make_batch(rows, layers.device, padding)
    # Rows with draft tokens in flight: a bound, and not the lengths themselves.
    bound = batch.seq_lens_cpu_upper_bound.clone()
    bound[:2] += 2
    batch = dataclasses.replace(batch, seq_lens_cpu_upper_bound=bound)
    model_state = MambaHybridModelState(
        layers.vllm_config, layers.model, None, layers.device
    )
    builds = record_builds(layers.builders, monkeypatch)

    prepare_attn(layers, model_state, batch, mode)

    assert [build.builder for build in builds] == layers.builders
    for build in builds:
        received = build.common.seq_lens_cpu_upper_bound
        assert received is not None, (
            f"{type(build.builder).__name__} has no bound: hybrid models cannot run"
        )
        assert received.device.type == "cpu"
        assert received.tolist() == bound.tolist()


MODELS = ["lfm2", "lfm2_vl", "granite"]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> TinyModel:
    return write_model(request.param)


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Iterator[LLM]:
    with hybrid_engine(model) as llm:
        yield llm


def test_prompts_prefilled_together(
    llm: LLM, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = record_batches(llm, monkeypatch)
    prompts = [list(range(1, 6)), list(range(5, 40))]
    assert_like_transformers(llm, model, prompts, [4, 4])
    assert batches[0] == [True, True]


def test_chunked_prefill(
    llm: LLM, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = record_batches(llm, monkeypatch)
    assert_like_transformers(llm, model, [list(range(1, 102))], [4])
    assert batches[:4] == [[True], [True], [True], [False]]


# GraniteMoeHybrid does these two in test_mamba_hybrid_speculative_tensors.py.
only_short_conv = pytest.mark.parametrize("model", MODELS[:2], indirect=True)


@only_short_conv
def test_prefill_joins_running_decodes(
    llm: LLM, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = record_batches(llm, monkeypatch)
    prompts = [list(range(1, 6)), list(range(5, 40)), list(range(50, 60))]
    assert_like_transformers(llm, model, prompts, [3, 8, 5])
    assert [False, True] in batches


@only_short_conv
def test_preempted_request(llm: LLM, model: TinyModel) -> None:
    before = num_preemptions(llm)
    prompts = [list(range(1, 61)), list(range(101, 161))]
    assert_like_transformers(llm, model, prompts, [10, 10])
    assert num_preemptions(llm) > before


@pytest.mark.skipif(not current_platform.is_cuda(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("cudagraph_mode", ["FULL_DECODE_ONLY", "PIECEWISE"])
def test_cuda_graphs(model: TinyModel, cudagraph_mode: str) -> None:
    prompts = [list(range(1, 6)), list(range(5, 40))]
    with hybrid_engine(model, enforce_eager=True) as llm:
        eager = generate(llm, prompts, [8, 8])
    config = {"cudagraph_mode": cudagraph_mode}
    with hybrid_engine(model, enforce_eager=False, compilation_config=config) as llm:
        assert_same(generate(llm, prompts, [8, 8]), eager)
