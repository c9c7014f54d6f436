"""The plan: what each patch makes of a vLLM's files. Text in, text out.

Every way of delivery writes what stands here, so all of them give the same bytes.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from mrv2_fixes import known
from mrv2_fixes.errors import Drifted, SeriesError
from mrv2_fixes.record import Record
from mrv2_fixes.series import Patch

if TYPE_CHECKING:
    from mrv2_fixes.edit import Place, Vllm

# `mrv2_fixes.edit` is imported where it is needed: importing LibCST takes longer than a status.


class State(str, enum.Enum):
    """What a patch is to a target."""

    APPLIED = "applied"  # ours, and the files are what we wrote
    UPSTREAM = "upstream"  # the base has the fix
    NEEDED = "needed"
    NOT_AFFECTED = "not affected"  # the code does not exist there
    DRIFTED = "drifted"
    TAMPERED = "tampered"  # applied by us, changed since


class Step(msgspec.Struct, frozen=True):
    """One patch of a plan.

    detail: one line for people, such as where it has drifted; empty when there is nothing to say.
    files: path to the whole new file, after this patch and those before it.
    """

    patch: Patch
    state: State
    detail: str = ""
    files: Mapping[str, bytes] = {}


class Plan(msgspec.Struct, frozen=True):
    """What a series makes of one vLLM.

    release: the published release that the base is, by its files; None when it is none.
    steps: one per patch, in order.
    before, after: path to content of each file that changes; one that is added has only the latter.
    """

    release: str | None
    steps: tuple[Step, ...]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]

    def needed(self) -> list[Step]:
        """The steps that change something."""
        return [step for step in self.steps if step.state is State.NEEDED]

    def drifted(self) -> list[Step]:
        """The steps that keep the plan from being delivered."""
        return [step for step in self.steps if step.state in (State.DRIFTED, State.TAMPERED)]

    def split(self, slugs: Collection[str]) -> tuple[Plan, list[str]]:
        """The plan's steps for `slugs` and for all that is in, and the slugs of others needed."""
        ours = (State.APPLIED, State.TAMPERED)
        kept = [step for step in self.steps if step.patch.slug in slugs or step.state in ours]
        others = [step.patch.slug for step in self.needed() if step.patch.slug not in slugs]
        return msgspec.structs.replace(self, steps=tuple(kept)), others

    def check(self, where: str, status: bool = True) -> None:
        """Raise Drifted, which names each patch that does not fit, when there is one.

        where: the target, as a command takes it. status: whether `mrv2 status` reads it so.
        """
        drifted = self.drifted()
        if not drifted:
            return
        slugs: dict[str, list[str]] = {}
        for step in drifted:
            slugs.setdefault(f"{step.state.value}: {step.detail}", []).append(step.patch.slug)
        what = "; ".join(f"{', '.join(of)}: {detail}" for detail, of in slugs.items())
        unfit = {step.patch.slug for step in drifted}
        fits = [
            step.patch.slug
            for step in self.steps
            if step.state is State.NEEDED and unfit.isdisjoint(step.patch.header.requires)
        ]
        ways = [f"mrv2 status {shlex.quote(where)} shows all"] if status else []
        ways += [f"--patch {fits[0]} takes one"] if fits else []
        parts = (f"{where}: {what}", "nothing is changed", ", ".join(ways))
        raise Drifted("; ".join(filter(None, parts)))

    def base(self, version: str | None) -> str:
        """What the base is, in words; `version` is what it says it is, None when it does not."""
        if self.release is None:
            says = f"says {version}" if version else "does not say its version"
            return f"unknown base: it {says}, and its files are those of no published release"
        says = f", says {version}" if version not in (None, self.release) else ""
        return f"files of {self.release}{says}"

    def notes(self) -> dict[str, str]:
        """Slug to what has to be said of it, for patches where there is something."""
        said = {step.patch.slug: step.detail for step in self.steps if step.detail}
        for step in self.steps:
            affects = step.patch.header.affects
            if step.state is State.NEEDED and self.release and not step.patch.affects(self.release):
                said[step.patch.slug] = f"proven on {affects} only, which {self.release} is not"
        return said


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps the garbage collector from walking LibCST's trees, over and over as they grow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def make(
    patches: Sequence[Patch],
    files: Mapping[str, bytes],
    *,
    version: str | None = None,
    record: Record | None = None,
    releases: Mapping[str, known.Release] | None = None,
) -> Plan:
    """Plan `patches`, in order, for a vLLM's `files` (path below its root to content).

    version: what the vLLM says it is; it decides only between releases with equal files.
    """
    from mrv2_fixes.edit import Drift, Outcome, Vllm

    releases = known.releases() if releases is None else releases
    base = known.match(files, version, releases)
    vllm = Vllm(files)
    current: dict[str, bytes] = {}
    steps = []
    for patch in patches:
        mark = vllm.mark()
        first = len(vllm.places)
        try:
            patch.edit(vllm)
            changed = vllm.changed()
            places = vllm.places[first:]
            state, detail = _state(places)
        except Drift as drift:
            state, detail, changed = State.DRIFTED, str(drift), {}
        except RecursionError:
            state, detail, changed = State.DRIFTED, "code that is nested too deeply to read", {}
        gone = _gone(patch, files, version, releases)
        if state is State.NOT_AFFECTED and base is None:
            gone = gone or _lost(patch, version, releases)
        if gone and state in (State.NOT_AFFECTED, State.UPSTREAM):
            state, detail = State.DRIFTED, gone
        misfit = _misfit(patch, files, edited=False) if state is State.NEEDED else ""
        if misfit:
            state, detail = State.DRIFTED, misfit
        elif state is State.UPSTREAM:
            edited = all(place.outcome is not Outcome.OTHERWISE for place in places)
            state, detail = _whose(patch, files, base, record, edited=edited)
        new = {}
        if state is State.NEEDED:
            new = {path: text for path, text in changed.items() if current.get(path) != text}
            new |= _missing(patch, files)
            current.update(new)
        elif state is State.DRIFTED:
            vllm.restore(mark)
        steps.append(Step(patch, state, detail, new))
    _read_back(steps, vllm)
    return _plan(base.release if base else None, steps, files, current)


