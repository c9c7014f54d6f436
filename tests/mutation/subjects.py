"""The code that the patches are about, run in a world of its own for a table of cases.

Nothing here knows what is right; see `tests.mutation.oracle`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from typing import Any

from .world import METADATA, PACKAGE, Array, Thing, World, key

# A subject is a file, or one method of it behind a space.

HYBRID = PACKAGE + "model_states/mamba_hybrid.py"
DEFAULT = PACKAGE + "model_states/default.py"
EAGLE = PACKAGE + "spec_decode/eagle/speculator.py"
UTILS = PACKAGE + "attn_utils.py"
ENCODER = PACKAGE + "model_states/encoder_only.py"
DFLASH = PACKAGE + "spec_decode/dflash/speculator.py"
# A draft model's, in 0.31.0 and from 0.32.0 on.
PLAIN = PACKAGE + "spec_decode/draft_model/speculator.py"
STANDALONE = PACKAGE + "spec_decode/standalone_ar/speculator.py"
RUNNER = PACKAGE + "model_runner.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
GDN = "vllm/v1/attention/backends/gdn_attn.py"
ADD_REQUEST = f"{HYBRID} add_request"
HYBRID_STATE = "MambaHybridModelState"
# The maximum of the model; one batch is so near it that the draft steps would go beyond.
MAX_MODEL_LEN = 1000
STEPS = 3
MAX_NUM_REQS = 6
PARAMETERS = [
    *("num_reqs", "num_tokens", "query_start_loc_gpu", "query_start_loc_cpu", "max_query_len"),
    *("seq_lens", "max_seq_len", "block_tables", "slot_mappings", "kv_cache_config"),
]
# What `set_attn` and `load_model` give a speculator.
GIVEN_LATER = [
    *("draft_attn_layer_names", "attn_groups", "kv_cache_config", "block_tables", "model"),
    *("draft_kv_cache_group_id", "draft_kv_cache_group_ids", "draft_block_size"),
    *("expanded_slot_mappings", "_context_slot_mappings", "_layer_group_idx", "_group_causal"),
]

Files = Mapping[str, bytes]
Names = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One call, or for a speculator one after the other with `lengths` in turn.

    lengths: of each row, padding rows last; two rows are real. align: the state of recurrent layers
    is kept for prefixes. recurrent: the model has such layers. computed: tokens of a request that
    are known when it is admitted. beside: another one decodes then.
    """

    lengths: tuple[tuple[int, ...], ...] = ()
    capture: bool = False
    full: bool = False
    speculative: int = 0
    drafts: bool = False
    align: bool = False
    recurrent: bool = False
    computed: int = 0
    beside: bool = False

    @property
    def first(self) -> bool:
        """Whether a recurrent state begins in it."""
        return self.recurrent and not self.computed

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
SLOTS = [
    Case(speculative=speculative, align=align)
    for speculative in (0, STEPS)
    for align in (False, True)
]
ROWS = [Case(), Case(speculative=STEPS, drafts=True)]
ADMISSIONS = [
    Case(recurrent=recurrent, computed=computed, beside=beside)
    for recurrent in (False, True) for computed in (0, 4) for beside in (False, True)
]  # fmt: skip


