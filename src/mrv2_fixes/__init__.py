"""Fixes for vLLM's Model Runner V2 as a patch series; see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What is imported here is imported by everything, a serving process included: nothing but this.

DISTRIBUTION = "vllm-mrv2-fixes"


def program_version() -> str:
    """Of this program, by the metadata of its distribution."""
    from importlib import metadata

    return metadata.version(DISTRIBUTION)


def report(worker: object = None) -> dict[str, Any]:
    """What this process runs: per patch its state, how it came in, and the modules' hashes.

    worker: unused; it lets ``LLM.collective_rpc(mrv2_fixes.report)`` answer for every worker.
    The form is described in `mrv2_fixes.plugin.running.report`. Raises TargetUnusable when there is
    no vLLM in this Python, or its files cannot be read.
    """
    from mrv2_fixes.plugin import running

    return running.report()


def compare(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the workers of one engine run, by the reports of all of them, in the order of ranks.

    Raises `mrv2_fixes.plugin.running.Mismatch`, which names the ranks that differ from rank 0, and
    WrongCall when there are no reports.
    """
    from mrv2_fixes.plugin import running

    return running.compare(reports)
