"""Whether a plan is right, judged by running the code before and after it.

The plan says of each patch what it is to the code. What that means is said once more here, as what
the code hands on for a table of cases, and nothing of `mrv2_fixes.edit` is used.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from mrv2_fixes import plan, series
from mrv2_fixes.plan import State

from .subjects import (
    ADD_REQUEST,
    DECODES,
    DEFAULT,
    DFLASH,
    DRAFTS,
    EAGLE,
    ENCODER,
    HYBRID,
    INDEX,
    MAX_MODEL_LEN,
    PLAIN,
    RUNNER,
    SCHEDULER,
    STANDALONE,
    SUBJECTS,
    UTILS,
    Case,
    Files,
    Names,
    Seen,
    behaviour,
)
from .world import Array, Longest, key

BATCH, FORWARD, GATE = (patch.slug for patch in series.load().core)
DRAFT_BOUND = "forward-draft-seq-lens-cpu-upper-bound"
DRAFT_MODEL = "draft-model-metadata-bounds"
SLOT = "reset-accepted-tokens-on-slot-reuse"
FIRST = "one-token-prompt-is-a-prefill"
ORDER = "decodes-before-short-prefills"
PLACEHOLDERS = "no-placeholder-drafts-on-first-tokens"
CHECK = "check-attn-metadata"

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
        build.get("max_seq_len") == seen.limits.get(build.get("-", ()), build.get("max_seq_len"))
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


def _proposals(seen: Seen) -> dict[tuple[int, ...], list[Mapping[str, Any]]]:
    """What was given at each proposal, by the lengths of its batch; () ahead of all."""
    found: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for build in seen.given:
        found.setdefault(build.get("-", ()), []).append(build)
    return found


def _bounds(build: Mapping[str, Any], least: list[int], most: list[int]) -> bool:
    """Whether the bound of the first rows is between those, and of the rest 0."""
    bound = build.get("seq_lens_cpu_upper_bound")
    if not isinstance(bound, Array) or "num_reqs" not in build:
        return False
    if len(bound) < max(operator.index(build["num_reqs"]), len(least)):
        return False
    within = zip(least, bound.entries, most, strict=False)
    return all(low <= row <= high for low, row, high in within) and not any(
        bound.entries[len(least) :]
    )


def _longer(lengths: tuple[int, ...], tokens: int, limit: int = MAX_MODEL_LEN) -> list[int]:
    return [min(length + tokens, limit) for length in lengths[:2]]


def _draft_bounded(case: Case, seen: Seen) -> bool:
    """From the step that metadata are for up to all steps of the proposal."""
    steps = case.speculative
    return all(
        _bounds(build, _longer(lengths, number), _longer(lengths, steps))
        for lengths, builds in _proposals(seen).items()
        for number, build in enumerate(builds, 1)
    )


def _block_bounded(case: Case, seen: Seen) -> bool:
    """A block of drafts at once, which may go beyond the model's maximum."""
    tokens = case.speculative + 1
    return all(
        _bounds(build, _longer(lengths, tokens), _longer(lengths, tokens, 2 * MAX_MODEL_LEN))
        for lengths, builds in _proposals(seen).items()
        for build in builds
    )


def _draft_model_bounded(case: Case, seen: Seen) -> bool:
    """The prefill has one token more than the batch."""
    return seen.limit == seen.model and all(
        _bounds(builds[0], *[_longer(lengths, 1)] * 2)
        and all(
            build.get("max_seq_len") == max(_longer(lengths, case.speculative)) for build in builds
        )
        for lengths, builds in _proposals(seen).items()
    )


def _reset(case: Case, seen: Seen) -> bool:
    return all(build["accepted"] == [3, 1, 3] for build in seen.given)


def _begins_anew(case: Case, seen: Seen) -> bool:
    wanted = [] if seen.otherwise else [seen.cleared]
    return all(build.get("cleared") == wanted for build in seen.given)


def _decodes_first(case: Case, seen: Seen) -> bool:
    """And what is said of the rows is said in their order."""
    for build in seen.given:
        names = build["req_ids"]
        rows = [name in DECODES for name in names]
        if {*names} != {*INDEX} or len(names) != len(INDEX) or rows != sorted(rows, reverse=True):
            return False
        if "tokens" in build:
            tokens = [build["tokens"][name] for name in names]
            given = [key(build.get(name)) for name in ("num_scheduled_tokens", "idx_mapping_np")]
            wanted = [tokens, [INDEX[name] for name in names]]
            if given != [key(Array([], one)) for one in wanted]:
                return False
    return True


