"""In a model with recurrent layers no first token is padded with placeholder drafts."""

from mrv2_fixes.edit import Vllm


def edit(vllm: Vllm) -> None:
    scheduler = vllm.class_("vllm/v1/core/sched/scheduler.py", "Scheduler")
    scheduler.method("schedule").term(
        "(num_computed_tokens > 0 or not self.has_mamba_layers)",
        behind="num_new_tokens == 1",
        assigning="pad_spec_decode",
        # Each asks for as much or more.
        also=[
            "not self.has_mamba_layers or num_computed_tokens > 0",
            "not self.has_mamba_layers",
            "num_computed_tokens > 0",
        ],
    )
