"""A draft model's passes are bounded by the sequences of the batch and what they draft."""

from mrv2_fixes.edit import Vllm

LONGEST = "input_batch.seq_lens_cpu_upper_bound[:num_reqs].max().item()"
# 0.31.0, and what it is called from 0.32.0 on.
SPECULATORS = [
    ("spec_decode/draft_model/speculator.py", "PlainDraftModelSpeculator"),
    ("spec_decode/standalone_ar/speculator.py", "StandaloneARSpeculator"),
]


def edit(vllm: Vllm) -> None:
    for file, name in SPECULATORS:
        draft_model = vllm.class_(file, name)
        draft_model.expect_attribute("draft_max_seq_len", set_in=["__init__", "propose"])
        draft_model.method("_prefill").keyword(
            "self._build_attn_metadata",
            "step",
            was="0",
            now="1",
            nested=True,
            comment="The correction token makes each request one token longer.",
        )
        draft_model.method("propose").assign(
            "self.draft_max_seq_len",
            f"min(\n    {LONGEST}\n    + self.num_speculative_steps,\n    self.max_model_len,\n)",
            after="num_reqs",
            ahead_of=["_prefill", "_multi_step_decode"],
        )
        draft_model.method("__init__", inherited=True).drop(
            "self.draft_max_seq_len", "self.max_model_len"
        )
