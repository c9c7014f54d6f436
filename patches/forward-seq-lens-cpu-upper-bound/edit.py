"""The bound on the sequence lengths reaches the attention metadata builders.

vllm-project/vllm#46759
"""

from mrv2_fixes.edit import Vllm


def edit(vllm: Vllm) -> None:
    hybrid = vllm.class_("model_states/mamba_hybrid.py", "MambaHybridModelState")
    hybrid.method("prepare_attn").keyword(
        "build_attn_metadata",
        "seq_lens_cpu_upper_bound",
        was=None,
        now="input_batch.seq_lens_cpu_upper_bound",
        before="max_seq_len",
    )
