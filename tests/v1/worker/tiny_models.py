# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tiny models with random weights, and two ways to put Model Runner V2 to work.

`engine` boots the whole engine, with transformers as the reference. `build_layers`
stops after the model's layers, their attention groups and metadata builders, which
takes a second and is all that `ModelState.prepare_attn` needs.
"""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn as nn
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from vllm import LLM, SamplingParams
from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.engine.core import get_kv_cache_configs
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec, init_attn_backend
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.utils import AttentionGroup

SEED = 0
# A multiple of what every attention backend accepts.
BLOCK_SIZE = 32
VOCAB_SIZE = 256
# Makes a draft that knows only the last token right half the time.
DRAFTABLE = 200.0
# Both are float32; what differs is the order of operations, and TF32 on a GPU.
LOGPROB_TOLERANCE = 2e-2 if current_platform.is_cuda() else 1e-3

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
    "max_position_embeddings": 32768,
    # With the usual 0.02, a random model repeats one token whatever it reads.
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _llama() -> PreTrainedConfig:
    return transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"])


def _qwen2() -> PreTrainedConfig:
    return transformers.Qwen2Config(**SIZES, architectures=["Qwen2ForCausalLM"])


def _gemma3() -> PreTrainedConfig:
    """Attention to a window beside attention to everything."""
    return transformers.Gemma3TextConfig(
        **SIZES,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=BLOCK_SIZE,
        head_dim=64,
        # With the embedding as its head it repeats the token that it reads.
        tie_word_embeddings=False,
        query_pre_attn_scalar=64,
        architectures=["Gemma3ForCausalLM"],
    )


def _deepseek() -> PreTrainedConfig:
    """Latent attention (MLA), of the sizes that there are kernels for."""
    return transformers.DeepseekV2Config(
        **SIZES | {"num_key_value_heads": 2},
        first_k_dense_replace=2,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        architectures=["DeepseekV2ForCausalLM"],
    )


def _bert() -> PreTrainedConfig:
    """An encoder: attention in both directions, and no cache."""
    return transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=512,
        initializer_range=0.2,
        architectures=["BertModel"],
    )


def _lfm2() -> PreTrainedConfig:
    """Short convolutions beside attention."""
    return transformers.Lfm2Config(
        **SIZES,
        layer_types=["conv", "full_attention"],
        block_multiple_of=32,
        block_dim=128,
        conv_dim=128,
        conv_L_cache=3,
        architectures=["Lfm2ForCausalLM"],
    )


def _lfm2_vl() -> PreTrainedConfig:
    """LFM2 in a wrapper that is hybrid and says that it has no inner state."""
    return transformers.Lfm2VlConfig(
        text_config=_lfm2().to_dict(),
        vision_config={
            "model_type": "siglip2_vision_model",
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "patch_size": 4,
            "num_patches": 16,
        },
        image_token_id=VOCAB_SIZE - 1,
        projector_hidden_size=32,
        downsample_factor=2,
        architectures=["Lfm2VlForConditionalGeneration"],
    )


def _granite() -> PreTrainedConfig:
    """Mamba2 beside attention."""
    return transformers.GraniteMoeHybridConfig(
        **SIZES,
        layer_types=["mamba", "attention"],
        shared_intermediate_size=128,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_expand=1,
        mamba_d_conv=4,
        num_local_experts=0,
        position_embedding_type="rope",
        architectures=["GraniteMoeHybridForCausalLM"],
    )


def _jamba() -> PreTrainedConfig:
    """Mamba1 beside attention."""
    return transformers.JambaConfig(
        **SIZES,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=8,
        use_mamba_kernels=False,
        architectures=["JambaForCausalLM"],
    )


def _qwen3_next() -> PreTrainedConfig:
    """Gated delta nets beside attention."""
    return transformers.Qwen3NextConfig(
        # A small state, so that a block of the KV cache is small too.
        **SIZES | {"num_key_value_heads": 2},
        layer_types=["linear_attention", "full_attention"],
        head_dim=64,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        architectures=["Qwen3NextForCausalLM"],
    )


def _mamba2() -> PreTrainedConfig:
    """Mamba2 alone, and no attention."""
    sizes = {name: SIZES[name] for name in ("vocab_size", "hidden_size")}
    return transformers.Mamba2Config(
        **sizes,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=64,
        state_size=16,
        n_groups=1,
        initializer_range=SIZES["initializer_range"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        architectures=["Mamba2ForCausalLM"],
    )


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "gemma3": _gemma3,
    "deepseek": _deepseek,
    "bert": _bert,
    "lfm2": _lfm2,
    "lfm2_vl": _lfm2_vl,
    "granite": _granite,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "qwen3_next": _qwen3_next,
}


@functools.cache
def write_config(kind: str) -> str:
    """Write the `config.json` of a model, without weights; return its folder."""
    folder = tempfile.mkdtemp(prefix=f"tiny-{kind}-config-")
    CONFIGS[kind]().save_pretrained(folder)
    return folder


@dataclasses.dataclass(frozen=True)
class Completion:
    token_ids: list[int]
    # Log-probability of each token, under the model's whole distribution.
    logprobs: list[float]


@dataclasses.dataclass(frozen=True)
class TinyModel:
    folder: str
    reference: PreTrainedModel

    @property
    def is_multimodal(self) -> bool:
        return "vision_config" in self.reference.config

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> Completion:
        """Transformers' greedy completion, with no cache and so no state to lose."""
        token_ids = list(prompt)
        logprobs = []
        with torch.inference_mode():
            for _ in range(max_tokens):
                logits = self.reference(
                    torch.tensor([token_ids]), use_cache=False
                ).logits[0, -1]
                best = logits.argmax()
                token_ids.append(int(best))
                logprobs.append(float(logits.log_softmax(-1)[best]))
        return Completion(token_ids[len(prompt) :], logprobs)


