"""Breaches of the contract of attention metadata in the code of a vLLM, found without running it.

source: which files matter, and what is defined where. calls: who calls what. flow: what holds where
in a function. trace: where a value comes from. constructions: what makes metadata. rules, dropped:
what is a breach.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrv2_fixes.audit import rules
from mrv2_fixes.audit.constructions import METADATA, constructions
from mrv2_fixes.audit.finding import Finding, Sure
from mrv2_fixes.audit.source import RUNNER, Source
from mrv2_fixes.audit.trace import Tracer
from mrv2_fixes.errors import TargetUnusable


def audit(files: Mapping[str, bytes]) -> list[Finding]:
    """The findings in a vLLM, by file and line, the surest first.

    files: path below the root (``vllm/…``) to the file's bytes.
    Raises TargetUnusable when a file that matters does not parse, or no metadata is made for V2.
    """
    tracer = Tracer(Source(files))
    if not any(constructions(tracer)):
        raise TargetUnusable(f"{RUNNER}: makes no {METADATA}: audit a vLLM from 0.12.0 on")
    found: dict[str, Finding] = {}
    for rule in rules.RULES:
        for finding in rule(tracer):
            found.setdefault(finding.key, finding)
    return sorted(found.values(), key=_order)


def _order(finding: Finding) -> tuple[str, int, int, str, str]:
    sure = list(Sure).index(finding.sure)
    return finding.file, finding.line, sure, finding.kind.value, finding.field
