"""vLLM looks at a model's class in a process of its own, so as not to start CUDA; here is no CUDA.

That process imports vLLM anew, which takes longer than all else that a tiny model needs.
"""

from typing import Any

from .after_import import after_import


def _in_this_process(registry: Any) -> None:
    registry._run_in_subprocess = lambda inspect: inspect()


def install() -> None:
    """Look at models in the process that asks."""
    after_import("vllm.model_executor.models.registry", _in_this_process)