@dataclass
class Seen:
    """What one case was seen to do.

    given: what each call of `build_attn_metadata` got, or each builder. did: the notes of the
    Things, and what was raised. bound: the batch's own. checked: what the check is to get, but for
    the metadata. cleared: what the clearing of old states is to get. otherwise: whether the builder
    takes first chunks for prefills. model, speculative: what the object takes for the model's
    maximum and the number of speculative tokens.
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
    cleared: Any = None
    otherwise: bool = False


def _config(log: list[Any], speculative: int, align: bool = False) -> Thing:
    hf_config = Thing(log, "hf_config", dflash_config={})
    draft = Thing(log, "draft_model_config", hf_config=hf_config)
    speculation = Thing(
        log,
        "speculative_config",
        num_speculative_tokens=speculative,
        draft_model_config=draft,
    )
    return Thing(
        log,
        "vllm_config",
        num_speculative_tokens=speculative,
        model_config=Thing(log, "model_config", max_model_len=MAX_MODEL_LEN, is_mm_prefix_lm=False),
        speculative_config=speculation,
        scheduler_config=Thing(log, "scheduler_config", max_num_seqs=MAX_NUM_REQS),
        cache_config=Thing(log, "cache_config", mamba_cache_mode="align" if align else "none"),
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
        seq_lens_cpu_upper_bound=Array(log, [*lengths]),
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
        module = world.module(_module(path))
        made = getattr(module, names.get(owner, owner))
        state = made(_config(log, case.speculative), Thing(log, "model"), None, Thing(log, "gpu"))
        del log[:], world.builds[:]
        modes = world.module("vllm.config.compilation").CUDAGraphMode
        batch = _batch(log, case, case.lengths[0])
        seen.model = getattr(state, "max_model_len", MAX_MODEL_LEN)
        config = getattr(state, "vllm_config", None)
        seen.speculative = getattr(config, "num_speculative_tokens", case.speculative)
        seen.bound = key(batch.seq_lens_cpu_upper_bound)
        things = _things(log, "block_tables slot_mappings attn_groups kv_cache_config")
        arguments = [batch, modes.FULL if case.full else modes.NONE, *things]
        seen.cleared = key((batch, things[0], things[-1], config))
        seen.otherwise = GDN in world.files and _takes_them_for_prefills(world.files[GDN])
        capture = {"for_capture": True} if case.capture else {}
        seen.did.append(
            key(getattr(state, names.get(f"{path}:{method}", method))(*arguments, **capture))
        )

    return run


@lru_cache(maxsize=8)
def _takes_them_for_prefills(source: bytes) -> bool:
    """Whether the builder of gated delta nets takes a request's first chunk for a prefill."""
    world = World({GDN: source})
    world.note("vllm.v1.attention.backends.utils", "split_decodes_and_prefills")
    made = world.module(_module(GDN)).GDNAttentionMetadataBuilder
    # Its base class, which knows all this, is a Thing.
    builder = made.__new__(made)
    vars(builder).update(
        use_spec_decode=False, vllm_config=_config(world.log, 0), kv_cache_spec=Thing([], "spec")
    )
    # What is made of the split is not needed.
    with suppress(Exception):
        builder.build(0, Thing(world.log, "metadata"))
    # Raises IndexError where it does not come to that, so that nothing can be said.
    return world.builds[0].get("treat_short_extends_as_decodes") is False


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _add_request(world: World, names: Names, case: Case, seen: Seen) -> None:
    log = world.log
    made = getattr(world.module(_module(HYBRID)), names.get(HYBRID_STATE, HYBRID_STATE))
    config = _config(log, case.speculative, case.align)
    state = made(config, Thing(log, "model"), None, Thing(log, "gpu"))
    counts = Array(log, [3, 3, 3])
    if hasattr(state, "num_accepted_tokens_gpu"):
        state.num_accepted_tokens_gpu = counts
    del log[:]
    add = getattr(state, names.get(f"{HYBRID}:add_request", "add_request"))
    seen.did.append(key(add(1, Thing(log, "new_req_data"))))
    world.builds[:] = [{"accepted": counts.entries}]


def _draft(path: str, owner: str) -> Callable[[World, Names, Case, Seen], None]:
    def run(world: World, names: Names, case: Case, seen: Seen) -> None:
        log = world.log

        def dispatch(*args: Any, **kwargs: Any) -> tuple[Thing, None]:
            # Two rows more than the batch has, as a graph may.
            log.append(("dispatch", key(args), key(kwargs)))
            return Thing(log, "batch_desc", num_reqs=4, num_tokens=8), None

        utils = world.module("vllm.v1.worker.gpu.dp_utils")
        utils.__dict__["dispatch_cg_and_sync_dp"] = dispatch
        made = getattr(world.module(_module(path)), names.get(owner, owner))
        speculator = made(_config(log, case.speculative), Thing(log, "gpu"))
        for name in GIVEN_LATER:
            setattr(speculator, name, Thing(log, name))
        del log[:], world.builds[:]
        seen.model = getattr(speculator, "max_model_len", MAX_MODEL_LEN)
        seen.limit = getattr(speculator, "draft_max_seq_len", None)
        if not case.lengths:
            _capture(speculator, names)
        propose = _renamed(names, "propose")
        for lengths in case.lengths:
            world.log.append("propose")
            model = getattr(speculator, "max_model_len", None)
            steps = getattr(speculator, "num_speculative_steps", None)
            if isinstance(model, int) and isinstance(steps, int):
                seen.limits[lengths] = min(case.longest(lengths) + steps, model)
            things = "num_sampled num_rejected last_sampled next_prefill temperature seeds"
            arguments = [
                _batch(log, case, lengths),
                *_things(log, "attn_metadata slot_mappings last_hidden_states"),
                None,
                *_things(log, things),
            ]
            seen.did.append(key(getattr(speculator, propose)(*arguments)))
            for build in world.builds:
                build.setdefault("-", lengths)

    return run


def _renamed(names: Names, method: str) -> str:
    """What a method of the speculators is called, in whichever file it stands."""
    return next((new for old, new in names.items() if old.endswith(f":{method}")), method)


