# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Hybrid models on Model Runner V2: tensors of speculative decoding.

`num_accepted_tokens` and `num_decode_draft_tokens_cpu` have an entry per request and
are for speculative decoding alone. Without it Mamba2's decode kernel wants an entry
per decode, and refuses the tensor as soon as a prefill joins running decodes.
"""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from vllm import LLM
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update
from vllm.platforms import current_platform
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.worker.gpu.model_states import mamba_hybrid
from vllm.version import __version_tuple__

from .tiny_models import (
    SEED,
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

NUM_SPECULATIVE_TOKENS = 2
NAMES = ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
# The kinds whose builders take the two tensors.
KINDS = ["granite", "qwen3_next"]


@pytest.fixture(scope="module", params=KINDS)
def layers(request: pytest.FixtureRequest) -> Iterator[Layers]:
    with build_layers(request.param) as layers:
        yield layers


@pytest.fixture(scope="module", params=KINDS)
def speculative_layers(request: pytest.FixtureRequest) -> Iterator[Layers]:
    # Needs no draft model, and a model state asks for the number of tokens only.
    config = {
        "method": "ngram",
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "prompt_lookup_max": 2,
    }
    with build_layers(request.param, speculative_config=config) as layers:
        yield layers


def model_state_of(layers: Layers) -> mamba_hybrid.MambaHybridModelState:
    return mamba_hybrid.MambaHybridModelState(
        layers.vllm_config, layers.model, None, layers.device
    )


def mamba_builders(layers: Layers) -> list[Mamba2AttentionMetadataBuilder]:
    kinds = (Mamba2AttentionMetadataBuilder, GDNAttentionMetadataBuilder)
    builders = [b for b in layers.builders if isinstance(b, kinds)]
    assert builders
    return builders


def record_metadata(
    patch: pytest.MonkeyPatch,
) -> list[mamba_hybrid.MambaHybridAttnMetadata]:
    """Collect what `prepare_attn` makes for the Mamba builders."""
    made = []
    metadata_class = mamba_hybrid.MambaHybridAttnMetadata

    def record(*args, **kwargs):
        made.append(metadata_class(*args, **kwargs))
        return made[-1]

    patch.setattr(mamba_hybrid, "MambaHybridAttnMetadata", record)
    return made


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([Row(40, 1), Row(7, 1)], id="decodes"),
        pytest.param([Row(40, 1), Row(7, 1), Row(0, 35, True)], id="mixed"),
        pytest.param([Row(0, 35, True)], id="prefill"),
    ],
)
def test_none_without_speculative_decoding(
    layers: Layers, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = record_metadata(monkeypatch)
    builds = record_builds(mamba_builders(layers), monkeypatch)

    prepare_attn(layers, model_state_of(layers), make_batch(rows, layers.device))

    assert builds
    for build in builds:
        assert {name: build.kwargs.get(name) for name in NAMES} == dict.fromkeys(NAMES)
    assert [getattr(made[0], name) for name in NAMES] == [None, None]


def test_none_in_capture(
    speculative_layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With speculative decoding: the builders make their own tensors for capture.
    layers = speculative_layers
    made = record_metadata(monkeypatch)
    batch = make_batch([Row(40, 1 + NUM_SPECULATIVE_TOKENS)] * 2, layers.device)

    prepare_attn(
        layers, model_state_of(layers), batch, CUDAGraphMode.FULL, for_capture=True
    )

    assert [getattr(made[0], name) for name in NAMES] == [None, None]


VERIFY = [Row(40, 3, num_draft_tokens=2), Row(20, 2, num_draft_tokens=1)]
# Newer vLLM keeps such a row a speculative one, with no drafts.
DECODE_WITHOUT_DRAFTS = 0 if __version_tuple__ >= (0, 32) else -1


@pytest.mark.parametrize(
    ("mode", "last", "padding", "drafts"),
    [
        pytest.param(CUDAGraphMode.NONE, Row(0, 35, True), 0, -1, id="mixed"),
        pytest.param(
            CUDAGraphMode.NONE, Row(7, 1), 0, DECODE_WITHOUT_DRAFTS, id="without_drafts"
        ),
        pytest.param(CUDAGraphMode.FULL, Row(7, 3, False, 2), 2, 2, id="padded"),
    ],
)
def test_filled_with_speculative_decoding(
    speculative_layers: Layers,
    mode: CUDAGraphMode,
    last: Row,
    padding: int,
    drafts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = speculative_layers
    model_state = model_state_of(layers)
    model_state.num_accepted_tokens_gpu[:4] = torch.tensor([3, 1, 2, 3])
    batch = make_batch([*VERIFY, last], layers.device, padding)
    builds = record_builds(mamba_builders(layers), monkeypatch)

    prepare_attn(layers, model_state, batch, mode)

    # In padding stand the values that mean nothing was speculated.
    expected = {
        "num_accepted_tokens": [3, 1, 2] + [1] * padding,
        "num_decode_draft_tokens_cpu": [2, 1, drafts] + [-1] * padding,
    }
    assert builds
    for build in builds:
        assert {name: build.kwargs[name].tolist() for name in NAMES} == expected


def test_prefill_rows_have_no_draft(
    speculative_layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = speculative_layers
    rows = [Row(40, 3, num_draft_tokens=2), Row(0, 35, True, num_draft_tokens=2)]
    builds = record_builds(mamba_builders(layers), monkeypatch)

    prepare_attn(layers, model_state_of(layers), make_batch(rows, layers.device))

    assert builds
    for build in builds:
        assert build.kwargs["num_decode_draft_tokens_cpu"].tolist() == [2, -1]


@pytest.fixture(scope="module")
def granite() -> TinyModel:
    return write_model("granite")


@pytest.fixture(scope="module")
def llm(granite: TinyModel) -> Iterator[LLM]:
    with hybrid_engine(granite) as llm:
        yield llm


def test_prefill_joins_running_decodes(
    llm: LLM, granite: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = record_batches(llm, monkeypatch)
    prompts = [list(range(1, 6)), list(range(5, 40)), list(range(50, 60))]
    assert_like_transformers(llm, granite, prompts, [3, 6, 3])
    assert [False, True] in batches


def test_preempted_request(llm: LLM, granite: TinyModel) -> None:
    before = num_preemptions(llm)
    prompts = [list(range(1, 61)), list(range(101, 161))]
    assert_like_transformers(llm, granite, prompts, [8, 8])
    assert num_preemptions(llm) > before


def test_state_update_is_that_of_mamba_ssm(monkeypatch: pytest.MonkeyPatch) -> None:
    if not current_platform.is_cuda():
        # mamba-ssm asks for its extension as it is imported; the reference is PyTorch.
        extension = ModuleType("selective_scan_cuda")
        monkeypatch.setitem(sys.modules, extension.__name__, extension)
    mamba_ssm = pytest.importorskip(
        "mamba_ssm.ops.triton.selective_state_update",
        reason="mamba-ssm is not installed: nothing to compare the kernel with",
        exc_type=ImportError,
    )
    device = torch.device(current_platform.device_type)
    generator = torch.Generator().manual_seed(SEED)
    print(f"seed {SEED}")

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    slots, batch, heads, head_dim, size = 6, 3, 4, 32, 16
    state = random(slots, heads, head_dim, size)
    x, dt = random(batch, heads, head_dim), random(batch, heads, 1)
    dt = dt.expand(-1, -1, head_dim)
    A = -random(heads, 1, 1).exp().expand(-1, head_dim, size)
    B, C = random(batch, 1, size), random(batch, 1, size)
    D, dt_bias = (random(heads, 1).expand(-1, head_dim) for _ in range(2))
    # Slot 0 is the null block; slots without a decode have to stay as they are.
    indices = torch.tensor([4, 1, 5], dtype=torch.int32, device=device)
    expected_state = state.clone()
    rows = state[indices.long()]
    expected = mamba_ssm.selective_state_update_ref(
        rows, x, dt, A, B, C, D=D, dt_bias=dt_bias, dt_softplus=True
    )
    expected_state[indices.long()] = rows

    out = torch.empty_like(x)
    selective_state_update(
        state,
        x,
        dt,
        A,
        B,
        C,
        D,
        dt_bias,
        dt_softplus=True,
        state_batch_indices=indices.unsqueeze(1),
        out=out,
    )

    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not current_platform.is_cuda(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("cudagraph_mode", ["FULL_DECODE_ONLY", "PIECEWISE"])
def test_prefill_joins_replayed_decodes(
    granite: TinyModel, cudagraph_mode: str
) -> None:
    prompts = [list(range(1, 6)), list(range(5, 40)), list(range(50, 60))]
    with hybrid_engine(granite, enforce_eager=True) as llm:
        eager = generate(llm, prompts, [3, 8, 5])
    config = {"cudagraph_mode": cudagraph_mode}
    with hybrid_engine(granite, enforce_eager=False, compilation_config=config) as llm:
        assert_same(generate(llm, prompts, [3, 8, 5]), eager)
