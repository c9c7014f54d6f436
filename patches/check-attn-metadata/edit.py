"""Attention metadata is checked where it is built, before a backend's builder gets it."""

from mrv2_fixes.edit import Vllm

CONTRACT = "vllm.v1.worker.gpu.attn_metadata_contract"


def edit(vllm: Vllm) -> None:
    build = vllm.function("attn_utils.py", "build_attn_metadata")
    build.expect_parameters(
        *("attn_groups", "kv_cache_config", "num_reqs", "num_tokens"),
        *("query_start_loc_gpu", "query_start_loc_cpu", "max_query_len"),
        *("seq_lens", "seq_lens_cpu_upper_bound", "max_seq_len"),
        *("block_tables", "slot_mappings"),
        *("model_specific_attn_metadata", "for_cudagraph_capture"),
    )
    build.decorate("checked", imported_from=CONTRACT)

    # Layers without a KV cache are in none of the groups of that call.
    encoder = vllm.class_("model_states/encoder_only.py", "EncoderOnlyModelState")
    encoder.method("_build_encoder_attn_metadata").statement(
        "check_metadata(common_attn_metadata, self.encoder_attn_groups, for_capture)",
        after="common_attn_metadata",
        taken_by=["build", "build_for_cudagraph_capture"],
        imported_from=CONTRACT,
    )
