"""What happens in a process when vLLM loads the plugin: plan, refuse or install the hook, say so.

Nothing is written, and of vLLM only files are read.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from packaging.version import Version

from mrv2_fixes import known, plan, program_version, series
from mrv2_fixes.errors import DRIFTED, Mrv2Error
from mrv2_fixes.plan import Plan, State
from mrv2_fixes.plugin import hook, memory, settings
from mrv2_fixes.plugin.settings import Mode, Settings
from mrv2_fixes.series import Patch
from mrv2_fixes.targets import Target, folder, installed
from mrv2_fixes.targets.overlaid import Overlaid

# Below vLLM's own logger, so that the line comes out where vLLM's do.
logger = logging.getLogger("vllm.mrv2_fixes")


class Refused(Mrv2Error):
    """A selected fix is neither in nor unnecessary, and cannot be brought in."""

    exit_status = DRIFTED


class Problem(NamedTuple):
    """Why a patch is neither in nor unnecessary nor can be brought in by the hook."""

    state: State
    why: str


@dataclass(frozen=True)
class Started:
    """What the plugin did in this process.

    target, plan: the vLLM, and what the patches in force make of it; None when off.
    left_out: by slug, the patches that are not in force, under `warn`.
    """

    settings: Settings
    target: Target | None = None
    plan: Plan | None = None
    left_out: Mapping[str, Problem] = field(default_factory=dict)


started: Started | None = None
_said = 0
"""The process that has said what it runs."""
_lock = threading.RLock()


def start() -> None:
    """Bring the selected fixes into this process, once however often it is called.

    Raises Refused when one cannot be brought in, unless under `warn`; WrongCall for a wrong
    `MRV2_FIXES`, TargetUnusable when an `mrv2 apply` was interrupted there or a file cannot be
    read, also under `warn`.
    """
    global started
    with _lock:
        if started is None:
            chosen = settings.read(os.environ)
            started = Started(chosen) if chosen.mode is Mode.OFF else _start(chosen)
    say()


def say() -> None:
    """Log what this process runs, once; a forked one has it from the process that it came from."""
    global _said
    if started is None or _said == os.getpid():
        return
    _said = os.getpid()
    for slug, problem in started.left_out.items():
        what = "not vouched for" if problem.state is State.TAMPERED else "NOT in this process"
        logger.warning("mrv2-fixes: %s is %s: %s", slug, what, problem.why)
    logger.info("%s", summary(started))


def _start(chosen: Settings) -> Started:
    target = vllm()
    made, left_out = decide(chosen, target)
    if left_out and chosen.mode is Mode.STRICT:
        raise Refused(refusal(left_out, target))

    def refuse(why: str) -> None:
        if chosen.mode is Mode.STRICT:
            raise hook.NotServed(why)
        logger.warning("mrv2-fixes: NOT as planned: %s", why)

    sources = {}
    for path in touched(chosen.patches, planned(target, made)):
        before = known.digest(target.files[path]) if path in target.files else None
        sources[module(path)] = hook.Source(path, before, made.after.get(path))
    hook.install(hook.Finder(sources, refuse, say))
    return Started(chosen, target, made, left_out)


def decide(chosen: Settings, target: Target) -> tuple[Plan, dict[str, Problem]]:
    """The plan of the selected patches that can be brought in, and by slug why the others cannot.

    Of vLLM's modules, those that this process has in memory count as they are there.
    """
    patches, left_out = chosen.patches, dict[str, Problem]()
    while True:
        made = plan.quick(patches, target.files, version=target.version, record=target.record())
        found = _problems(made, target)
        if not found:
            return made, left_out
        left_out |= found
        for step in made.steps:
            missing = sorted(left_out.keys() & set(step.patch.header.requires))
            if missing:
                problem = Problem(step.state, f"requires {', '.join(missing)}")
                left_out.setdefault(step.patch.slug, problem)
        patches = tuple(patch for patch in patches if patch.slug not in left_out)


def vllm() -> Target:
    """The vLLM of this process. Raises TargetUnusable when there is none."""
    found = folder.read(installed.root())
    return dataclasses.replace(found, files=_Once(found.files))


class _Once(Mapping[str, bytes]):
    """Files that are looked at once: what was planned for is what is expected and reported."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._read: dict[str, bytes] = {}
        self._there: dict[object, bool] = {}

    def __getitem__(self, path: str) -> bytes:
        if path not in self._read:
            self._read[path] = self._files[path]
        return self._read[path]

    def __contains__(self, path: object) -> bool:
        if path not in self._there:
            self._there[path] = path in self._files
        return self._there[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def planned(target: Target, made: Plan) -> Mapping[str, bytes]:
    """The files of a vLLM with what a plan makes of them."""
    return Overlaid(target.files, made.after)


def touched(patches: Iterable[Patch], files: Mapping[str, bytes]) -> list[str]:
    """The files that patches change or add, as far as a vLLM has them."""
    paths = {path for patch in patches for path in patch.paths}
    return sorted(path for path in paths if path in files)


def module(path: str) -> str:
    """The name of the module that a file is, such as vllm.version for vllm/version.py."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _problems(made: Plan, target: Target) -> dict[str, Problem]:
    """By slug, what keeps a patch out; not that it requires one that is kept out."""
    found = {}
    files = planned(target, made)
    for step in made.steps:
        if step.state in (State.DRIFTED, State.TAMPERED):
            found[step.patch.slug] = Problem(step.state, f"{step.state.value}: {step.detail}")
            continue
        others = [
            module(path)
            for path in touched([step.patch], files)
            if in_memory(path, files[path]) is False
        ]
        if others:
            why = f"{', '.join(others)} was imported before the plugin was loaded, as another"
            found[step.patch.slug] = Problem(State.NEEDED, why)
    return found


def in_memory(path: str, text: bytes) -> bool | None:
    """Whether the module of a file is made of `text` in this process; None when it is not there."""
    found = sys.modules.get(module(path))
    return None if found is None else memory.made_of(found, text)


def refusal(found: Mapping[str, Problem], target: Target) -> str:
    """Why the process does not start: which, where, and what to do."""
    slugs: dict[str, list[str]] = {}
    for slug, problem in found.items():
        slugs.setdefault(problem.why, []).append(slug)
    what = "; ".join(f"{', '.join(these)}: {why}" for why, these in slugs.items())
    upstream = [f"{slug} since {since}" for slug in found if (since := _upstream(slug, target))]
    ways = [f"{settings.VARIABLE}=warn starts without"]
    if upstream:
        ways.append(f"vLLM has {', '.join(upstream)}, and this one says {target.version}")
    if any(problem.state is State.TAMPERED for problem in found.values()):
        ways.append("mrv2 revert --force puts back what was there before mrv2 apply")
    return f"{target.where}: refusing to start: {what}. {'; '.join(ways)}"


def _upstream(slug: str, target: Target) -> str:
    """The release that brought a fix, when the vLLM says that it is no older; else empty.

    Only said, never relied on: a version tells nothing of the files.
    """
    since = series.load().patch(slug).header.applied_upstream
    says = known.base_version(target.version)
    return since if since and says and Version(says) >= Version(since) else ""


def summary(now: Started) -> str:
    """One line: what each selected patch is to this process."""
    name = f"mrv2-fixes {program_version()}"
    if now.plan is None or now.target is None:
        return f"{name}: off ({settings.VARIABLE}=off)"
    base = now.plan.release or f"{now.target.version or 'of no known version'}, an unknown base"
    each = [f"{step.patch.slug} {_in(step, now.target)}" for step in now.plan.steps]
    each += [f"{slug} NOT in" for slug in now.left_out]
    return f"{name} on vLLM {base}: {', '.join(each)}"


def _in(step: plan.Step, target: Target) -> str:
    """How a patch comes into a process, or what it is to the files of its vLLM."""
    way = how(step, target)
    if step.state is State.NEEDED:
        return way
    return step.state.value if way in ("", "base") else f"{step.state.value} by {way}"


def how(step: plan.Step, target: Target) -> str:
    """How a patch that is no problem comes into a process; empty when it does not concern it."""
    if step.state is State.NEEDED:
        return "import hook"
    record = target.record()
    if step.state is State.APPLIED and record is not None:
        return record.delivery
    return "base" if step.state in (State.APPLIED, State.UPSTREAM) else ""
