"""Whether a plan is right, judged by running the code before and after it.

The plan says of each patch what it is to the code. What that means is said once more here, as what
`build_attn_metadata` is given for a table of batches, and nothing of `mrv2_fixes.edit` is used.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mrv2_fixes import plan, series
from mrv2_fixes.plan import State

from .world import METADATA, PACKAGE, Lengths, Longest, Thing, World, key

BATCH, FORWARD, GATE = (patch.slug for patch in series.load().core)
CHECK = "check-attn-metadata"
HYBRID = PACKAGE + "model_states/mamba_hybrid.py"
DEFAULT = PACKAGE + "model_states/default.py"
EAGLE = PACKAGE + "spec_decode/eagle/speculator.py"
UTILS = PACKAGE + "attn_utils.py"
ENCODER = PACKAGE + "model_states/encoder_only.py"
# The maximum of the model; one batch is so near it that the draft steps would go beyond.
MAX_MODEL_LEN = 1000
STEPS = 3
PARAMETERS = [
    *("num_reqs", "num_tokens", "query_start_loc_gpu", "query_start_loc_cpu", "max_query_len"),
    *("seq_lens", "max_seq_len", "block_tables", "slot_mappings", "kv_cache_config"),
]
# What `set_attn` and `load_model` give a speculator.
GIVEN_LATER = ["draft_attn_layer_names", "attn_groups", "kv_cache_config", "block_tables", "model"]

Files = Mapping[str, bytes]
Names = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One call, or for a speculator one after the other with `lengths` in turn.

    lengths: of each row, padding rows last; two rows are real.
    """

    lengths: tuple[tuple[int, ...], ...]
    capture: bool = False
    full: bool = False
    speculative: int = 0
    drafts: bool = False

    def longest(self, lengths: tuple[int, ...]) -> int:
        return max(lengths if self.full else lengths[:2])


# The padding rows are not 0 as in vLLM, so that it shows how many rows are looked at.
SHORT, LONG = (7, 35, 50, 0), (12, 999, 3, 0)
STATES = [
    Case((SHORT,)),
    Case((LONG,), full=True),
    Case((SHORT,), full=True),
    Case((SHORT,), capture=True),
    Case((SHORT,), capture=True, full=True, speculative=STEPS),
    Case((SHORT,), speculative=STEPS),
    Case((LONG,), speculative=STEPS, drafts=True),
    Case((SHORT,), full=True, speculative=STEPS, drafts=True),
]
# Before the first batch, then longer and shorter ones; and with a single step there is no decode.
DRAFTS = [
    Case((), speculative=STEPS),
    Case((SHORT, LONG, (4, 3, 0, 0)), speculative=STEPS),
    Case((LONG, SHORT), speculative=1),
]
BUILDS = [Case((SHORT,)), Case((SHORT,), capture=True)]


@dataclass
class Seen:
    """What one case was seen to do.

    given: what each call of `build_attn_metadata` got, or each builder. did: the notes of the
    Things, and what was raised. bound: the batch's own. checked: what the check is to get, but for
    the metadata. model, speculative: what the object takes for the model's maximum and the number
    of speculative tokens.
    limit: the speculator's `draft_max_seq_len` before the first batch. limits: what it is to be for
    a batch, by what the speculator then takes for the steps and the model's maximum.
    """

    given: list[dict[str, Any]] = field(default_factory=list)
    did: list[Any] = field(default_factory=list)
    raised: str = ""
    model: object = MAX_MODEL_LEN
    speculative: object = 0
    limits: dict[tuple[int, ...], int] = field(default_factory=dict)
    limit: object = None
    bound: object = None
    checked: Any = None


def _config(log: list[Any], speculative: int) -> Thing:
    return Thing(
        log,
        "vllm_config",
        num_speculative_tokens=speculative,
        model_config=Thing(log, "model_config", max_model_len=MAX_MODEL_LEN, is_mm_prefix_lm=False),
        speculative_config=Thing(log, "speculative_config", num_speculative_tokens=speculative),
    )