def _unpadded(case: Case, seen: Seen) -> bool:
    return not case.first or all(
        not build["scheduled_spec_decode_tokens"]
        and build["num_scheduled_tokens"].get("new", 1) == 1
        for build in seen.given
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
    DRAFT_BOUND: {EAGLE: _draft_bounded, DFLASH: _block_bounded},
    DRAFT_MODEL: {PLAIN: _draft_model_bounded, STANDALONE: _draft_model_bounded},
    SLOT: {ADD_REQUEST: _reset},
    FIRST: {HYBRID: _begins_anew},
    ORDER: {RUNNER: _decodes_first},
    PLACEHOLDERS: {SCHEDULER: _unpadded},
    CHECK: {UTILS: _call_checked, ENCODER: _metadata_checked},
}
PATCHES = series.load().patches
LIMITED = {"self": 1, "min": 1, "input_batch": 1, "seq_lens_cpu_upper_bound": 1, "num_reqs": 1,
           "max": 1, "item": 1, "num_speculative_steps": 1}  # fmt: skip
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
    (DRAFT_BOUND, EAGLE): {"self": 7, "draft_seq_lens_cpu_upper_bound": 3,
                           "torch": 4, "zeros": 1, "max_num_reqs": 2, "dtype=": 1, "int32": 1,
                           "device=": 1, "nn": 1, "functional": 1, "pad": 1, "clamp": 1,
                           "input_batch": 1, "seq_lens_cpu_upper_bound": 1, "num_reqs": 2,
                           "num_speculative_steps": 1, "max=": 1, "max_model_len": 1,
                           "seq_lens_cpu_upper_bound=": 1},
    (DRAFT_BOUND, DFLASH): {"self": 3, "draft_seq_lens_cpu_upper_bound": 1, "torch": 1, "nn": 1,
                            "functional": 1, "pad": 1, "input_batch": 1,
                            "seq_lens_cpu_upper_bound": 1, "num_reqs": 2, "num_query_per_req": 1,
                            "max_num_reqs": 1},
    (DRAFT_MODEL, PLAIN): LIMITED,
    (DRAFT_MODEL, STANDALONE): LIMITED,
    (SLOT, HYBRID): {"self": 1, "num_accepted_tokens_gpu": 1, "req_index": 1, "fill_": 1},
    (SLOT, ADD_REQUEST): {"import NewRequestData": 1, "NewRequestData": 1, "int": 1, "super": 1,
                          "add_request": 1, "req_index": 1, "new_req_data": 1},
    (FIRST, HYBRID): {"import clear_old_states": 1, "clear_old_states": 1, "input_batch": 1,
                      "block_tables": 1, "kv_cache_config": 1, "self": 1, "vllm_config": 1},
    (ORDER, RUNNER): {"is_prefill": 2, "self": 2, "req_states": 2,
                      "num_computed_prefill_tokens": 1, "idx_mapping_np": 4, "prefill_len": 1,
                      "np": 2, "order": 4, "argsort": 1, "kind=": 1, "req_ids": 2, "i": 2,
                      "num_scheduled_tokens": 2},
    (PLACEHOLDERS, SCHEDULER): {"num_computed_tokens": 1, "self": 1, "has_mamba_layers": 1},
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
    "draft_seq_lens_cpu_upper_bound",
    "fill_",
    "clear_old_states",
    "argsort",
    "has_mamba_layers",
]
# The comments that go with what a patch takes away.
COMMENTS = {DRAFT_MODEL: 2}
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
            if (
                seen.raised
                or (not seen.given and case != DRAFTS[0])
                or _silent(subject, case, seen)
            ):
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


def _silent(subject: str, case: Case, seen: Seen) -> bool:
    """Whether a run says nothing of ``int()``: what it hands on is not the maximum at all."""
    if subject != DEFAULT or case.capture:
        return False
    return any(build.get("max_seq_len") != case.longest(case.lengths[0]) for build in seen.given)


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
            did = old.did, new.did
            if (subject == RUNNER and ORDER in needed) or (subject == SCHEDULER and case.first):
                # Whatever is made of the rows is another value then, and as much is made of them.
                did = _shape(old), _shape(new)
            if did[0] != did[1] and not (emptied and _within(new.did, old.did)):
                wrong.append(f"does something else in {subject} for {case} ({new.raised})")
            elif len(old.given) != len(new.given) or any(
                _rest(needed, subject, case, one) != _rest(needed, subject, case, other)
                for one, other in zip(old.given, new.given, strict=True)
            ):
                wrong.append(f"hands over something else in {subject} for {case}")
    return wrong[:2]