def _capture(speculator: Any, names: Names) -> None:
    """Build the metadata of a draft step ahead of any batch, unless they come with its bound."""
    build = getattr(speculator, _renamed(names, "_build_draft_attn_metadata"), None)
    rows = dict.fromkeys(["num_reqs", "num_reqs_padded", "num_tokens_padded"], 2)
    taken = signature(build).parameters if build else {}
    if build and rows.keys() <= taken.keys() and "seq_lens_cpu_upper_bound" not in taken:
        build(**rows)


# Prompts, one with as many tokens as a decode with drafts has, and two requests that decode, in the
# order of the scheduler.
INDEX = {"prompt": 0, "even prompt": 1, "first": 2, "second": 3, "long prompt": 4}
PREFILL = [2, 1 + STEPS, 5, 5, 9]
DECODES = {"first", "second"}


def _rows(world: World, names: Names, case: Case, seen: Seen) -> None:
    log = world.log
    world.note("vllm.v1.worker.gpu.input_batch", "InputBatch")
    module = world.module(_module(RUNNER))
    drafts = {name: [1] * STEPS for name in sorted(DECODES)} if case.drafts else {}
    tokens = {name: 1 if name in DECODES else PREFILL[index] for name, index in INDEX.items()}
    tokens |= dict.fromkeys(drafts, 1 + STEPS)
    sort = getattr(module, names.get(f"{RUNNER}:sort_batch_req_ids", "sort_batch_req_ids"), None)
    if sort and len(signature(sort).parameters) == 3:
        world.builds.append({"req_ids": sort(tokens, drafts, 1 + case.speculative)})
        return
    made = getattr(module, names.get("GPUModelRunner", "GPUModelRunner"))
    runner = made(_config(log, case.speculative), Thing(log, "gpu"))
    if hasattr(runner, "req_states"):
        computed = Array(log, [0 if name not in DECODES else 5 for name in INDEX])
        prefill_len = Thing(log, "prefill_len", np=Array(log, PREFILL))
        runner.req_states = Thing(
            log,
            "req_states",
            req_id_to_index=INDEX,
            num_computed_prefill_tokens=computed,
            prefill_len=prefill_len,
        )
    runner.model_state = Thing(log, "model_state")
    runner.decode_query_len = 1 + case.speculative
    del log[:], world.builds[:]
    output = Thing(
        log,
        "scheduler_output",
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens=drafts,
    )
    batch = Thing(log, "batch_desc", num_tokens=32, num_reqs=None)
    prepare = getattr(runner, names.get(f"{RUNNER}:prepare_inputs", "prepare_inputs"))
    seen.did.append(key(prepare(output, batch)))
    rows = [build for build in world.builds if isinstance(build.get("req_ids"), list)]
    world.builds[:] = [{**build, "tokens": tokens} for build in rows]


class Queue(list[Any]):
    """Of requests that wait."""

    def peek_request(self) -> Any:
        return self[0]

    def pop_request(self) -> Any:
        return self.pop(0)

    def prepend_requests(self, others: Any) -> None:
        self[:0] = others


NONE = ("lora_config", "kv_transfer_config", "ec_transfer_config", "kv_events_config")
OFF = [
    *("is_diffusion", "is_encoder_decoder", "supports_multimodal_inputs"),
    "enable_return_routed_experts",
]
QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")


def _schedule(world: World, names: Names, case: Case, seen: Seen) -> None:
    """Nothing is given where no request is ever padded with drafts."""
    usual = Case(beside=True)
    if _admitted(World(world.files), names, usual)["scheduled_spec_decode_tokens"]:
        build = _admitted(world, names, case)
        wanted = ("num_scheduled_tokens", "scheduled_spec_decode_tokens")
        world.builds.append({name: {**build[name]} for name in wanted})