def _save_tokenizer(folder: str) -> None:
    """Pooling asks for a tokenizer, though prompts are token ids."""
    from tokenizers import Tokenizer, models

    words = models.WordLevel({str(i): i for i in range(VOCAB_SIZE)}, unk_token="0")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), pad_token="0"
    ).save_pretrained(folder)


@functools.cache
def write_model(kind: str, embedding_scale: float = 1.0) -> TinyModel:
    """Write a model with random weights, the same ones each time.

    The larger its embeddings, the more the next token hangs on the last one alone.
    """
    print(f"tiny {kind}: seed {SEED}")
    torch.manual_seed(SEED)
    folder = tempfile.mkdtemp(prefix=f"tiny-{kind}-")
    with torch.device("cpu"):
        config = CONFIGS[kind]()
        auto = transformers.AutoModelForCausalLM
        if "vision_config" in config:
            auto = transformers.AutoModelForImageTextToText
        elif kind == "bert":
            auto = transformers.AutoModel
        reference = auto.from_config(config)
    reference = reference.float().eval()
    reference.get_input_embeddings().weight.data *= embedding_scale
    reference.save_pretrained(folder)
    if kind == "bert":
        _save_tokenizer(folder)
    return TinyModel(folder, reference)


def _draft_layer(
    weights: dict[str, torch.Tensor], prefix: str, renamed: str
) -> dict[str, torch.Tensor]:
    """A copy of a layer for a draft, which adds little to what it is given."""
    copied = {}
    for name, weight in weights.items():
        if name.startswith(prefix):
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            name = renamed + name.removeprefix(prefix)
            copied[name] = weight / 16 if adds else weight.clone()
    return copied


def _join(size: int) -> torch.Tensor:
    """Weights that take a token's embedding, and a little of the target's state."""
    return torch.cat([torch.eye(size), torch.eye(size) / 16], dim=1)