def _batch(log: list[Any], case: Case, lengths: tuple[int, ...]) -> Thing:
    drafts = Thing(log, "num_draft_tokens_per_req") if case.drafts else None
    return Thing(
        log,
        "input_batch",
        num_reqs=2,
        num_reqs_after_padding=4,
        num_tokens=9,
        num_tokens_after_padding=16,
        seq_lens_cpu_upper_bound=Lengths(log, lengths),
        num_draft_tokens_per_req=drafts,
        max_query_len=None,
        prefill_runs_as_decode_np=None,
    )


def _things(log: list[Any], names: str) -> list[Thing]:
    return [Thing(log, name) for name in names.split()]


def _state(path: str, owner: str) -> Callable[[World, Names, Case, Seen], None]:
    method = "prepare_attn"

    def run(world: World, names: Names, case: Case, seen: Seen) -> None:
        log = world.log
        module = world.module(path.removesuffix(".py").replace("/", "."))
        made = getattr(module, names.get(owner, owner))
        state = made(_config(log, case.speculative), Thing(log, "model"), None, Thing(log, "gpu"))
        del log[:], world.builds[:]
        modes = world.module("vllm.config.compilation").CUDAGraphMode
        batch = _batch(log, case, case.lengths[0])
        seen.model = getattr(state, "max_model_len", MAX_MODEL_LEN)
        config = getattr(state, "vllm_config", None)
        seen.speculative = getattr(config, "num_speculative_tokens", case.speculative)
        seen.bound = key(batch.seq_lens_cpu_upper_bound)
        arguments = [
            batch,
            modes.FULL if case.full else modes.NONE,
            *_things(log, "block_tables slot_mappings attn_groups kv_cache_config"),
        ]
        capture = {"for_capture": True} if case.capture else {}
        seen.did.append(
            key(getattr(state, names.get(f"{path}:{method}", method))(*arguments, **capture))
        )

    return run


def _draft(world: World, names: Names, case: Case, seen: Seen) -> None:
    log = world.log
    module = world.module(EAGLE.removesuffix(".py").replace("/", "."))
    made = getattr(module, names.get("EagleSpeculator", "EagleSpeculator"))
    speculator = made(_config(log, case.speculative), Thing(log, "gpu"))
    for name in GIVEN_LATER:
        setattr(speculator, name, Thing(log, name))
    del log[:], world.builds[:]
    seen.model = getattr(speculator, "max_model_len", MAX_MODEL_LEN)
    seen.limit = getattr(speculator, "draft_max_seq_len", None)
    renamed = [new for old, new in names.items() if old.endswith(":propose")]
    propose = renamed[0] if renamed else "propose"
    for lengths in case.lengths:
        world.log.append("propose")
        model = getattr(speculator, "max_model_len", None)
        steps = getattr(speculator, "num_speculative_steps", None)
        if isinstance(model, int) and isinstance(steps, int):
            seen.limits[lengths] = min(case.longest(lengths) + steps, model)
        arguments = [
            _batch(log, case, lengths),
            *_things(log, "attn_metadata slot_mappings last_hidden_states"),
            None,
            *_things(log, "num_sampled num_rejected last_sampled next_prefill temperature seeds"),
        ]
        seen.did.append(key(getattr(speculator, propose)(*arguments)))
        for build in world.builds:
            build.setdefault("-", lengths)


def _build(world: World, names: Names, case: Case, seen: Seen) -> None:
    log = world.log
    name = names.get(f"{UTILS}:build_attn_metadata", "build_attn_metadata")
    build = getattr(world.module(METADATA), name)
    arguments = {
        "attn_groups": [[world.group("one"), world.group("two")], [world.group("three")]],
        "for_cudagraph_capture": case.capture,
    }
    for parameter in PARAMETERS:
        arguments[parameter] = Thing(log, parameter)
    if "for_cudagraph_capture" not in world.parameters:
        del arguments["for_cudagraph_capture"]
    del log[:]
    seen.checked = key(((), arguments))
    seen.did.append(key(build(**arguments)))


