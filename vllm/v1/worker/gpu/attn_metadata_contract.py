# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Check, where Model Runner V2 builds attention metadata, what backends rely on.

VLLM_CHECK_ATTN_METADATA=1 raises an error where it does not hold; =warn logs each fault
once and goes on. Each build then copies lengths, block tables and slot mappings to the
host: it is for finding faults, not for serving.

A rule is a function of what one KV cache group is about to get. It yields each field
that breaks it, with the first such row, what was expected, and what was found.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import regex as re
import torch

from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import AttentionSpec, CrossAttentionSpec, MambaSpec

P = ParamSpec("P")
R = TypeVar("R")
Lengths = TypeVar("Lengths", int, np.ndarray)

logger = init_logger(__name__)

PAD_SLOT_ID = -1
SPECULATIVE = ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
# What may be missing, or of another length than the batch.
OPTIONAL = ("seq_lens_cpu_upper_bound", "is_prefilling", *SPECULATIVE)

MODE = os.environ.get("VLLM_CHECK_ATTN_METADATA", "")
if MODE not in ("", "0", "1", "warn"):
    raise ValueError(
        f"VLLM_CHECK_ATTN_METADATA={MODE}: expected 1 to raise an error at wrong "
        "attention metadata, warn to log it, or 0 to check nothing"
    )
ENABLED = MODE in ("1", "warn")
if ENABLED:
    logger.info("Attention metadata are checked (VLLM_CHECK_ATTN_METADATA=%s)", MODE)


@dataclass(frozen=True)
class Breach:
    """A field that is not what the attention backend takes for granted."""

    group: int | None
    """The KV cache group; None for layers without a KV cache."""
    kind: str
    """The name of the layers' attention backend."""
    layer: str
    """The first layer that would get it, by name."""
    field: str
    row: int | None
    """The request's row in the batch; None when no row is to blame."""
    expected: str
    found: str

    def __str__(self) -> str:
        group = "no KV cache" if self.group is None else f"KV cache group {self.group}"
        row = "" if self.row is None else f", row {self.row}"
        return (
            f"{group} ({self.kind}, layer {self.layer}): {self.field}{row}: "
            f"expected {self.expected}, found {self.found}"
        )


class AttnMetadataError(RuntimeError):
    """All breaches of one build."""

    def __init__(self, breaches: Sequence[Breach]) -> None:
        super().__init__(breaches)
        self.breaches = tuple(breaches)

    def __str__(self) -> str:
        return (
            "attention metadata breaks its contract with the attention backends "
            "(VLLM_CHECK_ATTN_METADATA=0 turns this check off, =warn goes on):\n"
            + "\n".join(map(str, self.breaches))
        )


def on_breaches(breaches: Sequence[Breach]) -> None:
    """What is done about the breaches of one build, when there are any."""
    if MODE != "warn":
        raise AttnMetadataError(breaches)
    for breach in breaches:
        # Of what was expected, only whether it is less or more.
        expected = re.sub(r"\d+", "", breach.expected)
        fault = replace(breach, row=None, expected=expected, found="")
        if fault not in _warned:
            _warned.add(fault)
            logger.warning("Wrong attention metadata, logged once: %s", breach)


_warned: set[Breach] = set()


