"""A request that begins with one token begins without a recurrent state.

vllm-project/vllm#51565
"""

from mrv2_fixes.edit import Vllm


def edit(vllm: Vllm) -> None:
    gdn = vllm.class_("vllm/v1/attention/backends/gdn_attn.py", "GDNAttentionMetadataBuilder")
    build = gdn.method("build")
    # From 0.31.0 on it makes a prefill of such a row.
    if build.has_keyword("split_decodes_and_prefills", "treat_short_extends_as_decodes", "False"):
        build.fixed_otherwise("first chunks of one token as prefills")
        return
    hybrid = vllm.class_("model_states/mamba_hybrid.py", "MambaHybridModelState")
    hybrid.method("prepare_attn").statement(
        "clear_old_states(input_batch, block_tables, kv_cache_config, self.vllm_config)",
        after="is_prefilling",
        taken_by=["MambaHybridAttnMetadata"],
        imported_from="vllm.v1.worker.gpu.recycled_mamba_state",
    )
