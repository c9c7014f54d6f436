"""0.30.0 and 0.31.0 pack convolution weights that no CPU kernel takes packed; 0.32.0 asks first."""

from typing import Any

from .after_import import after_import


def _pack_what_the_kernels_take(utils: Any) -> None:
    import torch

    pack = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if pack is None:
        return

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.ndim == 3 and (weight.dtype != torch.bfloat16 or weight.size(2) != 4):
            return
        pack(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def install() -> None:
    """Leave the weights of other convolutions as they are."""
    after_import("vllm.model_executor.layers.utils", _pack_what_the_kernels_take)