def quick(
    patches: Sequence[Patch],
    files: Mapping[str, bytes],
    *,
    version: str | None = None,
    record: Record | None = None,
) -> Plan:
    """The same plan, but for the files of each step: by the recorded outcomes where they tell it.

    They do for a release as published, and for one with the whole of the patches in. Otherwise, as
    on an unknown base, it takes the half second that the edits take.
    """
    base = known.match(files, version, known.releases())
    made = _recorded(patches, files, base, record) if base else None
    return made or make(patches, files, version=version, record=record)


def _recorded(
    patches: Sequence[Patch], files: Mapping[str, bytes], base: known.Match, record: Record | None
) -> Plan | None:
    """The plan by what `known.json` says of a release; None where that is not enough."""
    release = known.releases()[base.release]
    steps = []
    for patch in patches:
        state = State(release.states.get(patch.slug, State.DRIFTED))
        detail = ""
        if state is State.NEEDED:
            changes = [
                patch.slug in base.applied.get(path, ())
                for path in release.outcomes
                if patch.slug in release.changing(path)
            ]
            if all(changes):
                state, detail = _whose(patch, files, base, record)
            elif any(changes) or _misfit(patch, files, edited=False):
                return None
        elif state is State.UPSTREAM:
            # What is published has none of ours.
            state, detail = _whose(patch, files, base, record, edited=False)
        if state is State.DRIFTED:
            return None
        steps.append(Step(patch, state, detail))
    needed = {step.patch.slug for step in steps if step.state is State.NEEDED}
    after: dict[str, bytes] = {}
    for path in release.outcomes:
        wanted = needed & release.changing(path)
        if not wanted:
            continue
        # Splices are those of the published file, and only of patches with what they require.
        found = release.outcome(path, wanted)
        if path in base.applied or found is None:
            return None
        sha256, outcome = found
        after[path] = outcome.of(files[path])
        if known.digest(after[path]) != sha256:
            raise SeriesError(
                f"{known.PATH}: {path} of {base.release} is wrong: install this again"
            )
    for step in steps:
        if step.state is State.NEEDED:
            after |= _missing(step.patch, files)
    return _plan(base.release, steps, files, after)


def _plan(
    release: str | None,
    steps: Sequence[Step],
    files: Mapping[str, bytes],
    after: Mapping[str, bytes],
) -> Plan:
    before = {path: files[path] for path in after if path in files}
    return Plan(release, tuple(steps), before, after)


