"""What a process runs, as it is: by the code in its memory, not by what was planned."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any

from mrv2_fixes import known, plan, program_version, series
from mrv2_fixes.errors import Mrv2Error, WrongCall
from mrv2_fixes.plan import Plan, State, Step
from mrv2_fixes.plugin import hook, start
from mrv2_fixes.targets import Target

NOT_YET = "not yet"
WAITING = "not imported yet"


class Mismatch(Mrv2Error):
    """The workers of one engine do not run the same."""


def report() -> dict[str, Any]:
    """What this process runs, in types that JSON has.

    plugin: "strict", "warn" or "off", or "not loaded" when vLLM has not called it in this process.
    program, vllm, release: versions, and the published release that the files are; None for none.
    pid: of the process; the one entry that differs between workers.
    modules: by name, `loaded`: "import hook" with a planned text, "file" with that of its file, or
    "not yet"; `sha256` of that text, None where the code in memory is another.
    patches: by slug, `state` in this process, in the words of `mrv2 status`; `how` it came in:
    "import hook", "apply", "wheel", "base", or empty when it did not; and `note`.
    """
    now = start.started
    hooked = now if now and now.target and now.plan else None
    target = hooked.target if hooked and hooked.target else start.vllm()
    made = hooked.plan if hooked and hooked.plan else _by_files(target)
    left_out = hooked.left_out if hooked else {}
    every = [step.patch for step in made.steps]
    every += [patch for patch in series.load().patches if patch.slug in left_out]
    files = start.planned(target, made) if hooked else target.files
    modules = {
        start.module(path): _module(path, files[path]) for path in start.touched(every, files)
    }
    patches = {step.patch.slug: _patch(step, target, modules, bool(hooked)) for step in made.steps}
    for slug, problem in left_out.items():
        patches[slug] = {"state": problem.state.value, "how": "", "note": problem.why}
    return {
        "program": program_version(),
        "plugin": now.settings.mode.value if now else "not loaded",
        "vllm": target.version,
        "release": made.release,
        "pid": os.getpid(),
        "patches": patches,
        "modules": modules,
    }


def _by_files(target: Target) -> Plan:
    """The plan of a process that the plugin does nothing in."""
    return plan.quick(
        series.load().core, target.files, version=target.version, record=target.record()
    )


def _module(path: str, text: bytes) -> dict[str, str | None]:
    """What is in memory of the module of a file that should be made of `text`."""
    right = start.in_memory(path, text)
    if right is None:
        return {"loaded": NOT_YET, "sha256": None}
    spec = getattr(sys.modules[start.module(path)], "__spec__", None)
    loader = getattr(spec, "loader", None)
    inner = getattr(loader, "loader", loader)
    hooked = isinstance(inner, hook.Loader) and inner.planned_text is not None
    return {
        "loaded": "import hook" if hooked else "file",
        "sha256": known.digest(text) if right else None,
    }


def _patch(
    step: Step, target: Target, modules: Mapping[str, Mapping[str, str | None]], hooked: bool
) -> dict[str, str]:
    """A patch as this process has it: in, only if the code in memory is that of its text."""
    names = [name for path in sorted(step.patch.paths) if (name := start.module(path)) in modules]
    there = [name for name in names if modules[name]["loaded"] != NOT_YET]
    others = [name for name in there if modules[name]["sha256"] is None]
    if others:
        note = f"{', '.join(others)}: the code in memory is not that of the text"
        return {"state": State.NEEDED.value, "how": "", "note": note}
    if step.state is not State.NEEDED:
        how = start.how(step, target)
        return {"state": step.state.value, "how": how, "note": step.detail}
    if not hooked:
        return {"state": State.NEEDED.value, "how": "", "note": ""}
    if not there:
        return {"state": State.NEEDED.value, "how": "", "note": WAITING}
    return {"state": State.APPLIED.value, "how": "import hook", "note": ""}


def compare(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of `reports` say, in the order of ranks; `pid` is that of rank 0.

    A module that one of them has not imported yet tells nothing: of pipeline parallel workers only
    the last has a speculator. Raises Mismatch when one says something else than that of rank 0,
    WrongCall when there is none.
    """
    if not reports:
        raise WrongCall("no reports to compare: is the engine up?")
    first = reports[0]
    different = [
        f"rank {rank} has {difference}"
        for rank, other in enumerate(reports)
        if (difference := _difference(first, other))
    ]
    if different:
        raise Mismatch(f"the workers do not run the same: {'; '.join(different)}")
    return dict(first)


def _difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The entries in which `other` differs, in one line."""
    waiting = _waiting(first) | _waiting(other)
    ours, theirs = (_flat(report, waiting) for report in (first, other))
    return ", ".join(
        f"{name} {theirs.get(name)!r} (rank 0: {ours.get(name)!r})"
        for name in sorted((ours.keys() | theirs.keys()) - {"pid"})
        if ours.get(name) != theirs.get(name)
    )


def _waiting(report: Mapping[str, Any]) -> set[str]:
    """The modules that are not imported, and the patches of which no module is."""
    modules = {name for name, module in report["modules"].items() if module["loaded"] == NOT_YET}
    return modules | {slug for slug, one in report["patches"].items() if one["note"] == WAITING}


def _flat(report: Mapping[str, Any], without: Set[str], prefix: str = "") -> dict[str, Any]:
    """A report with nested names joined, as `patches batch-max-seq-len state`.

    without: names of entries that are left out.
    """
    flat: dict[str, Any] = {}
    for name, value in report.items():
        if name in without:
            continue
        if isinstance(value, Mapping):
            flat |= _flat(value, without, f"{prefix}{name} ")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