def _admitted(world: World, names: Names, case: Case) -> dict[str, Any]:
    """What a scheduler sends out that admits one request; beside: while another one decodes."""
    log = world.log
    world.note("vllm.v1.core.sched.output", "SchedulerOutput")
    module = world.module(_module(SCHEDULER))
    config = _config(log, STEPS)
    config.__dict__.update(dict.fromkeys(NONE), num_lookahead_tokens=STEPS)
    config.__dict__.update(num_prefill_lookahead_tokens=0)
    config.model_config.__dict__.update(dict.fromkeys(OFF, False))
    config.observability_config = Thing(log, "observability_config", kv_cache_metrics=False)
    config.speculative_config.__dict__.update(
        num_speculative_tokens_per_batch_size=None, max_num_new_slots_for_drafting=0
    )
    config.cache_config.__dict__.update(num_gpu_blocks=100)
    config.parallel_config = Thing(log, "parallel_config", pipeline_parallel_size=1)
    config.scheduler_config.__dict__.update(
        max_num_batched_tokens=64, max_num_scheduled_tokens=None, max_num_active_seqs=None,
        long_prefill_token_threshold=0, enable_chunked_prefill=True,
    )  # fmt: skip
    kv_cache = Thing(
        log,
        "kv_cache_config",
        has_mamba_layers=case.recurrent,
        kv_cache_groups=[],
        needs_kv_cache_zeroing=False,
    )
    registry = Thing(log, "mm_registry", supports_multimodal_inputs=lambda *_: False)
    made = getattr(module, names.get("Scheduler", "Scheduler"))
    scheduler = made(config, kv_cache, Thing(log, "grammar"), 16, mm_registry=registry)
    for name in QUEUES:
        if hasattr(scheduler, name):
            setattr(scheduler, name, Queue())
    waits = world.module("vllm.v1.request").RequestStatus.WAITING
    request = _request(log, "new", case.computed, case.computed + 1, waits)
    scheduler.waiting.append(request)
    if case.beside:
        scheduler.running.append(_request(log, "old", 5, 5, waits, num_tokens=6))
    scheduler.requests = {one.request_id: one for one in [*scheduler.running, request]}
    # 0.26.0 and newer say one thing more.
    hits = [0] * (2 if b"shared_prefix" in world.files[SCHEDULER] else 1)
    scheduler.kv_cache_manager = Thing(
        log, "kv_cache_manager", get_computed_blocks=lambda *_: (Thing(log, "blocks"), *hits)
    )
    del log[:], world.builds[:]
    getattr(scheduler, names.get(f"{SCHEDULER}:schedule", "schedule"))()
    return world.builds.pop()


def _request(
    log: list[Any], name: str, computed: int, prompt: int, status: Thing, num_tokens: int = 0
) -> Thing:
    none = dict.fromkeys(["lora_request", "prefill_stats"])
    off = ("is_prefill_chunk", "has_encoder_inputs", "drop_stale_output", "use_structured_output")
    zero = ("num_output_placeholders", "next_decode_eligible_step", "num_preemptions")
    return Thing(
        log,
        name,
        **none,
        **dict.fromkeys([*off, "skip_reading_prefix_cache"], False),
        **dict.fromkeys([*zero, "num_stale_output_tokens"], 0),
        request_id=name,
        status=status,
        num_computed_tokens=computed,
        num_prompt_tokens=prompt,
        num_tokens=num_tokens or prompt,
        num_tokens_with_spec=num_tokens or prompt,
        max_tokens=9,
        spec_token_ids=[],
        mm_features=[],
    )


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
    module = world.module(_module(ENCODER))
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


SUBJECTS: dict[str, tuple[list[Case], Callable[[World, Names, Case, Seen], None]]] = {
    HYBRID: (STATES, _state(HYBRID, HYBRID_STATE)),
    DEFAULT: (STATES, _state(DEFAULT, "DefaultModelState")),
    ADD_REQUEST: (SLOTS, _add_request),
    EAGLE: (DRAFTS, _draft(EAGLE, "EagleSpeculator")),
    DFLASH: (DRAFTS, _draft(DFLASH, "DFlashSpeculator")),
    PLAIN: (DRAFTS, _draft(PLAIN, "PlainDraftModelSpeculator")),
    STANDALONE: (DRAFTS, _draft(STANDALONE, "StandaloneARSpeculator")),
    RUNNER: (ROWS, _rows),
    SCHEDULER: (ADMISSIONS, _schedule),
    UTILS: (BUILDS, _build),
    ENCODER: (BUILDS, _encoder),
}


def _file(subject: str) -> str:
    return subject.partition(" ")[0]


def behaviour(files: Files, names: Names, subjects: Collection[str]) -> dict[str, list[Seen]]:
    """What each of the subjects that is there does, for each of its cases."""
    moved = {names.get(path, path): path for path in map(_file, [*subjects, GDN])}
    here = [one for one in subjects if names.get(_file(one), _file(one)) in files]
    restored = {moved.get(path, path): text for path, text in files.items()}
    found: dict[str, list[Seen]] = {}
    for subject in here:
        cases, run = SUBJECTS[subject]
        found[subject] = []
        for case in cases:
            seen = Seen()
            world = World(restored, utils=subject == UTILS)
            try:
                run(world, names, case, seen)
            except Exception as error:  # whatever the code raises is what it does
                seen.raised = type(error).__name__
            seen.given, seen.did = world.builds, [*seen.did, *world.log, seen.raised]
            found[subject].append(seen)
    return found
