"""Who is hurt when a field of attention metadata is not what it should be, in one line each."""

from __future__ import annotations

BOUND = "seq_lens_cpu_upper_bound"
LONGEST = "max_seq_len"
# Tensors that are filled for speculative decoding only.
SPECULATIVE = ("num_accepted_tokens", "num_decode_draft_tokens_cpu")

_OF_DRAFTS = (
    "Mamba2 asserts them against its decode rows: a request that joins running ones kills the "
    "engine"
)
WHO = {
    BOUND: "Mamba, short conv, MLA and ROCm AITER builders assert it or copy the lengths from the "
    "device",
    LONGEST: "FlashInfer TRTLLM walks block-table entries past the sequences; others size work and "
    "memory by it",
    **dict.fromkeys(SPECULATIVE, _OF_DRAFTS),
    "dcp_local_seq_lens": "MLA and FlashInfer builders take it where context is spread (DCP)",
    "dcp_local_seq_lens_cpu_upper_bound": "sparse MLA sizes by it where context is spread (DCP)",
    "fast_prefill": "prefill of layers that share a KV cache is not cut to the logits",
    "for_cudagraph_capture": "builders take a capture for a batch, and set nothing up for it",
    "is_prefilling": "builders that ask for it assert it, or take prompts for decodes",
    "mm_req_doc_ranges": "PrefixLM models attend causally over images",
    "positions": "DeepSeek V4, MiniMax M3 and CPU encoder-only builders need it",
    "req_idx": "indexer and sparse MLA take chunks of one request for several (PCP)",
    "rswa_prefix_lens": "sliding windows that keep the prompt (R-SWA) lose it",
}
AT_CAPTURE = {
    BOUND: "FlexAttention asserts it at capture, MLA and GDN where rows count as prefills"
}


def who(field: str, capture: bool = False) -> str:
    """Who goes by a field; capture: where a CUDA graph is captured."""
    if capture and field in AT_CAPTURE:
        return AT_CAPTURE[field]
    return WHO.get(field, "the builders that read it go without")