def consulted(patches: Sequence[Patch], files: Mapping[str, bytes]) -> set[str]:
    """The files that the edits look at in a vLLM."""
    from mrv2_fixes.edit import Drift, Vllm

    vllm = Vllm(files)
    for patch in patches:
        with contextlib.suppress(Drift):
            patch.edit(vllm)
    return vllm.consulted


def _state(places: Sequence[Place]) -> tuple[State, str]:
    """The state that the outcomes of one patch's places add up to."""
    from mrv2_fixes.edit import Drift, Outcome

    by_outcome = {
        outcome: [place for place in places if place.outcome is outcome] for outcome in Outcome
    }
    changed, present = by_outcome[Outcome.CHANGED], by_outcome[Outcome.PRESENT]
    if changed and present:
        raise Drift(
            changed[0].file,
            changed[0].symbol,
            f"{changed[0].what} changed",
            f"a half-made fix: {present[0].symbol} in {present[0].file} has its part",
        )
    if changed:
        return State.NEEDED, ""
    there = present or by_outcome[Outcome.OTHERWISE]
    return (State.UPSTREAM, "") if there else (State.NOT_AFFECTED, "")


def _gone(
    patch: Patch,
    files: Mapping[str, bytes],
    version: str | None,
    releases: Mapping[str, known.Release],
) -> str:
    """What is missing of the release that the vLLM says it is; empty when nothing is."""
    release = releases.get(known.base_version(version))
    if release is None:
        return ""
    missing = [path for path in patch.header.touches if path in release.files and path not in files]
    return f"{', '.join(missing)}: no such file, and {version} has it" if missing else ""


def _lost(patch: Patch, version: str | None, releases: Mapping[str, known.Release]) -> str:
    """That the release which the vLLM says it is has the code; empty when it has none either."""
    release = releases.get(known.base_version(version))
    there = release.states.get(patch.slug, State.NOT_AFFECTED) if release else State.NOT_AFFECTED
    if there == State.NOT_AFFECTED:
        return ""
    return f"{', '.join(patch.header.touches)}: sought the code that {version} has; found none"


def _missing(patch: Patch, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that a patch adds, as far as they are not there."""
    return {path: text for path, text in patch.modules().items() if path not in files}


def _misfit(patch: Patch, files: Mapping[str, bytes], edited: bool) -> str:
    """What is at odds with the files that a patch adds; empty when nothing is.

    edited: whether the edit of the patch is in, and needs them.
    """
    for path, text in patch.modules().items():
        there = files.get(path)
        if there is None and edited:
            return f"{path}: sought the file that the patch adds; found none, a half-made fix"
        if there not in (None, text):
            return f"{path}: sought no such file, or the one that the patch adds; found another"
    return ""


def _whose(
    patch: Patch,
    files: Mapping[str, bytes],
    base: known.Match | None,
    record: Record | None,
    *,
    edited: bool = True,
) -> tuple[State, str]:
    """Whether a fix that is in came from us, unless a file that it adds is not there.

    edited: it is as the edit makes it, so that it needs that file; else it is so in another form.
    """
    if record is not None and patch.slug in record.patches:
        touched = [path for path in patch.paths if path in record.files]
        changed = [
            path for path in touched if known.digest(files.get(path, b"")) != record.files[path]
        ]
        if changed:
            return State.TAMPERED, f"{', '.join(changed)}: changed since it was written"
        return State.APPLIED, ""
    misfit = _misfit(patch, files, edited=True) if edited else ""
    if misfit:
        return State.DRIFTED, misfit
    if base and any(patch.slug in slugs for slugs in base.applied.values()):
        return State.APPLIED, ""
    return State.UPSTREAM, ""


def _read_back(steps: Sequence[Step], vllm: Vllm) -> None:
    """Every fix is still in once all are; two that want different things in one place raise."""
    from mrv2_fixes.edit import Drift, Outcome

    for step in steps:
        if step.state is not State.NEEDED:
            continue
        first = len(vllm.places)
        try:
            step.patch.edit(vllm)
        except Drift as drift:
            raise SeriesError(f"{step.patch.slug}: undone by a later patch: {drift}") from drift
        if any(place.outcome is Outcome.CHANGED for place in vllm.places[first:]):
            raise SeriesError(f"{step.patch.slug}: undone by a later patch")
