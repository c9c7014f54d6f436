"""Releases that somebody has changed, each made from a seed, and what the plan makes of them."""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from mrv2_fixes import known, plan, series
from mrv2_fixes.maintain import sources
from mrv2_fixes.plan import State

from . import kinds, oracle, subjects
from .kinds import HARMLESS, KINDS, Change
from .source import METHODS, Source, Spot
from .world import PACKAGE

SPECULATORS = [
    f"{PACKAGE}spec_decode/{name}speculator.py"
    for name in ("", "autoregressive/", "target_dependent_ar/")
]
# The files that the edits look at, by the releases that have them.
TOUCHED = [
    *(subjects.HYBRID, subjects.DEFAULT, subjects.UTILS, subjects.ENCODER),
    *(subjects.EAGLE, *SPECULATORS, subjects.DFLASH, subjects.PLAIN, subjects.STANDALONE),
    *(subjects.RUNNER, subjects.SCHEDULER, subjects.GDN),
]
# Most files of a mutant are as published; the trees of LibCST are not changed, only replaced.
vars(cst)["parse_module"] = lru_cache(maxsize=64)(cst.parse_module)
OWN = {
    **dict.fromkeys([subjects.DFLASH, subjects.PLAIN, subjects.STANDALONE], "stable"),
    **dict.fromkeys([subjects.RUNNER, subjects.SCHEDULER, subjects.GDN], "stable"),
    subjects.ENCODER: "metadata",
}
TRIES = 40
CORE = [oracle.BATCH, oracle.FORWARD, oracle.GATE]


@dataclass(frozen=True)
class Mutant:
    """A changed release.

    kinds: what was done to it, in order. files: what is needed of it, path to source.
    names: what it calls the things that the oracle asks for, where that is something else.
    """

    release: str
    path: str
    seed: int
    kinds: tuple[str, ...]
    files: Mapping[str, bytes]
    names: Mapping[str, str]

    @property
    def harmless(self) -> bool:
        """Whether everything that was done leaves the patches their place."""
        return all(name in HARMLESS for name in self.kinds)


@dataclass(frozen=True)
class Verdict:
    """The state of each patch that is concerned, and what is wrong with them."""

    states: tuple[str, ...]
    wrong: tuple[str, ...]


def touched(files: Mapping[str, bytes]) -> list[str]:
    """The files of a release to change."""
    return sorted(path for path in TOUCHED if path in files)


def mutant(release: str, files: Mapping[str, bytes], path: str, seed: int) -> Mutant:
    """The changed release of that seed; the same each time."""
    rng = random.Random(f"{release} {path} {seed}")
    states, drafts = (f"{PACKAGE}{name}/" for name in ("model_states", "spec_decode"))
    folder = drafts if path.startswith(drafts) else states
    beside = [subjects.UTILS, path, *(sources.BESIDE if folder == states else [])]
    near = {name: text for name, text in files.items() if name.startswith(folder) or name in beside}
    done, text = _start(release, files, path, rng)
    names: dict[str, str] = {}
    wanted = len(done) + rng.choices([1, 2, 3], [6, 3, 1])[0]
    for _ in range(TRIES):
        if len(done) == wanted:
            break
        try:
            spot = _spot(Source(text), rng, path)
        except (SyntaxError, ValueError):
            break
        if spot is None:
            break
        chosen = rng.choice(KINDS[rng.choice(_groups(spot))])
        try:
            made = chosen(spot)
        except (SyntaxError, ValueError, LookupError):
            # The place is not one for this kind, as after another.
            continue
        change = Change(made) if isinstance(made, str) else made
        if change is None or (change.text == text and not change.names):
            continue
        done.append(chosen.__name__)
        text = change.text
        names.update(change.names)
        added = {f"{path.rpartition('/')[0]}/{name}": new for name, new in change.beside.items()}
        near.update((name, new.encode()) for name, new in added.items())
    if path == subjects.ENCODER and {"applied", "half_applied", "metadata_checked"} & {*done}:
        # Its other half is in too.
        (outcome,) = known.releases()[release].outcomes[subjects.UTILS].values()
        near[subjects.UTILS] = outcome.of(files[subjects.UTILS])
    near.pop(path)
    for patch in oracle.PATCHES:
        for name, module in patch.modules().items():
            imported = name.rpartition("/")[2].removesuffix(".py").encode()
            if any(imported in one for one in (text.encode(), near.get(subjects.UTILS, b""))):
                near[name] = module
    near[names.get(path, path)] = text.encode()
    return Mutant(release, path, seed, tuple(done), near, names)


