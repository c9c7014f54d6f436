"""The CPU packs weights for its kernels; what other code reads has to stay as it is.

DFlash takes the weights of its linear layers itself. And 0.30.0 and 0.31.0 pack the weights of
convolutions that no kernel takes packed; 0.32.0 asks first.
"""

from typing import Any

from .after_import import after_import


def _keep_what_others_read(utils: Any) -> None:
    import torch

    pack = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if pack is None:
        return

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.ndim == 3 and (weight.dtype != torch.bfloat16 or weight.size(2) != 4):
            return
        pack(layer, remove_weight=False)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def install() -> None:
    """Pack what the kernels take, and keep the weights beside it."""
    after_import("vllm.model_executor.layers.utils", _keep_what_others_read)