def _shape(seen: Seen) -> list[Any]:
    return [note[0] if isinstance(note, tuple) else "" for note in seen.did]


def _within(part: list[Any], whole: list[Any]) -> bool:
    """Whether `part` is `whole` with some left out."""
    ahead = iter(whole)
    return all(any(one == other for other in ahead) for one in part)


def _rest(needed: list[str], subject: str, case: Case, build: Mapping[str, Any]) -> Any:
    """What a build was given, but for what the patches are about."""
    left = dict(build)
    if {BATCH, DRAFT_MODEL} & {*needed}:
        left.pop("max_seq_len", None)
    if CHECK in needed:
        left.pop("checked", None)
    if FIRST in needed:
        left.pop("cleared", None)
    if SLOT in needed:
        left.pop("accepted", None)
    if ORDER in needed and subject == RUNNER:
        # Those that decode are in the order that they were in, and so are the others.
        rows = sorted(left["req_ids"], key=lambda name: name not in DECODES)
        return rows, sorted(left)
    if PLACEHOLDERS in needed and case.first:
        left = {name: {**value, "new": None} for name, value in left.items()}
    bounds = {FORWARD} if subject == HYBRID else {DRAFT_BOUND, DRAFT_MODEL}
    if bounds & {*needed}:
        left.pop("seq_lens_cpu_upper_bound", None)
    if subject == HYBRID and GATE in needed:
        metadata = left.pop("model_specific_attn_metadata", None)
        left["is_prefilling"] = getattr(metadata, "is_prefilling", None)
    return sorted((name, key(value)) for name, value in left.items())


def _text(needed: list[str], made: plan.Plan) -> list[str]:
    """Whether the texts have just the names that the patches add, and every line but theirs."""
    wrong = []
    grew: dict[str, Counter[str]] = {}
    wanted: dict[str, Counter[str]] = {}
    for path, text in made.after.items():
        if path not in made.before:
            continue  # a module of the series
        before = made.before[path]
        place = _place(path)
        try:
            grown = Counter(names_in(text))
            there = names_in(before)
        except (SyntaxError, ValueError) as error:
            wrong.append(f"{path} does not compile: {error}")
            continue
        grown.subtract(there)
        added: Counter[str] = Counter()
        for slug in needed:
            added.update(ADDS.get((slug, place), {}) if place not in wanted else {})
        if SLOT in needed and text.count(b"def add_request") > before.count(b"def add_request"):
            added.update(ADDS[SLOT, ADD_REQUEST])
        for name in there:
            if name.startswith("import "):
                added.pop(name, None)  # one is enough
        grew.setdefault(place, Counter()).update(grown)
        wanted.setdefault(place, Counter()).update(added)
        old, new = before.splitlines(True), text.splitlines(True)
        if DRAFT_MODEL in needed:
            old = [line for line in old if line.strip()]  # it takes one away
        gone = Counter(old) - Counter(new)
        kept = [line for line in old if line not in gone]
        # One or two lines are changed by a patch, none of those that it leaves are moved.
        lost = (_comments(before) - _comments(text)).total()
        lost -= sum(COMMENTS.get(slug, 0) for slug in needed)
        if lost > 0 or len(old) - len(kept) > LINES * len(needed) or not _within(kept, new):
            wrong.append(f"{path}: lines that no patch is about are not as they were")
    for place, more in wanted.items():
        grown = Counter({name: count for name, count in grew[place].items() if count})
        if any(count < 0 and name != "int" for name, count in grown.items()):
            # What was there went by another name, so that only the patches' own names tell.
            grown, more = (
                Counter({name: one[name] for name in OWN if one[name]}) for one in (grown, more)
            )
        if grown != more:
            wrong.append(f"{place} has other names more or less: {dict(grown)}")
    return wrong


def _place(path: str) -> str:
    """The file that `ADDS` has a change under, which one release or another has elsewhere."""
    own = {place for _, place in ADDS}
    return EAGLE if path not in own and "spec_decode" in path else path


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
