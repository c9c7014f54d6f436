"""Speculative tensors are filled for speculative decoding only.

vllm-project/vllm#47428
"""

from mrv2_fixes.edit import Vllm

METADATA = "MambaHybridAttnMetadata"
TENSORS = ["num_accepted_tokens", "num_decode_draft_tokens_cpu"]


def edit(vllm: Vllm) -> None:
    hybrid = vllm.class_("model_states/mamba_hybrid.py", "MambaHybridModelState")
    prepare_attn = hybrid.method("prepare_attn")
    for tensor in TENSORS:
        prepare_attn.expect_keyword(METADATA, tensor, tensor)
    prepare_attn.expect_handed_over(METADATA, "build_attn_metadata", "model_specific_attn_metadata")
    prepare_attn.condition(
        guarding=TENSORS,
        ahead_of=[METADATA],
        was="not for_capture",
        now="not for_capture and self.vllm_config.num_speculative_tokens > 0",
    )