def _encoder(world: World, names: Names, case: Case, seen: Seen) -> None:
    log = world.log
    module = world.module(ENCODER.removesuffix(".py").replace("/", "."))
    made = getattr(module, names.get("EncoderOnlyModelState", "EncoderOnlyModelState"))
    state = made(_config(log, 0), Thing(log, "model"), None, Thing(log, "gpu"))
    groups = state.encoder_attn_groups = [world.group("one"), world.group("two")]
    del log[:]
    seen.checked = key((groups, case.capture))
    modes = world.module("vllm.config.compilation").CUDAGraphMode
    arguments = [
        _batch(log, case, case.lengths[0]),
        modes.NONE,
        *_things(log, "block_tables slot_mappings attn_groups kv_cache_config"),
    ]
    seen.did.append(key(state.prepare_attn(*arguments, for_capture=case.capture)))
    world.builds[:] = [build for build in world.builds if "checked" in build]


SUBJECTS = {
    HYBRID: (STATES, _state(HYBRID, "MambaHybridModelState")),
    DEFAULT: (STATES, _state(DEFAULT, "DefaultModelState")),
    EAGLE: (DRAFTS, _draft),
    UTILS: (BUILDS, _build),
    ENCODER: (BUILDS, _encoder),
}


def behaviour(files: Files, names: Names, subjects: Collection[str]) -> dict[str, list[Seen]]:
    """What each of the subjects that is there does, for each of its cases."""
    moved = {names.get(path, path): path for path in subjects}
    here = [path for path in moved if path in files]
    restored = {moved.get(path, path): text for path, text in files.items()}
    found: dict[str, list[Seen]] = {}
    for path in (moved[one] for one in here):
        cases, run = SUBJECTS[path]
        found[path] = []
        for case in cases:
            seen = Seen()
            world = World(restored, utils=path == UTILS)
            try:
                run(world, names, case, seen)
            except Exception as error:  # whatever the code raises is what it does
                seen.raised = type(error).__name__
            seen.given, seen.did = world.builds, [*seen.did, *world.log, seen.raised]
            found[path].append(seen)
    return found


# What is right, by patch and subject.


def _batch_maximum(case: Case, seen: Seen) -> bool:
    wanted = seen.model if case.capture else case.longest(case.lengths[0])
    return all(build.get("max_seq_len") == wanted for build in seen.given)


def _bare_maximum(case: Case, seen: Seen) -> bool:
    """Not one that went through ``int()``; whether it is the right one is no patch's business."""
    longest = case.longest(case.lengths[0])
    return all(
        case.capture or length != longest or isinstance(length, Longest)
        for length in (build.get("max_seq_len") for build in seen.given)
    )


def _draft_maximum(case: Case, seen: Seen) -> bool:
    return seen.limit == seen.model and all(
        build.get("max_seq_len") == seen.limits.get(build["-"], build.get("max_seq_len"))
        for build in seen.given
    )


def _forwarded(case: Case, seen: Seen) -> bool:
    return all(key(build.get("seq_lens_cpu_upper_bound")) == seen.bound for build in seen.given)


def _gated(case: Case, seen: Seen) -> bool:
    filled = not case.capture and seen.speculative != 0
    return all(
        (getattr(build.get("model_specific_attn_metadata"), name, None) is not None) is filled
        for build in seen.given
        for name in ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
    )


def _call_checked(case: Case, seen: Seen) -> bool:
    return all(build["checked"] == [seen.checked] for build in seen.given)


def _metadata_checked(case: Case, seen: Seen) -> bool:
    def given(build: Mapping[str, Any]) -> object:
        return build.get("common_attn_metadata", build["args"][-1] if build["args"] else None)

    return all(build["checked"] == [(key(given(build)), *seen.checked)] for build in seen.given)


