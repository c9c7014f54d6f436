"""Drop one refusal of the V2 model runner, on request, and remember that it was dropped.

0.21.0 to 0.22.1 refuse models with inner state at configuration. MRV2_ENGINE_LIFT=hybrid lets such
a model through, to exercise the code behind the refusal; no user of those releases gets there so.
"""

import os
from typing import Any

from .after_import import after_import

HYBRID = "hybrid/mamba models"

lifted: list[str] = []
"""The refusals that were really dropped in this process, each once."""


def _leave_out_the_hybrid_entry(vllm_config_module: Any) -> None:
    config = vllm_config_module.VllmConfig
    validate = getattr(config, "_validate_v2_model_runner", None)
    if validate is None:
        return

    def _validate_v2_model_runner(self: Any) -> None:
        try:
            validate(self)
        except ValueError as refused:
            reason, _, features = str(refused).partition(": ")
            others = [feature for feature in features.split(", ") if feature != HYBRID]
            if others == features.split(", "):
                raise
            if others:
                raise ValueError(f"{reason}: {', '.join(others)}") from refused
            if HYBRID not in lifted:
                lifted.append(HYBRID)

    config._validate_v2_model_runner = _validate_v2_model_runner


def install() -> None:
    """Drop the entry for hybrid models where MRV2_ENGINE_LIFT names it."""
    if os.environ.get("MRV2_ENGINE_LIFT") == "hybrid":
        after_import("vllm.config.vllm", _leave_out_the_hybrid_entry)
