"""The real vLLM engine of any release, without a GPU: environments, patched trees and test runs."""

from __future__ import annotations

from mrv2_fixes.engine.environments import (
    DISTRIBUTION,
    EngineError,
    Environment,
    environment,
    newest,
)
from mrv2_fixes.engine.run import Failure, Frame, Report, run_command, run_tests, stop, variables
from mrv2_fixes.engine.trees import patched_tree

__all__ = [
    "DISTRIBUTION",
    "EngineError",
    "Environment",
    "Failure",
    "Frame",
    "Report",
    "environment",
    "newest",
    "patched_tree",
    "run_command",
    "run_tests",
    "stop",
    "variables",
]
