"""A request begins with one accepted token, whoever had its slot.

vllm-project/vllm#48132
"""

from mrv2_fixes.edit import Vllm


def edit(vllm: Vllm) -> None:
    hybrid = vllm.class_("model_states/mamba_hybrid.py", "MambaHybridModelState")
    add_request = hybrid.override(
        "add_request",
        {"req_index": "int", "new_req_data": "NewRequestData"},
        ahead_of="prepare_attn",
        imports={"NewRequestData": "vllm.v1.core.sched.output"},
    )
    add_request.behind_super(
        "self.num_accepted_tokens_gpu[req_index].fill_(1)",
        also=["self.num_accepted_tokens_gpu[req_index] = 1"],
        comment="The slot has the count of the request before.",
    )
