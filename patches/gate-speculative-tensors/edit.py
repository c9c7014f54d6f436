"""Speculative tensors are filled for speculative decoding only.

vllm-project/vllm#47428
"""

from mrv2_fixes.edit import Vllm


def edit(vllm: Vllm) -> None:
    hybrid = vllm.class_("model_states/mamba_hybrid.py", "MambaHybridModelState")
    hybrid.method("prepare_attn").condition(
        guarding="num_accepted_tokens",
        was="not for_capture",
        now="not for_capture and self.vllm_config.num_speculative_tokens > 0",
    )
