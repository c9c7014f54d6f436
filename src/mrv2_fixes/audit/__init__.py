"""Breaches of the contract of attention metadata in the code of a vLLM, found without running it.

Each module goes by those before it:

source: which files matter, and what is defined where.
calls: who calls what, and a function as it runs.
flow: what holds where in a function.
trace: where a value comes from.
hurt: the fields of metadata, and who goes by each.
guards: what the conditions on the way of a value imply.
constructions: what makes metadata.
finding: what a breach is told as.
rules, dropped: what is a breach.
acceptance: which findings somebody has accepted.
report: how an audit is told.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrv2_fixes.audit import rules
from mrv2_fixes.audit.constructions import METADATA, constructions
from mrv2_fixes.audit.finding import Finding
from mrv2_fixes.audit.source import RUNNER, Source
from mrv2_fixes.audit.trace import Tracer
from mrv2_fixes.errors import TargetUnusable


def audit(files: Mapping[str, bytes]) -> list[Finding]:
    """The findings in a vLLM, by file and line, the surest first.

    files: path below the root (``vllm/…``) to the file's bytes.
    Raises TargetUnusable when a file that matters does not parse, or is nested too deep to be
    followed, or no metadata is made for V2.
    """
    try:
        return _audit(files)
    except RecursionError as error:
        raise TargetUnusable(f"{RUNNER}: nested too deep to be followed: mend it") from error


def _audit(files: Mapping[str, bytes]) -> list[Finding]:
    tracer = Tracer(Source(files))
    made = list(constructions(tracer))
    if not made:
        raise TargetUnusable(f"{RUNNER}: makes no {METADATA}: audit a vLLM from 0.12.0 on")
    found: dict[str, Finding] = {}
    for rule in rules.RULES:
        for finding in rule(tracer, made):
            found.setdefault(finding.key, finding)
    return sorted(found.values(), key=_order)


def _order(finding: Finding) -> tuple[str, int, int, str, str]:
    return finding.file, finding.line, finding.sure.rank, finding.kind.value, finding.field
