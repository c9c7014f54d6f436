"""vLLM's compiled CPU rotary kernel is wrong for the 3-D query of LFM2, its native form right."""

from typing import Any

from .after_import import after_import


def _use_the_native_form(base: Any) -> None:
    base.RotaryEmbedding.forward_cpu = base.RotaryEmbedding.forward_native


def install() -> None:
    """Use the native form of the rotary embedding, whatever `custom_ops` says."""
    after_import("vllm.model_executor.layers.rotary_embedding.base", _use_the_native_form)