Right = Callable[[Case, Seen], bool]
RIGHT: dict[str, dict[str, Right]] = {
    BATCH: {HYBRID: _batch_maximum, DEFAULT: _bare_maximum, EAGLE: _draft_maximum},
    FORWARD: {HYBRID: _forwarded},
    GATE: {HYBRID: _gated},
    CHECK: {UTILS: _call_checked, ENCODER: _metadata_checked},
}
PATCHES = tuple(patch for patch in series.load().patches if patch.slug in RIGHT)
# The names that a patch adds to a file, and -1 for one that it takes away.
ADDS: dict[tuple[str, str], dict[str, int]] = {
    (FORWARD, HYBRID): {"seq_lens_cpu_upper_bound=": 1, "input_batch": 1,
                        "seq_lens_cpu_upper_bound": 1},
    (GATE, HYBRID): {"self": 1, "vllm_config": 1, "num_speculative_tokens": 1},
    (BATCH, HYBRID): {"for_capture": 1, "input_batch": 1, "seq_lens_cpu_upper_bound": 1,
                      "num_reqs": 1, "max": 1, "item": 1},
    (BATCH, DEFAULT): {"int": -1},
    (BATCH, EAGLE): {"draft_max_seq_len": 3, "self": 5, "max_model_len": 1, "min": 1,
                     "input_batch": 1, "seq_lens_cpu_upper_bound": 1, "num_reqs": 1, "max": 1,
                     "item": 1, "num_speculative_steps": 1},
    (CHECK, UTILS): {"import checked": 1, "checked": 1},
    (CHECK, ENCODER): {"import check_metadata": 1, "check_metadata": 1, "common_attn_metadata": 1,
                       "self": 1, "encoder_attn_groups": 1, "for_capture": 1},
}  # fmt: skip
OWN = [
    "seq_lens_cpu_upper_bound=",
    "num_speculative_tokens",
    "draft_max_seq_len",
    "int",
    "min",
    "checked",
    "check_metadata",
]
# How many lines of a file a patch changes at most; a call that stands on a line goes in one.
LINES = 6


def judge(files: Files, made: plan.Plan, names: Names | None = None) -> list[str]:
    """What is wrong with a plan for `files`, one line each; empty when all of it is right.

    names: what a class, a method or a file of the release is called in `files`.
    """
    names = names or {}
    subjects = {subject for step in made.steps for subject in RIGHT[step.patch.slug]}
    before = behaviour(files, names, subjects)
    after = behaviour({**files, **made.after}, names, subjects) if made.after else before
    wrong = []
    for step in made.steps:
        wrong += [f"{step.patch.slug}: {line}" for line in _judge(step, files, before, after)]
    needed = [step.patch.slug for step in made.steps if step.state is State.NEEDED]
    wrong += _changed(needed, before, after)
    wrong += _text(needed, made)
    return wrong


def _judge(
    step: plan.Step,
    files: Files,
    before: Mapping[str, list[Seen]],
    after: Mapping[str, list[Seen]],
) -> list[str]:
    """What is wrong with one patch's state."""
    if step.state in (State.DRIFTED, State.TAMPERED):
        named = step.detail.partition(":")[0].partition(",")[0]
        return [] if named in files or named in step.patch.paths else [
            f"drift names no file: {step.detail}"
        ]  # fmt: skip
    wrong = []
    complete = True
    verdicts_before: list[bool] = []
    for subject, right in RIGHT[step.patch.slug].items():
        for number, case in enumerate(SUBJECTS[subject][0] if subject in before else ()):
            if not _runs(subject, before[subject]):
                continue
            seen = before[subject][number]
            if seen.raised or (not seen.given and case.lengths):
                complete = False
                continue
            verdicts_before.append(right(case, seen))
            if not right(case, after[subject][number]):
                wrong.append(f"{step.state.value}, and wrong in {subject} for {case}")
    if step.state is State.NEEDED and complete and verdicts_before and all(verdicts_before):
        wrong.append("needed, and right without it")
    if step.state is State.NOT_AFFECTED and verdicts_before and not wrong:
        wrong.append("not affected, and the code is there")
    return wrong[:2]


