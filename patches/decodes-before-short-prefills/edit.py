"""Requests that decode stand before those that are prefilling, however many tokens they have.

vllm-project/vllm#47381
"""

from mrv2_fixes.edit import Vllm

ORDER = """\
# With drafts a decode can have more tokens than a prefill: go by what it is.
is_prefill = (
    self.req_states.num_computed_prefill_tokens[idx_mapping_np]
    < self.req_states.prefill_len.np[idx_mapping_np]
)
order = np.argsort(is_prefill, kind="stable")
req_ids = [req_ids[i] for i in order]
num_scheduled_tokens = num_scheduled_tokens[order]
idx_mapping_np = idx_mapping_np[order]
"""


def edit(vllm: Vllm) -> None:
    sort = vllm.function("model_runner.py", "sort_batch_req_ids", optional=True)
    # From 0.28.0 on it looks at the drafts.
    if sort.has_parameters("draft_tokens"):
        sort.fixed_otherwise("order of a batch by its drafts")
        return
    runner = vllm.class_("model_runner.py", "GPUModelRunner")
    runner.method("prepare_inputs").statements(
        ORDER, after="idx_mapping_np", ahead_of=["async_copy_to_gpu"]
    )
