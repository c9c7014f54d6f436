"""The environment variables that the engine rests on; what the caller has set stays."""

import os

DEFAULTS = {
    "TRITON_INTERPRET": "1",  # Triton kernels run in Triton's own interpreter, on CPU tensors
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engine and worker in this process: errors surface here
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def install() -> None:
    """Set each variable that is not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