@functools.cache
def write_eagle_draft(target: str) -> str:
    """Write a one-layer EAGLE draft for the tiny Llama in the folder `target`.

    It guesses from the last token, by the target's own embeddings.
    """
    from safetensors.torch import load_file, save_file

    folder = Path(tempfile.mkdtemp(prefix="tiny-eagle-"))
    config = json.loads((Path(target) / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    config |= {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(Path(target) / "model.safetensors")
    size = config["hidden_size"]
    layer = _draft_layer(weights, f"model.layers.{last}.", "layers.0.")
    # EAGLE's first layer has no norm of its own input.
    del layer["layers.0.input_layernorm.weight"]
    layer["fc.weight"] = _join(size)
    save_file(layer, folder / "model.safetensors")
    return str(folder)


@functools.cache
def write_dflash_draft() -> str:
    """Write a one-layer DFlash draft, which drafts all its tokens in one pass."""
    from safetensors.torch import save_file

    folder = tempfile.mkdtemp(prefix="tiny-dflash-")
    torch.manual_seed(SEED)
    config = transformers.Qwen3Config(
        **SIZES | {"num_hidden_layers": 1},
        head_dim=64,
        architectures=["DFlashDraftModel"],
    )
    # The target's states that it reads are those of its two layers.
    config.dflash_config = {"target_layer_ids": [0, 1], "mask_token_id": VOCAB_SIZE - 1}
    config.save_pretrained(folder)
    weights = transformers.Qwen3Model(config).state_dict()
    del weights["embed_tokens.weight"]
    size = config.hidden_size
    weights["fc.weight"] = torch.cat([torch.eye(size), torch.eye(size)], dim=1)
    weights["hidden_norm.weight"] = torch.ones(size)
    save_file(weights, Path(folder) / "model.safetensors")
    return folder


@functools.cache
def write_mtp_model(kind: str, embedding_scale: float = 1.0) -> TinyModel:
    """Write a model with a layer that predicts one more token (MTP).

    It is a copy of the model's last layer. Qwen2 with such a layer is MiMo.
    """
    from safetensors.torch import load_file, save_file

    model = write_model(kind, embedding_scale)
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{kind}-mtp-"))
    config = json.loads((Path(model.folder) / "config.json").read_text())
    weights = load_file(Path(model.folder) / "model.safetensors")
    size, last = config["hidden_size"], config["num_hidden_layers"] - 1
    ones, zeros = torch.ones(size), torch.zeros(size)
    if kind == "qwen2":
        config["architectures"] = ["MiMoForCausalLM"]
        layer = "model.mtp_layers.0."
        # The target's state comes first here.
        joined = {f"{layer}input_proj.weight": _join(size).roll(size, dims=1)}
        norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
        joined |= {f"{layer}{norm}.weight": ones.clone() for norm in norms}
    else:
        layer = "mtp.layers.0."
        joined = {"mtp.fc.weight": _join(size)}
        # These norms add 1 to their weights.
        norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        joined |= {f"mtp.{norm}.weight": zeros.clone() for norm in norms}
    copied = _draft_layer(weights, f"model.layers.{last}.", layer)
    config["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        weights | joined | copied,
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return TinyModel(str(folder), model.reference)


def model_runner(llm: LLM) -> GPUModelRunner:
    """The V2 runner inside an engine that runs in this process."""
    worker = llm.llm_engine.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


@contextmanager
def engine(folder: str, **kwargs: Any) -> Iterator[LLM]:
    """An engine with Model Runner V2 in this process; skips where V2 refuses it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        defaults: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "enforce_eager": not current_platform.is_cuda(),
            "max_model_len": 256,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 256,
            "num_gpu_blocks_override": 64,
            "gpu_memory_utilization": 0.3,
            "dtype": "float32",
            "enable_prefix_caching": False,
            "block_size": BLOCK_SIZE,
            "seed": SEED,
            # The operations written in PyTorch are the ones to compare with.
            "compilation_config": {"custom_ops": ["none"]},
        }
        try:
            llm = LLM(model=folder, **defaults | kwargs)
        except ValueError as error:
            # Of the variable in some releases, of the runner in others.
            for line in str(error).splitlines():
                if "V2" in line and "does not yet support" in line:
                    pytest.skip(line.partition(" [type=")[0].strip())
            raise
        try:
            # An engine that fell back to the V1 runner would prove nothing.
            assert isinstance(model_runner(llm), GPUModelRunner)
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            cleanup_dist_env_and_memory()


# Of 32 tokens each, one of them never used: enough for one sequence of 128 tokens
# and the state of its Mamba layers, and too few for two of more than 64.
NUM_GPU_BLOCKS = 8


def hybrid_engine(model: TinyModel, **kwargs: Any) -> AbstractContextManager[LLM]:
    """An engine that chunks prompts above 48 tokens and has few KV cache blocks."""
    defaults: dict[str, Any] = {
        "max_model_len": 128,
        "max_num_batched_tokens": 48,
        "num_gpu_blocks_override": NUM_GPU_BLOCKS,
        "disable_log_stats": False,
    }
    if model.is_multimodal:
        defaults["limit_mm_per_prompt"] = {"image": 0}
    return engine(model.folder, **defaults | kwargs)


def generate(
    llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int]
) -> list[Completion]:
    """Greedy completions of all prompts at once, each of its own length."""
    params = [
        SamplingParams(
            max_tokens=n, temperature=0, logprobs=0, detokenize=False, ignore_eos=True
        )
        for n in max_tokens
    ]
    try:
        outputs = llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            params,
            use_tqdm=False,
        )
    except Exception as error:
        # The engine still holds the requests and would never finish another one, so
        # whoever uses it next meets this error too.
        llm.generate = Mock(side_effect=error)  # type: ignore[method-assign]
        raise
    completions = []
    for output in outputs:
        (completion,) = output.outputs
        token_ids = list(completion.token_ids)
        completions.append(
            Completion(
                token_ids,
                [
                    step[token_id].logprob
                    for step, token_id in zip(
                        completion.logprobs, token_ids, strict=True
                    )
                ],
            )
        )
    return completions


def assert_same(actual: Sequence[Completion], expected: Sequence[Completion]) -> None:
    """Assert equal tokens, and log-probabilities that are equal but for rounding."""
    assert [c.token_ids for c in actual] == [c.token_ids for c in expected]
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=LOGPROB_TOLERANCE)


def assert_like_transformers(
    llm: LLM,
    model: TinyModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
) -> None:
    expected = [
        model.greedy(*request) for request in zip(prompts, max_tokens, strict=True)
    ]
    assert_same(generate(llm, prompts, max_tokens), expected)


def record_batches(llm: LLM, patch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Collect, for each forward pass to come, which of its requests are prefills."""
    batches: list[list[bool]] = []
    model_state = model_runner(llm).model_state
    prepare_attn = model_state.prepare_attn

    def record(input_batch: InputBatch, *args: Any, **kwargs: Any) -> Any:
        batches.append(input_batch.is_prefilling_np.tolist())
        return prepare_attn(input_batch, *args, **kwargs)

    patch.setattr(model_state, "prepare_attn", record)
    return batches


def num_preemptions(llm: LLM) -> int:
    """How many requests the scheduler has preempted; the engine must keep stats."""
    return sum(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions")


@dataclasses.dataclass(frozen=True)
class Layers:
    """A model's layers with their metadata builders, not connected to an engine."""

    vllm_config: VllmConfig
    model: nn.Module
    attn_groups: list[list[AttentionGroup]]
    kv_cache_config: KVCacheConfig
    device: torch.device

    @property
    def builders(self) -> list[Any]:
        return [
            g.get_metadata_builder(0) for groups in self.attn_groups for g in groups
        ]


@contextmanager
def build_layers(kind: str, **kwargs: Any) -> Iterator[Layers]:
    """Make a model's layers, attention groups and builders, as the runner does."""
    with pytest.MonkeyPatch.context() as patch:
        # Releases that refuse hybrid models on V2 do so here; the code below is V2's
        # all the same.
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        defaults: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "enable_prefix_caching": False,
            "block_size": BLOCK_SIZE,
            "dtype": "float32",
        }
        vllm_config = EngineArgs(
            model=write_config(kind), **defaults | kwargs
        ).create_engine_config()
    device = torch.device(current_platform.device_type)
    with set_current_vllm_config(vllm_config), tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{folder}/rendezvous",
            backend=current_platform.dist_backend,
        )
        ensure_model_parallel_initialized(1, 1)
        try:
            with device, set_default_torch_dtype(vllm_config.model_config.dtype):
                model = initialize_model(vllm_config)
            # Hybrid models: makes an attention page as large as a Mamba page.
            current_platform.update_block_size_for_backend(vllm_config)
            if hasattr(vllm_config.cache_config, "kv_cache_layout"):
                # Otherwise the engine core would choose it; there is no cache here.
                vllm_config.cache_config.kv_cache_layout = "HND"
            (kv_cache_config,) = get_kv_cache_configs(
                vllm_config, [get_kv_cache_spec(vllm_config)], [1 << 26]
            )
            # Where the groups stand among the results depends on the release.
            (attn_groups,) = (
                result
                for result in init_attn_backend(kv_cache_config, vllm_config, device)
                if isinstance(result, list) and isinstance(result[0], list)
            )
            yield Layers(vllm_config, model, attn_groups, kv_cache_config, device)
        finally:
            cleanup_dist_env_and_memory()


@dataclasses.dataclass(frozen=True)
class Build:
    """What a metadata builder was called with."""

    builder: Any
    common: CommonAttentionMetadata
    # Those at the time; the tensor itself is changed in place later.
    seq_lens: list[int]
    kwargs: dict[str, Any]

    @property
    def longest(self) -> int:
        return max(self.seq_lens)


def record_builds(builders: Sequence[Any], patch: pytest.MonkeyPatch) -> list[Build]:
    """Collect what these builders are called with from now on; they build as ever."""
    builds: list[Build] = []

    def spy(builder: Any) -> None:
        build = builder.build

        def record(
            common_prefix_len: int,
            common_attn_metadata: CommonAttentionMetadata,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            seq_lens = common_attn_metadata.seq_lens.tolist()
            builds.append(Build(builder, common_attn_metadata, seq_lens, kwargs))
            return build(common_prefix_len, common_attn_metadata, *args, **kwargs)

        patch.setattr(builder, "build", record)

    for builder in builders:
        spy(builder)
    return builds


@dataclasses.dataclass(frozen=True)
class Row:
    """One request of a batch: tokens computed before this step, and in it."""

    computed: int
    scheduled: int
    is_prefilling: bool = False
    num_draft_tokens: int = 0


def make_batch(rows: Sequence[Row], device: torch.device, padding: int = 0) -> Any:
    """An `InputBatch` of these rows, decodes first, as the runner prepares it.

    `padding` requests without tokens follow, as they do for a FULL CUDA graph.
    """
    num_reqs, num_reqs_padded = len(rows), len(rows) + padding
    scheduled = np.array([row.scheduled for row in rows], dtype=np.int32)
    num_tokens = int(scheduled.sum())
    seq_lens = np.zeros(num_reqs_padded, dtype=np.int32)
    seq_lens[:num_reqs] = [row.computed + row.scheduled for row in rows]
    query_start_loc = np.full(num_reqs_padded + 1, num_tokens, dtype=np.int32)
    query_start_loc[0] = 0
    query_start_loc[1 : num_reqs + 1] = scheduled.cumsum()
    drafts = np.array([row.num_draft_tokens for row in rows], dtype=np.int32)
    buffers = InputBuffers(num_reqs_padded, num_tokens + padding, device)
    return dataclasses.replace(
        InputBatch.make_dummy(num_reqs, num_tokens, buffers),
        num_reqs_after_padding=num_reqs_padded,
        num_tokens_after_padding=num_tokens + padding,
        num_scheduled_tokens=scheduled,
        num_draft_tokens=int(drafts.sum()),
        num_draft_tokens_per_req=drafts if drafts.any() else None,
        query_start_loc=torch.from_numpy(query_start_loc).to(device),
        query_start_loc_np=query_start_loc,
        seq_lens=torch.from_numpy(seq_lens).to(device),
        seq_lens_cpu_upper_bound=torch.from_numpy(seq_lens.copy()),
        is_prefilling_np=np.array([row.is_prefilling for row in rows]),
        input_ids=torch.zeros(num_tokens + padding, dtype=torch.int32, device=device),
        positions=torch.zeros(num_tokens + padding, dtype=torch.int64, device=device),
    )


def prepare_attn(
    layers: Layers,
    model_state: ModelState,
    batch: InputBatch,
    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.NONE,
    for_capture: bool = False,
) -> dict[str, Any]:
    """Call `prepare_attn` with block tables and slots that point at block 0."""
    num_groups = len(layers.attn_groups)
    num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
    if cudagraph_mode == CUDAGraphMode.FULL:
        num_reqs = batch.num_reqs_after_padding
        num_tokens = batch.num_tokens_after_padding
    max_num_blocks = layers.vllm_config.model_config.max_model_len // BLOCK_SIZE
    zeros = functools.partial(torch.zeros, device=layers.device)
    return model_state.prepare_attn(
        batch,
        cudagraph_mode,
        (zeros(num_reqs, max_num_blocks, dtype=torch.int32),) * num_groups,
        zeros(num_groups, num_tokens, dtype=torch.int64),
        layers.attn_groups,
        layers.kv_cache_config,
        for_capture=for_capture,
    )


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One call of `propose`, and what the draft's attention builders got in it."""

    # `seq_lens_cpu_upper_bound` of the requests in the target's batch.
    bound: list[int]
    draft_max_seq_len: int | None
    builds: list[Build]


def record_proposals(llm: LLM, patch: pytest.MonkeyPatch) -> list[Proposal]:
    """Collect what a speculator builds for its draft from now on."""
    speculator = model_runner(llm).speculator
    groups = [group for groups in speculator.attn_groups for group in groups]
    # Where the draft's first pass has the target's metadata, later ones are built here.
    builds = record_builds([g.get_metadata_builder(0) for g in groups], patch)
    propose = speculator.propose
    proposals = []

    def record(input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        builds.clear()
        draft_tokens = propose(input_batch, *args, **kwargs)
        bound = input_batch.seq_lens_cpu_upper_bound[: input_batch.num_reqs]
        draft_max_seq_len = getattr(speculator, "draft_max_seq_len", None)
        proposals.append(Proposal(bound.tolist(), draft_max_seq_len, builds.copy()))
        return draft_tokens

    patch.setattr(speculator, "propose", record)
    return proposals


def deviation(model: TinyModel, prompt: Sequence[int], completion: Completion) -> float:
    """How far log-probabilities are from transformers' for the same tokens, at most."""
    token_ids = completion.token_ids
    with torch.inference_mode():
        logits = model.reference(
            torch.tensor([[*prompt, *token_ids]]), use_cache=False
        ).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(token_ids).unsqueeze(1))
    differences = logprobs.squeeze(1) - torch.tensor(completion.logprobs)
    return float(differences.abs().max())


@functools.cache
def write_shallow_draft(target: str) -> str:
    """Write the model in the folder `target` without its last layer.

    As a draft of its own it is right now and then.
    """
    from safetensors.torch import load_file, save_file

    folder = Path(tempfile.mkdtemp(prefix="tiny-shallow-"))
    config = json.loads((Path(target) / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    (folder / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": last})
    )
    weights = load_file(Path(target) / "model.safetensors")
    kept = {
        name: weight
        for name, weight in weights.items()
        if not name.startswith(f"model.layers.{last}.")
    }
    save_file(kept, folder / "model.safetensors")
    return str(folder)


@functools.cache
def write_recalling_draft(target: str, token_ids: tuple[int, ...]) -> str:
    """Write an EAGLE draft that proposes the next of these tokens behind each of them.

    They are distinct, except the last, and at most as many as the hidden size.
    """
    from safetensors.torch import load_file, save_file

    folder = Path(tempfile.mkdtemp(prefix="tiny-recalling-"))
    config = transformers.LlamaConfig(
        **SIZES | {"num_hidden_layers": 1}, architectures=["LlamaForCausalLM"]
    )
    config.save_pretrained(folder)
    weights = load_file(Path(target) / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"][list(token_ids[:-1])]
    outputs = weights["lm_head.weight"][list(token_ids[1:])]
    # Of the embedding and the target's hidden state, side by side, the first alone.
    recall = torch.linalg.lstsq(embeddings, outputs).solution.T
    with torch.device("cpu"):
        layer = transformers.LlamaModel(config).float().layers[0].state_dict()
    # The layer adds nothing, so that the logits are those of what it gets.
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        layer[name].zero_()
    draft = {f"layers.0.{name}": weight for name, weight in layer.items()}
    # EAGLE's first layer has no norm of its own input.
    del draft["layers.0.input_layernorm.weight"]
    draft["fc.weight"] = torch.cat([recall, torch.zeros_like(recall)], dim=1)
    save_file(
        {n: w.contiguous() for n, w in draft.items()}, folder / "model.safetensors"
    )
    return str(folder)


def _qwen3_5() -> PreTrainedConfig:
    """Gated delta nets in a wrapper that is hybrid and says it has no inner state."""
    text_config = transformers.Qwen3_5TextConfig(
        **SIZES,
        layer_types=["linear_attention", "full_attention"],
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    )
    return transformers.Qwen3_5Config(
        text_config=text_config.to_dict(),
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 1,
            "patch_size": 4,
            "out_hidden_size": 128,
            "num_position_embeddings": 16,
        },
        image_token_id=VOCAB_SIZE - 1,
        video_token_id=VOCAB_SIZE - 2,
        vision_start_token_id=VOCAB_SIZE - 3,
        vision_end_token_id=VOCAB_SIZE - 4,
        architectures=["Qwen3_5ForConditionalGeneration"],
    )


CONFIGS["qwen3_5"] = _qwen3_5


def _qwen3_next_wide() -> PreTrainedConfig:
    """Heads of a size that the CPU kernels of every release know.

    And each token takes both experts: there is no choice that rounding could change.
    """
    config = _qwen3_next()
    config.linear_key_head_dim = config.linear_value_head_dim = 128
    config.num_experts_per_tok = config.num_experts
    return config


CONFIGS["qwen3_next_wide"] = _qwen3_next_wide
