"""The bound on the sequence lengths reaches the attention metadata of draft steps.

vllm-project/vllm#44492
"""

from mrv2_fixes.edit import Vllm

BOUND = "seq_lens_cpu_upper_bound"
DRAFT = f"self.draft_{BOUND}"
BATCH = f"input_batch.{BOUND}[:num_reqs]"


def renewed(bound: str) -> str:
    """A row for each request of the batch, and 0 for the rest."""
    return f"torch.nn.functional.pad(\n    {bound},\n    (0, self.max_num_reqs - num_reqs),\n)"


def edit(vllm: Vllm) -> None:
    eagle = vllm.class_("spec_decode/eagle/speculator.py", "EagleSpeculator")
    build = eagle.method("_build_draft_attn_metadata", shared=True, renamed="_build_attn_metadata")
    # From 0.27.0 on bound and step are handed through to it.
    if build.has_parameters(BOUND, "step") and build.has_keyword(
        "build_attn_metadata", BOUND, f"draft_{BOUND}"
    ):
        build.fixed_otherwise(f"{BOUND} of build_attn_metadata")
        return
    vllm.function("attn_utils.py", "build_attn_metadata").expect_parameters(BOUND)
    eagle.expect_attribute(f"draft_{BOUND}", set_in=["__init__", "propose"])
    eagle.method("__init__", shared=True).assign(
        DRAFT,
        'torch.zeros(\n    self.max_num_reqs, dtype=torch.int32, device="cpu"\n)',
        after="self.max_model_len",
        comment="Renewed by each propose; nothing but padding until then.",
    )
    steps = f"{BATCH}\n        + self.num_speculative_steps"
    eagle.method("propose", shared=True).assign(
        DRAFT,
        renewed(f"torch.clamp(\n        {steps},\n        max=self.max_model_len,\n    )"),
        after="num_reqs",
        ahead_of=["generate_draft", "_multi_step_decode", "multi_step_decode"],
    )
    # Its sequence lengths are not limited to the model's maximum either (before 0.28.0).
    dflash = vllm.class_("spec_decode/dflash/speculator.py", "DFlashSpeculator")
    dflash.expect_attribute(f"draft_{BOUND}", set_in=["propose"], inherited=False)
    dflash.method("propose").assign(
        DRAFT,
        renewed(f"{BATCH} + self.num_query_per_req"),
        after="num_reqs",
        ahead_of=["_generate_draft", "_build_draft_attn_metadata"],
    )
    build.keyword("build_attn_metadata", BOUND, was=None, now=DRAFT, before="max_seq_len")
