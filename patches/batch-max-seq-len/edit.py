"""max_seq_len is the longest sequence of the batch, not of the model.

vllm-project/vllm#43991
"""

from mrv2_fixes.edit import Vllm

LONGEST = "input_batch.seq_lens_cpu_upper_bound[:num_reqs].max().item()"


def edit(vllm: Vllm) -> None:
    hybrid = vllm.class_("model_states/mamba_hybrid.py", "MambaHybridModelState")
    hybrid.method("prepare_attn").keyword(
        "build_attn_metadata",
        "max_seq_len",
        was="self.max_model_len",
        now=f"(\n    self.max_model_len\n    if for_capture\n    else {LONGEST}\n)",
    )

    default = vllm.class_("model_states/default.py", "DefaultModelState")
    default.method("prepare_attn").unwrap(
        "int", around="seq_lens_cpu_upper_bound[:num_reqs].max().item()"
    )

    eagle = vllm.class_("spec_decode/eagle/speculator.py", "EagleSpeculator")
    eagle.expect_attribute("draft_max_seq_len", set_in=["__init__", "propose"])
    eagle.method("__init__", inherited=True).assign(
        "self.draft_max_seq_len",
        "self.max_model_len",
        after="self.max_model_len",
        comment="Renewed by each propose; the model's maximum until then.",
    )
    eagle.method("propose", inherited=True).assign(
        "self.draft_max_seq_len",
        f"min(\n    {LONGEST}\n    + self.num_speculative_steps,\n    self.max_model_len,\n)",
        after="max_query_len",
        ahead_of=["multi_step_decode", "_multi_step_decode"],
        # From 0.32.0 on the number of draft tokens can differ from step to step.
        also=[f"min({LONGEST} + num_speculative_tokens, self.max_model_len)"],
    )
    eagle.method(
        "_build_draft_attn_metadata", inherited=True, renamed="_build_attn_metadata"
    ).keyword(
        "build_attn_metadata",
        "max_seq_len",
        was="self.max_model_len",
        now="self.draft_max_seq_len",
        also=["min(self.draft_max_seq_len, self.max_model_len)"],
    )