def _groups(spot: Spot) -> list[str]:
    """The groups of kinds to choose from; half of the changes are of the place's own group."""
    own = "function" if spot.class_ is None else OWN.get(spot.path, "")
    common = [group for group in sorted(KINDS) if group not in ("function", "metadata")]
    return [*common, *([own] * len(common) if own else [])]


def _start(
    release: str, files: Mapping[str, bytes], path: str, rng: random.Random
) -> tuple[list[str], str]:
    """The file as published, or with what patches make of it, in whole or in part."""
    outcomes = [*known.releases()[release].outcomes.get(path, {}).values()]
    if not outcomes or rng.random() < 0.7:
        return [], files[path].decode()
    outcome = rng.choice(outcomes)
    splices = rng.sample(outcome.splices, rng.randint(1, len(outcome.splices)))
    whole = len(splices) == len(outcome.splices)
    part = known.Outcome(outcome.patches, tuple(sorted(splices)))
    return ["applied" if whole else "half_applied"], part.of(files[path]).decode()


def _spot(source: Source, rng: random.Random, path: str) -> Spot | None:
    owners: list[ast.ClassDef | ast.FunctionDef] = [*source.classes(), *source.functions()]
    if not owners:
        return None
    owner = rng.choice(owners)
    if isinstance(owner, ast.FunctionDef):
        return Spot(source, rng, path, None, owner)
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
    near = [node for node in methods if node.name in METHODS]
    if not methods:
        return None
    method = rng.choice(near or methods)
    return Spot(source, rng, path, owner, method)


def judge(mutant: Mutant, patches: Sequence[series.Patch]) -> Verdict:
    """What the plan says of a mutant, and what is wrong with that."""
    patches = [patch for patch in patches if patch.slug in _concerned(mutant.path)]
    made = plan.make(patches, mutant.files)
    wrong = oracle.judge(mutant.files, made, mutant.names)
    # The plan itself has asked every edit again, of the trees; this asks of the bytes, of some.
    again = made.after and mutant.seed % 4 == 0
    if again and plan.make(patches, {**mutant.files, **made.after}).after:
        wrong.append("a second run changes it again")
    if mutant.harmless:
        wrong += [
            f"{step.patch.slug}: drifted after what leaves it its place: {step.detail}"
            for step in made.steps
            if step.state is State.DRIFTED
        ]
    concerned = [step for step in made.steps if step.state is not State.NOT_AFFECTED]
    states = tuple(f"{step.patch.slug} {step.state.value}" for step in concerned)
    return Verdict(states, tuple(wrong))


def _concerned(path: str) -> Collection[str]:
    """The patches that are about a file."""
    if path in oracle.RIGHT[oracle.CHECK]:
        return [oracle.CHECK]
    if "spec_decode" in path:
        return [oracle.BATCH, oracle.DRAFT_BOUND, oracle.DRAFT_MODEL]
    if path in (subjects.RUNNER, subjects.SCHEDULER):
        return [oracle.ORDER if path == subjects.RUNNER else oracle.PLACEHOLDERS]
    states = [oracle.SLOT, oracle.FIRST]
    return [oracle.FIRST] if path == subjects.GDN else [*CORE, *states]


def group(name: str) -> str:
    """The group of a kind."""
    for found, functions in kinds.KINDS.items():
        if any(function.__name__ == name for function in functions):
            return found
    return "applied"