def _runs(subject: str, seen: list[Seen]) -> bool:
    """Whether what is left of the code builds metadata at all."""
    return any(one.given for one in seen)


def _changed(
    needed: list[str], before: Mapping[str, list[Seen]], after: Mapping[str, list[Seen]]
) -> list[str]:
    """What else became of it than the patches say."""
    wrong = []
    for subject, seen in before.items():
        for case, old, new in zip(SUBJECTS[subject][0], seen, after[subject], strict=True):
            emptied = GATE in needed and subject == HYBRID and not case.capture
            emptied = emptied and not case.speculative
            if emptied and old.raised:
                continue
            if old.did != new.did and not (emptied and _within(new.did, old.did)):
                wrong.append(f"does something else in {subject} for {case} ({new.raised})")
            elif len(old.given) != len(new.given) or any(
                _rest(needed, subject, one) != _rest(needed, subject, other)
                for one, other in zip(old.given, new.given, strict=True)
            ):
                wrong.append(f"hands over something else in {subject} for {case}")
    return wrong[:2]


def _within(part: list[Any], whole: list[Any]) -> bool:
    """Whether `part` is `whole` with some left out."""
    ahead = iter(whole)
    return all(any(one == other for other in ahead) for one in part)


def _rest(needed: list[str], subject: str, build: Mapping[str, Any]) -> Any:
    """What a build was given, but for what the patches are about."""
    left = dict(build)
    if BATCH in needed:
        left.pop("max_seq_len", None)
    if CHECK in needed:
        left.pop("checked", None)
    if subject == HYBRID and FORWARD in needed:
        left.pop("seq_lens_cpu_upper_bound", None)
    if subject == HYBRID and GATE in needed:
        metadata = left.pop("model_specific_attn_metadata", None)
        left["is_prefilling"] = getattr(metadata, "is_prefilling", None)
    return sorted((name, key(value)) for name, value in left.items())


def _text(needed: list[str], made: plan.Plan) -> list[str]:
    """Whether the texts have just the names that the patches add, and every line but theirs."""
    wrong = []
    for path, text in made.after.items():
        if path not in made.before:
            continue  # a module of the series
        try:
            grown = Counter(names_in(text))
            there = names_in(made.before[path])
        except (SyntaxError, ValueError) as error:
            wrong.append(f"{path} does not compile: {error}")
            continue
        grown.subtract(there)
        wanted: Counter[str] = Counter()
        for slug in needed:
            wanted.update(ADDS.get((slug, path), {}))
        for name in there:
            if name.startswith("import "):
                wanted.pop(name, None)  # one is enough
        grew = Counter({name: count for name, count in grown.items() if count})
        if any(count < 0 and name != "int" for name, count in grew.items()):
            # What was there went by another name, so that only the patches' own names tell.
            grew, wanted = (
                Counter({name: one[name] for name in OWN if one[name]}) for one in (grown, wanted)
            )
        if grew != wanted:
            wrong.append(f"{path} has other names more or less: {dict(grew)}")
        old, new = made.before[path].splitlines(True), text.splitlines(True)
        gone = Counter(old) - Counter(new)
        kept = [line for line in old if line not in gone]
        # One or two lines are changed by a patch, none of those that it leaves are moved.
        lost = _comments(made.before[path]) - _comments(text)
        if lost or len(old) - len(kept) > LINES * len(needed) or not _within(kept, new):
            wrong.append(f"{path}: lines that no patch is about are not as they were")
    return wrong


def _comments(source: bytes) -> Counter[bytes]:
    return Counter(re.findall(rb"#[^\r\n]*", source))


@lru_cache(maxsize=64)
def names_in(source: bytes) -> tuple[str, ...]:
    """Every name of a source, as often as it is used there; keyword and import as such."""
    found = []
    tree = ast.parse(source)
    compile(tree, "-", "exec", dont_inherit=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.keyword):
            found.append(f"{node.arg}=")
        elif isinstance(node, ast.alias):
            found.append(f"import {node.name}")
    return tuple(found)