def checked(build: Callable[P, R]) -> Callable[P, R]:
    """`build_attn_metadata`, its arguments checked before the first builder runs.

    Not in between: at capture, builders write into what the next ones get.
    """
    if not ENABLED:
        return build
    signature = inspect.signature(build)

    @functools.wraps(build)
    def checked_build(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        _check(_groups(bound.arguments))
        return build(*args, **kwargs)

    return checked_build


def check_metadata(
    common_attn_metadata: Any, attn_groups: Sequence[Any], for_cudagraph_capture: bool
) -> None:
    """Check a CommonAttentionMetadata of layers that have no KV cache."""
    if not ENABLED or not attn_groups:
        return
    common = common_attn_metadata
    builders = [group.get_metadata_builder(0) for group in attn_groups]
    if (vllm_config := _vllm_config(builders)) is None:
        return
    metadata = GroupMetadata(
        group=None,
        attn_groups=attn_groups,
        builders=builders,
        vllm_config=vllm_config,
        for_cudagraph_capture=for_cudagraph_capture,
        num_reqs=common.num_reqs,
        num_actual_tokens=common.num_actual_tokens,
        max_query_len=common.max_query_len,
        max_seq_len=common.max_seq_len,
        tensors=_given(
            query_start_loc=common.query_start_loc,
            query_start_loc_cpu=common.query_start_loc_cpu,
            seq_lens=common.seq_lens,
            seq_lens_cpu_upper_bound=common.seq_lens_cpu_upper_bound,
        ),
    )
    _check([metadata])


def _check(groups: Sequence["GroupMetadata"]) -> None:
    if not groups or not groups[0].num_reqs:
        return
    on_cuda = groups[0].tensors["seq_lens"].is_cuda
    if on_cuda and torch.cuda.is_current_stream_capturing():
        # Nothing can be copied to the host now.
        return
    breaches = [breach for m in groups for breach in _malformed(m)]
    if not breaches:
        read = _read(groups)
        breaches = [breach for m in read for rule in RULES for breach in rule(m)]
    if breaches:
        on_breaches(breaches)


@dataclass(frozen=True)
class Cache:
    """What the KV cache of a group has room for, and how its block table counts."""

    num_blocks: int
    tokens_per_column: int
    num_slots: int

    def columns(self, seq_lens: Lengths) -> Lengths:
        """How many columns of the block table sequences of these lengths take up."""
        return -(-seq_lens // self.tokens_per_column)


@dataclass(frozen=True)
class GroupMetadata:
    """What the builders of one KV cache group are about to get, and its values.

    Names, shapes and units are those of vLLM's CommonAttentionMetadata.
    """

    group: int | None
    attn_groups: Sequence[Any]
    builders: Sequence[Any]
    vllm_config: Any
    for_cudagraph_capture: bool
    max_query_len: int
    max_seq_len: int
    num_reqs: int
    num_actual_tokens: int
    tensors: Mapping[str, torch.Tensor]
    """Those that are not None."""
    cache: Cache | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of the tensors, but for those that should have one for each row and have not."""
    is_dummy: bool | None = None
    """Whether nothing of the batch is kept; None where its slots do not tell."""

    def breach(
        self, field: str, row: int | None, expected: object, found: object
    ) -> Breach:
        first = self.attn_groups[0]
        # vLLM has them in an order that differs from process to process.
        kind, layer = first.backend.get_name(), min(first.layer_names)
        return Breach(self.group, kind, layer, field, row, str(expected), str(found))

    def first(
        self, field: str, wrong: np.ndarray, expected: str, found: Any, *of: np.ndarray
    ) -> Iterator[Breach]:
        """The breach of the first row that is wrong; `expected` tells of its `of`."""
        for row in np.flatnonzero(wrong)[:1]:
            limits = expected.format(*(values[row] for values in of))
            found = found[row] if isinstance(found, np.ndarray) else found
            yield self.breach(field, int(row), limits, found)

    def first_entry(self, wrong: np.ndarray, expected: str) -> Iterator[Breach]:
        """Likewise of the block table, of which some entries are wrong."""
        name = "block_table_tensor"
        for row in np.flatnonzero(wrong.any(axis=1))[:1]:
            found = self.values[name][row][wrong[row]][0]
            yield self.breach(name, int(row), expected, found)

    @property
    def of_requests(self) -> bool:
        """Whether its lengths are for sure those of requests, and not made up."""
        return self.is_dummy is False and not self.for_cudagraph_capture

    @property
    def max_model_len(self) -> int:
        return int(self.vllm_config.model_config.max_model_len)

    @property
    def num_speculative_tokens(self) -> int:
        return int(self.vllm_config.num_speculative_tokens)

    @property
    def unconfirmed_tokens(self) -> int:
        """So many tokens of a row the host may count that the device has rejected."""
        config = self.vllm_config
        in_flight = 1 + config.parallel_config.pipeline_parallel_size
        in_flight = getattr(config, "max_concurrent_batches", in_flight)
        # And those of the step that a draft follows.
        return self.num_speculative_tokens * (int(in_flight) + 1)

    @property
    def pcp(self) -> bool:
        """Rows are pieces of requests, and slots are those of other ranks too."""
        parallel_config = self.vllm_config.parallel_config
        return bool(parallel_config.prefill_context_parallel_size > 1)

    @property
    def token_cache(self) -> Cache | None:
        """That of layers with a slot for each token, and a block for each context."""
        spec = self.attn_groups[0].kv_cache_spec
        # A cross attention's builder makes slots of its own, for the encoder's tokens.
        if isinstance(spec, AttentionSpec) and not isinstance(spec, CrossAttentionSpec):
            return self.cache if getattr(spec, "uses_slot_mapping", True) else None
        return None

    @property
    def state_cache(self) -> Cache | None:
        """That of layers that read and write a state through the block table."""
        spec = self.attn_groups[0].kv_cache_spec
        return self.cache if isinstance(spec, MambaSpec) else None

    @property
    def is_mamba(self) -> bool:
        """Mamba or a short convolution, whose builders tell decodes by their place."""
        name = "BaseMambaAttentionMetadataBuilder"
        return any(_is_a(builder, name) for builder in self.builders)

    @property
    def query_lens(self) -> np.ndarray:
        return np.diff(self.values["query_start_loc_cpu"])

    @property
    def prefilling(self) -> np.ndarray:
        return self.values.get("is_prefilling", np.zeros(self.num_reqs)) != 0

    @property
    def num_tokens(self) -> int:
        """The tokens that belong to a row."""
        return int(self.values["query_start_loc_cpu"][-1])

    @property
    def is_padding(self) -> np.ndarray:
        """The rows behind the last one with tokens; none where there are no tokens."""
        filled = np.flatnonzero(self.query_lens)
        num_rows = filled[-1] + 1 if filled.size else self.num_reqs
        return np.arange(self.num_reqs) >= num_rows


def _groups(arguments: Mapping[str, Any]) -> list[GroupMetadata]:
    """What each KV cache group is to get of the arguments of `build_attn_metadata`."""
    ubatch = arguments.get("ubatch_idx", 0)
    all_builders = [
        [group.get_metadata_builder(ubatch) for group in attn_groups]
        for attn_groups in arguments["attn_groups"]
    ]
    vllm_config = _vllm_config([b for builders in all_builders for b in builders])
    if vllm_config is None:
        return []
    num_reqs, bound = arguments["num_reqs"], arguments["seq_lens_cpu_upper_bound"]
    # Made once, so that what groups share is read once.
    shared = {
        "query_start_loc": arguments["query_start_loc_gpu"],
        "query_start_loc_cpu": arguments["query_start_loc_cpu"],
        "seq_lens": arguments["seq_lens"][:num_reqs],
        "seq_lens_cpu_upper_bound": None if bound is None else bound[:num_reqs],
        "is_prefilling": arguments.get("is_prefilling"),
    }
    return [
        GroupMetadata(
            group=index,
            attn_groups=arguments["attn_groups"][index],
            builders=builders,
            vllm_config=vllm_config,
            for_cudagraph_capture=arguments["for_cudagraph_capture"],
            num_reqs=num_reqs,
            num_actual_tokens=arguments["num_tokens"],
            max_query_len=arguments["max_query_len"],
            max_seq_len=arguments["max_seq_len"],
            tensors=_given(
                **shared | _of_model(arguments, index, builders),
                block_table_tensor=arguments["block_tables"][index],
                slot_mapping=arguments["slot_mappings"][index],
            ),
            cache=_cache(arguments, index, builders[0], vllm_config),
        )
        for index, builders in enumerate(all_builders)
        if builders
    ]


def _vllm_config(builders: Sequence[Any]) -> Any:
    """That of the first builder that keeps it, as some keep but parts of it."""
    configs = (getattr(builder, "vllm_config", None) for builder in builders)
    return next((config for config in configs if config is not None), None)


def _given(**tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _of_model(
    arguments: Mapping[str, Any], index: int, builders: Sequence[Any]
) -> dict[str, torch.Tensor | None]:
    """What a model adds for one group: is_prefilling, and what is speculative."""
    model_specific = arguments["model_specific_attn_metadata"]
    if model_specific is None:
        return {}
    num_reqs = arguments["num_reqs"]
    kwargs = dict(model_specific.get_extra_common_attn_kwargs(index, num_reqs))
    if not arguments["for_cudagraph_capture"]:
        for builder in builders:
            kwargs |= model_specific.get_extra_attn_kwargs(builder, num_reqs)
    names = "is_prefilling", *SPECULATIVE
    return {name: kwargs[name] for name in names if name in kwargs}


def _cache(
    arguments: Mapping[str, Any], index: int, builder: Any, vllm_config: Any
) -> Cache:
    attn_group = arguments["attn_groups"][index][0]
    kv_cache_config = arguments["kv_cache_config"]
    kv_cache_group = kv_cache_config.kv_cache_groups[index]
    num_blocks = kv_cache_config.num_blocks
    if getattr(kv_cache_group, "host_resident", False):
        num_blocks = kv_cache_config.hisparse_host_num_blocks
    block_size = unit = kv_cache_group.kv_cache_spec.block_size
    if not hasattr(attn_group, "kernel_block_size"):
        # Groups that have it are given the manager's blocks, and split them themselves.
        unit = getattr(builder, "kernel_block_size", None)
        unit = unit or builder.kv_cache_spec.block_size
    spec, shards = attn_group.kv_cache_spec, 1
    if isinstance(spec, AttentionSpec) and getattr(spec, "dcp_sharded", True):
        shards = vllm_config.parallel_config.decode_context_parallel_size
    return Cache(
        num_blocks=num_blocks * max(1, block_size // unit),
        tokens_per_column=unit * shards,
        num_slots=num_blocks * block_size,
    )


def _read(groups: Sequence[GroupMetadata]) -> list[GroupMetadata]:
    """The same with their values: the device's come in one copy, as each waits."""
    wanted = [_readable(m) for m in groups]
    tensors = {id(t): t for named in wanted for t in named.values()}
    device = {key: t for key, t in tensors.items() if t.device.type != "cpu"}
    if device:
        flat = [t.reshape(-1).to(torch.int64) for t in device.values()]
        copies = torch.cat(flat).cpu().split([len(t) for t in flat])
        for (key, t), copy in zip(device.items(), copies, strict=True):
            tensors[key] = copy.view(t.shape)
    values = [
        {name: tensors[id(t)].numpy() for name, t in named.items()} for named in wanted
    ]
    slots = [
        v["slot_mapping"] for m, v in zip(groups, values, strict=True) if m.token_cache
    ]
    parallel_config = groups[0].vllm_config.parallel_config
    is_dummy: bool | None = None
    if any((slot != PAD_SLOT_ID).any() for slot in slots):
        is_dummy = False
    elif slots and parallel_config.decode_context_parallel_size == 1:
        # Otherwise a rank may keep none of a batch's tokens.
        is_dummy = True
    return [
        replace(m, values=v, is_dummy=is_dummy)
        for m, v in zip(groups, values, strict=True)
    ]


def _readable(m: GroupMetadata) -> dict[str, torch.Tensor]:
    """What has a value for each row, and of the block table as much as is in use."""
    tensors = {
        name: tensor
        for name, tensor in m.tensors.items()
        if name not in OPTIONAL or len(tensor) == m.num_reqs
    }
    if m.cache is not None:
        columns = max(m.cache.columns(m.max_seq_len), 1 + m.num_speculative_tokens)
        tensors["block_table_tensor"] = tensors["block_table_tensor"][:, :columns]
    return tensors


def _malformed(m: GroupMetadata) -> Iterator[Breach]:
    """What has to be right before rows can be told apart."""
    lengths = {
        "query_start_loc": m.num_reqs + 1,
        "query_start_loc_cpu": m.num_reqs + 1,
        "seq_lens": m.num_reqs,
    }
    if m.cache is not None:
        lengths["block_table_tensor"] = m.num_reqs
    for name, length in lengths.items():
        if len(m.tensors[name]) != length:
            yield m.breach(name, None, f"{length} entries", len(m.tensors[name]))


def _query_start_loc(m: GroupMetadata) -> Iterator[Breach]:
    name = "query_start_loc"
    for each in name, f"{name}_cpu":
        starts = m.values[each]
        if starts[0] != 0:
            yield m.breach(each, 0, 0, starts[0])
        ends, expected = starts[1:], "an end at {} or later"
        yield from m.first(each, ends < starts[:-1], expected, ends, starts[:-1])
    device, host = m.values[name], m.values[f"{name}_cpu"]
    differs = device != host
    speculative_config = m.vllm_config.speculative_config
    if getattr(speculative_config, "enable_adaptive_verification", False):
        # Which row gets how many of the tokens is decided on the device.
        differs[:-1] = False
    yield from m.first(name, differs, "{}, as on the host", device, host)


def _num_actual_tokens(m: GroupMetadata) -> Iterator[Breach]:
    # A FULL CUDA graph has tokens that belong to no row.
    mode = m.vllm_config.compilation_config.cudagraph_mode
    padded = m.for_cudagraph_capture or mode.has_full_cudagraphs()
    excess = m.num_actual_tokens - m.num_tokens
    if excess < 0 or (excess > 0 and not padded):
        expected = f"{m.num_tokens}, the end of query_start_loc"
        yield m.breach("num_actual_tokens", None, expected, m.num_actual_tokens)


def _max_query_len(m: GroupMetadata) -> Iterator[Breach]:
    name, most = "max_query_len", m.max_query_len
    longest = np.maximum(m.query_lens, np.diff(m.values["query_start_loc"]))
    yield from m.first(name, longest > most, "{} or more", most, longest)


def _max_seq_len(m: GroupMetadata) -> Iterator[Breach]:
    name, seq_lens, most = "max_seq_len", m.values["seq_lens"], m.max_seq_len
    yield from m.first(name, seq_lens > most, "{} or more", most, seq_lens)
    if not m.of_requests:
        return
    bounds = m.values.get("seq_lens_cpu_upper_bound", seq_lens + m.unconfirmed_tokens)
    # A draft's may cover all of its steps.
    longest = min(bounds.max() + m.num_speculative_tokens, m.max_model_len)
    if most > longest:
        yield m.breach(name, None, f"{longest} or less", most)
    elif m.token_cache:
        columns = m.tensors["block_table_tensor"].shape[1]
        if m.token_cache.columns(most) > columns:
            expected = f"no more than {columns} columns of the block table hold"
            yield m.breach(name, None, expected, most)


def _seq_lens_cpu_upper_bound(m: GroupMetadata) -> Iterator[Breach]:
    name = "seq_lens_cpu_upper_bound"
    bound = m.tensors.get(name)
    if bound is None or bound.device.type != "cpu":
        found = "None" if bound is None else f"one on {bound.device}"
        yield m.breach(name, None, "a tensor on the CPU", found)
    if name not in m.values:
        if bound is not None:
            yield m.breach(name, None, f"{m.num_reqs} entries", len(bound))
        return
    bounds, seq_lens = m.values[name], m.values["seq_lens"]
    expected = "{} or more, its seq_len"
    yield from m.first(name, bounds < seq_lens, expected, bounds, seq_lens)
    if m.of_requests and not m.pcp:
        highest = seq_lens + np.where(m.prefilling, 0, m.unconfirmed_tokens)
        highest = np.minimum(highest, m.max_model_len)
        expected = "{} or less, by its seq_len"
        yield from m.first(name, bounds > highest, expected, bounds, highest)


def _is_prefilling(m: GroupMetadata) -> Iterator[Breach]:
    # Others get what does not count padding, and read it in no batch that has any.
    name = "is_prefilling"
    if m.state_cache and name not in m.values:
        given = m.tensors.get(name)
        if given is not None or m.is_mamba:
            found = None if given is None else len(given)
            yield m.breach(name, None, f"{m.num_reqs} entries", found)


def _speculative_tensors(m: GroupMetadata) -> Iterator[Breach]:
    most = m.num_speculative_tokens
    legal = zip(SPECULATIVE, (1, -1), (most + 1, most), strict=True)
    for name, lowest, highest in legal:
        if name not in m.tensors:
            continue
        entries = len(m.tensors[name])
        if most == 0:
            expected = "None, as nothing is speculative"
            yield m.breach(name, None, expected, f"{entries} entries")
        elif name not in m.values:
            yield m.breach(name, None, f"{m.num_reqs} entries", entries)
        else:
            values = m.values[name]
            outside = (values < lowest) | (values > highest)
            yield from m.first(name, outside, f"{lowest} to {highest}", values)


def _accepted_tokens(m: GroupMetadata) -> Iterator[Breach]:
    """A state is kept where only a row that verifies drafts looks for it."""
    name, name_of_drafts = SPECULATIVE
    accepted, drafts = m.values.get(name), m.values.get(name_of_drafts)
    if accepted is None or m.num_speculative_tokens == 0:
        return
    wrong = m.prefilling & (accepted != 1)
    yield from m.first(name, wrong, "1, as it is a prefill", accepted)
    filled = m.query_lens > 0
    decodes = filled & ~m.prefilling
    if m.is_mamba:
        # These run what stands behind a prefill as one. A prefill of one token is a
        # decode to them when it has a state.
        prefills = filled & m.prefilling
        prefills &= (m.query_lens > 1) | (m.values["seq_lens"] == 1)
        verifies = decodes & ((accepted > 1) | (m.query_lens > 1))
        behind = verifies & np.maximum.accumulate(prefills)
        expected = "rows that verify drafts before prefills"
        yield from m.first("row order", behind, expected, "one behind")
    elif drafts is not None:
        wrong = decodes & (accepted > 1) & (drafts < 0)
        expected = "0 or more, as {} tokens were accepted"
        yield from m.first(name_of_drafts, wrong, expected, drafts, accepted)


def _row_order(m: GroupMetadata) -> Iterator[Breach]:
    builders = [builder for builder in m.builders if _wants_context_first(builder)]
    if m.pcp or not builders:
        return
    threshold = max(getattr(b, "reorder_batch_threshold", 1) or 1 for b in builders)
    prefills = np.maximum.accumulate(m.query_lens > threshold) & (m.query_lens > 0)
    with_context = m.values["seq_lens"] > m.query_lens
    behind = prefills & with_context & np.maximum.accumulate(prefills & ~with_context)
    expected = "prefills with context before those without"
    yield from m.first("row order", behind, expected, "one behind")


def _wants_context_first(builder: Any) -> bool:
    """Whether it takes the first prefills to be all those that have a context."""
    mla = _is_a(builder, "MLACommonMetadataBuilder", "SparseMLACommonMetadataBuilder")
    if mla is None:
        return _is_a(builder, "AiterFlashAttentionMetadataBuilder") is not None
    prefill = sys.modules[mla.__module__].MLACommonPrefillMetadata
    # A sparse one without a prefill backend leaves contexts to the decode kernels.
    return (
        "prefill_tokens_with_context" in prefill.ChunkedContextMetadata.__annotations__
        and getattr(builder, "_prefill_backend", prefill) is not None
    )


def _is_a(builder: Any, *names: str) -> type | None:
    """Its class of such a name; told by the name, so that no backend is imported."""
    classes = type(builder).__mro__
    return next((cls for cls in classes if cls.__name__ in names), None)


def _block_table(m: GroupMetadata) -> Iterator[Breach]:
    if (cache := m.token_cache or m.state_cache) is None:
        return
    name, table = "block_table_tensor", m.values["block_table_tensor"]
    needed, columns = cache.columns(m.values["seq_lens"]), m.tensors[name].shape[1]
    short = (needed > columns) & (m.is_dummy is False)
    yield from m.first(name, short, "{} columns or more", columns, needed)
    outside = (table < 0) | (table >= cache.num_blocks)
    outside &= np.arange(table.shape[1]) < needed[:, None]
    yield from m.first_entry(outside, f"blocks 0 to {cache.num_blocks - 1}")


def _slot_mapping(m: GroupMetadata) -> Iterator[Breach]:
    if (cache := m.token_cache) is None:
        return
    name, slots = "slot_mapping", m.values["slot_mapping"]
    if len(slots) < m.num_actual_tokens:
        yield m.breach(name, None, f"{m.num_actual_tokens} entries or more", len(slots))
    if not m.pcp:
        slots = slots[: m.num_actual_tokens]
    for token in np.flatnonzero((slots < PAD_SLOT_ID) | (slots >= cache.num_slots))[:1]:
        ends = m.values["query_start_loc_cpu"][1:]
        row = int(np.searchsorted(ends, token, side="right"))
        of_row = None if m.pcp or row == m.num_reqs else row
        expected = f"slots 0 to {cache.num_slots - 1}, or {PAD_SLOT_ID}"
        yield m.breach(name, of_row, expected, slots[token])


def _padding(m: GroupMetadata) -> Iterator[Breach]:
    if m.pcp:
        return
    neutral = {
        "seq_lens": 0,
        "seq_lens_cpu_upper_bound": 0,
        "is_prefilling": False,
        "num_accepted_tokens": 1,
        "num_decode_draft_tokens_cpu": -1,
    }
    for name, value in neutral.items():
        values = m.values.get(name, np.full(m.num_reqs, value))
        wrong = m.is_padding & (values != value)
        yield from m.first(name, wrong, f"{value}, as it is padding", values)
    if m.token_cache:
        slots = m.values["slot_mapping"][m.num_tokens : m.num_actual_tokens]
        for slot in slots[slots != PAD_SLOT_ID][:1]:
            expected = f"{PAD_SLOT_ID} for tokens of no row"
            yield m.breach("slot_mapping", None, expected, slot)


def _rows_without_state(m: GroupMetadata) -> Iterator[Breach]:
    """Such a row's state is written too: to block 0, which is nobody's."""
    if m.state_cache is None:
        return
    seq_lens, table = m.values["seq_lens"], m.values["block_table_tensor"]
    columns = max(m.state_cache.columns(seq_lens.max()), 1 + m.num_speculative_tokens)
    table, without = table[:, :columns], m.is_padding
    if m.is_dummy and (seq_lens <= m.query_lens).all():
        # A warm-up may hand out blocks, the first ones in order, one to a row.
        handed_out = table[:, 0] == np.arange(1, m.num_reqs + 1)
        without = without | ~handed_out | table[:, 1:].any(axis=1)
    written = without[:, None] & (table != 0)
    yield from m.first_entry(written, "block 0, as the row is padding or a dummy")


RULES = (
    _query_start_loc,
    _num_actual_tokens,
    _max_query_len,
    _max_seq_len,
    _seq_lens_cpu_upper_bound,
    _is_prefilling,
    _speculative_tensors,
    _accepted_tokens,
    _row_order,
    _block_table,
    _slot_mapping,
    _padding,
    _rows_without_state,
)
