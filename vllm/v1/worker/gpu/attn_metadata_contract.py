# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Check, where Model Runner V2 builds attention metadata, what backends rely on.

VLLM_CHECK_ATTN_METADATA=1 turns it on. Each build then copies lengths, block tables and
slot mappings to the host: it is for finding faults, not for serving.

A rule is a function of what one KV cache group is about to get. It yields a finding for
each field that breaks it: field, row, what was expected, what was found.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from vllm.v1.kv_cache_interface import AttentionSpec, CrossAttentionSpec, MambaSpec

P = ParamSpec("P")
R = TypeVar("R")

ENABLED = os.environ.get("VLLM_CHECK_ATTN_METADATA") == "1"
PAD_SLOT_ID = -1


@dataclass(frozen=True)
class Breach:
    """A field that is not what the attention backend takes for granted."""

    group: int | None
    """The KV cache group; None for layers without a KV cache."""
    kind: str
    """The name of the layers' attention backend."""
    layer: str
    """The first layer that would get it."""
    field: str
    row: int | None
    """The first such request's row in the batch; None when no row is to blame."""
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
        self.breaches = tuple(breaches)
        super().__init__(
            "attention metadata breaks its contract with the attention backends "
            "(VLLM_CHECK_ATTN_METADATA=0 turns this check off):\n"
            + "\n".join(map(str, breaches))
        )


def on_breaches(breaches: Sequence[Breach]) -> None:
    """What is done about the breaches of one build, when there are any."""
    raise AttnMetadataError(breaches)


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
        _check(_of_arguments(bound.arguments))
        return build(*args, **kwargs)

    return checked_build


def check_metadata(
    common_attn_metadata: Any, attn_groups: Sequence[Any], for_cudagraph_capture: bool
) -> None:
    """Check a CommonAttentionMetadata of layers that have no KV cache."""
    if ENABLED and attn_groups:
        builders = [group.get_metadata_builder(0) for group in attn_groups]
        common = {name: getattr(common_attn_metadata, name) for name in _COMMON}
        _check(
            [_Metadata(None, attn_groups, builders, for_cudagraph_capture, **common)]
        )


def _check(groups: Sequence["_Metadata"]) -> None:
    if not groups or (groups[0].seq_lens.is_cuda and _is_capturing()):
        return
    breaches = [breach for group in groups for breach in group.breaches(_malformed)]
    if not breaches:
        _copy_to_host(groups)
        breaches = [breach for group in groups for breach in group.breaches(*RULES)]
    if breaches:
        on_breaches(breaches)


def _is_capturing() -> bool:
    # Nothing can be copied to the host then.
    return torch.cuda.is_current_stream_capturing()


_Finding = tuple[str, int | None, Any, Any]


@dataclass
class _Cache:
    """The KV cache of a group, and where a batch reads and writes it."""

    block_table: torch.Tensor
    """[rows, columns]"""
    slot_mapping: torch.Tensor
    """[tokens]"""
    num_blocks: int
    """In the block table's unit, which may be smaller than the manager's."""
    tokens_per_column: int
    num_slots: int


@dataclass
class _Metadata:
    """What the builders of one KV cache group are about to get.

    Names, shapes and units are those of vLLM's CommonAttentionMetadata.
    """

    group: int | None
    attn_groups: Sequence[Any]
    builders: Sequence[Any]
    for_cudagraph_capture: bool
    num_reqs: int
    num_actual_tokens: int
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    max_query_len: int
    seq_lens: torch.Tensor
    max_seq_len: int
    seq_lens_cpu_upper_bound: torch.Tensor | None
    is_prefilling: torch.Tensor | None = None
    speculative: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """num_accepted_tokens, num_decode_draft_tokens_cpu: those that are not None."""
    cache: _Cache | None = None
    host: dict[str, np.ndarray] = field(default_factory=dict)
    """Values by name. What has not an entry for each row is left out."""
    is_dummy: bool = False
    """Nothing of the batch is kept, and its rows own no blocks."""

    def breaches(
        self, *rules: Callable[["_Metadata"], Iterator[_Finding]]
    ) -> Iterator[Breach]:
        first = self.attn_groups[0]
        kind, layer = first.backend.get_name(), first.layer_names[0]
        for rule in rules:
            for name, row, expected, found in rule(self):
                row = None if row is None else int(row)
                yield Breach(
                    self.group, kind, layer, name, row, str(expected), str(found)
                )

    @property
    def vllm_config(self) -> Any:
        return self.builders[0].vllm_config

    @property
    def num_speculative_tokens(self) -> int:
        return self.vllm_config.num_speculative_tokens

    @property
    def max_model_len(self) -> int:
        return self.vllm_config.model_config.max_model_len

    @property
    def unconfirmed_tokens(self) -> int:
        """As many of a row's tokens the host may count that the device has rejected."""
        config = self.vllm_config
        batches = getattr(config, "max_concurrent_batches", None)
        if batches is None:
            batches = 1 + config.parallel_config.pipeline_parallel_size
        # One more for the step that a draft starts from.
        return self.num_speculative_tokens * (batches + 1)

    @property
    def pcp(self) -> bool:
        """Rows are pieces of requests, and slots are those of other ranks too."""
        return self.vllm_config.parallel_config.prefill_context_parallel_size > 1

    @property
    def keeps_state(self) -> bool:
        """The layers read and write a state through the block table."""
        return isinstance(self.attn_groups[0].kv_cache_spec, MambaSpec)

    @property
    def writes_slots(self) -> bool:
        """The layers write a slot for each token, and read a block for each context."""
        spec = self.attn_groups[0].kv_cache_spec
        return (
            self.cache is not None
            and isinstance(spec, AttentionSpec)
            # Its builder makes slots of its own, of the encoder's tokens.
            and not isinstance(spec, CrossAttentionSpec)
            and getattr(spec, "uses_slot_mapping", True)
        )

    @property
    def num_tokens(self) -> int:
        """The tokens that belong to a row."""
        return int(self.host["query_start_loc_cpu"][-1])

    @property
    def query_lens(self) -> np.ndarray:
        return np.diff(self.host["query_start_loc_cpu"])

    @property
    def num_rows(self) -> int:
        """The rows up to the last one with tokens; all where there are no tokens."""
        filled = np.flatnonzero(self.query_lens)
        return int(filled[-1]) + 1 if filled.size else self.num_reqs

    def columns(self, seq_lens: np.ndarray) -> np.ndarray:
        """How many columns of the block table sequences of these lengths take up."""
        assert self.cache is not None
        return -(-seq_lens // self.cache.tokens_per_column)

    def reads(self, *names: str) -> bool:
        """Whether the code of a builder mentions one of the names."""
        return any(set(names) & _names_in(type(builder)) for builder in self.builders)


_COMMON = (
    "num_reqs",
    "num_actual_tokens",
    "query_start_loc",
    "query_start_loc_cpu",
    "max_query_len",
    "seq_lens",
    "max_seq_len",
    "seq_lens_cpu_upper_bound",
)


@functools.cache
def _names_in(builder: type) -> frozenset[str]:
    members = [member for cls in builder.__mro__ for member in vars(cls).values()]
    codes = [m.__code__ for m in members if inspect.isfunction(m)]
    return frozenset(name for c in codes for name in c.co_names + c.co_varnames)


def _of_arguments(arguments: Mapping[str, Any]) -> list[_Metadata]:
    """What each KV cache group is to get of the arguments of `build_attn_metadata`."""
    num_reqs = arguments["num_reqs"]
    bound = arguments["seq_lens_cpu_upper_bound"]
    return [
        _Metadata(
            group=index,
            attn_groups=attn_groups,
            builders=_builders(arguments, attn_groups),
            for_cudagraph_capture=arguments["for_cudagraph_capture"],
            num_reqs=num_reqs,
            num_actual_tokens=arguments["num_tokens"],
            query_start_loc=arguments["query_start_loc_gpu"],
            query_start_loc_cpu=arguments["query_start_loc_cpu"],
            max_query_len=arguments["max_query_len"],
            seq_lens=arguments["seq_lens"][:num_reqs],
            max_seq_len=arguments["max_seq_len"],
            seq_lens_cpu_upper_bound=None if bound is None else bound[:num_reqs],
            is_prefilling=_is_prefilling(arguments, index),
            speculative=_speculative(arguments, attn_groups),
            cache=_cache(arguments, index, attn_groups),
        )
        for index, attn_groups in enumerate(arguments["attn_groups"])
        if attn_groups
    ]


def _builders(arguments: Mapping[str, Any], attn_groups: Sequence[Any]) -> list[Any]:
    ubatch_idx = arguments.get("ubatch_idx", 0)
    return [group.get_metadata_builder(ubatch_idx) for group in attn_groups]


def _is_prefilling(arguments: Mapping[str, Any], index: int) -> torch.Tensor | None:
    extra: Mapping[str, Any] = {}
    if model_specific := arguments["model_specific_attn_metadata"]:
        num_reqs = arguments["num_reqs"]
        extra = model_specific.get_extra_common_attn_kwargs(index, num_reqs)
    return extra.get("is_prefilling", arguments.get("is_prefilling"))


def _speculative(
    arguments: Mapping[str, Any], attn_groups: Sequence[Any]
) -> dict[str, torch.Tensor]:
    model_specific = arguments["model_specific_attn_metadata"]
    if model_specific is None or arguments["for_cudagraph_capture"]:
        return {}
    tensors = {}
    for builder in _builders(arguments, attn_groups):
        extra = model_specific.get_extra_attn_kwargs(builder, arguments["num_reqs"])
        for name in "num_accepted_tokens", "num_decode_draft_tokens_cpu":
            if extra.get(name) is not None:
                tensors[name] = extra[name]
    return tensors


def _cache(
    arguments: Mapping[str, Any], index: int, attn_groups: Sequence[Any]
) -> _Cache:
    kv_cache_config = arguments["kv_cache_config"]
    block_size = kv_cache_config.kv_cache_groups[index].kv_cache_spec.block_size
    builder, spec = _builders(arguments, attn_groups)[0], attn_groups[0].kv_cache_spec
    unit = block_size
    # With it, attention groups map the manager's blocks to those of kernels themselves.
    if not hasattr(attn_groups[0], "kernel_block_size"):
        unit = getattr(builder, "kernel_block_size", None)
        unit = unit or builder.kv_cache_spec.block_size
    shards = builder.vllm_config.parallel_config.decode_context_parallel_size
    if isinstance(spec, MambaSpec) or not getattr(spec, "dcp_sharded", True):
        shards = 1
    return _Cache(
        block_table=arguments["block_tables"][index],
        slot_mapping=arguments["slot_mappings"][index],
        num_blocks=kv_cache_config.num_blocks * max(1, block_size // unit),
        tokens_per_column=unit * shards,
        num_slots=kv_cache_config.num_blocks * block_size,
    )


def _copy_to_host(groups: Sequence[_Metadata]) -> None:
    """Read the values: first the lengths, then as much of the cache as they tell of."""
    _copy(groups, _per_row)
    _copy(groups, _of_cache)
    slots = [group.host["slot_mapping"] for group in groups if group.writes_slots]
    is_dummy = bool(slots) and all((slot == PAD_SLOT_ID).all() for slot in slots)
    for group in groups:
        group.is_dummy = is_dummy


def _copy(
    groups: Sequence[_Metadata],
    tensors_of: Callable[[_Metadata], Mapping[str, torch.Tensor]],
) -> None:
    wanted = [
        (group, name, tensor)
        for group in groups
        for name, tensor in tensors_of(group).items()
    ]
    # One copy for all of a device, since each waits for the device.
    by_device: dict[torch.device, list[tuple[_Metadata, str, torch.Tensor]]] = {}
    for each in wanted:
        by_device.setdefault(each[2].device, []).append(each)
    for on_device in by_device.values():
        flat = [tensor.reshape(-1).to(torch.int64) for _, _, tensor in on_device]
        values = torch.cat(flat).cpu().numpy()
        for group, name, tensor in on_device:
            group.host[name] = values[: tensor.numel()].reshape(tuple(tensor.shape))
            values = values[tensor.numel() :]


def _per_row(m: _Metadata) -> dict[str, torch.Tensor]:
    tensors = {
        "seq_lens": m.seq_lens,
        "seq_lens_cpu_upper_bound": m.seq_lens_cpu_upper_bound,
        "is_prefilling": m.is_prefilling,
        **m.speculative,
    }
    return {
        "query_start_loc": m.query_start_loc,
        "query_start_loc_cpu": m.query_start_loc_cpu,
        **{k: t for k, t in tensors.items() if t is not None and len(t) == m.num_reqs},
    }


def _of_cache(m: _Metadata) -> dict[str, torch.Tensor]:
    if m.cache is None:
        return {}
    columns = int(m.columns(m.host["seq_lens"]).max(initial=1))
    if m.keeps_state:
        columns = max(columns, 1 + m.num_speculative_tokens)
    return {
        "block_table_tensor": m.cache.block_table[:, :columns],
        "slot_mapping": m.cache.slot_mapping,
    }


def _first(wrong: np.ndarray) -> np.ndarray:
    """The index of the first True, if there is one."""
    return np.flatnonzero(wrong)[:1]


def _malformed(m: _Metadata) -> Iterator[_Finding]:
    """What has to be right before rows can be told apart."""
    lengths = {
        "query_start_loc": (m.query_start_loc, m.num_reqs + 1),
        "query_start_loc_cpu": (m.query_start_loc_cpu, m.num_reqs + 1),
        "seq_lens": (m.seq_lens, m.num_reqs),
    }
    if m.cache is not None:
        lengths["block_table_tensor"] = (m.cache.block_table, m.num_reqs)
    for name, (tensor, entries) in lengths.items():
        if len(tensor) != entries:
            yield name, None, f"{entries} entries", len(tensor)


def _query_start_loc(m: _Metadata) -> Iterator[_Finding]:
    device, host = m.host["query_start_loc"], m.host["query_start_loc_cpu"]
    for name, values in ("query_start_loc", device), ("query_start_loc_cpu", host):
        if values[0] != 0:
            yield name, 0, 0, values[0]
        for row in _first(np.diff(values) < 0):
            yield name, row, f"its end at {values[row]} or later", values[row + 1]
    speculative_config = m.vllm_config.speculative_config
    differs = device != host
    if getattr(speculative_config, "enable_adaptive_verification", False):
        # The device decides which row gets how many of the tokens.
        differs[:-1] = False
    for row in _first(differs):
        yield "query_start_loc", row, f"{host[row]}, as on the host", device[row]


def _num_actual_tokens(m: _Metadata) -> Iterator[_Finding]:
    graphs = m.vllm_config.compilation_config.cudagraph_mode
    # In the batch of a FULL graph, some tokens belong to no row.
    padded = m.for_cudagraph_capture or graphs.has_full_cudagraphs()
    excess = m.num_actual_tokens - m.num_tokens
    if excess < 0 or (excess > 0 and not padded):
        expected = f"{m.num_tokens}, the end of query_start_loc"
        yield "num_actual_tokens", None, expected, m.num_actual_tokens


def _max_query_len(m: _Metadata) -> Iterator[_Finding]:
    device = np.diff(m.host["query_start_loc"])
    longest = np.maximum(m.query_lens, device)
    for row in _first(longest > m.max_query_len):
        yield "max_query_len", row, f"{longest[row]} or more", m.max_query_len


def _max_seq_len(m: _Metadata) -> Iterator[_Finding]:
    seq_lens = m.host["seq_lens"]
    row = seq_lens.argmax()
    if m.max_seq_len < seq_lens[row]:
        yield "max_seq_len", row, f"{seq_lens[row]} or more", m.max_seq_len
    if m.for_cudagraph_capture or m.is_dummy:
        return
    longest = seq_lens[row] + m.unconfirmed_tokens
    if "seq_lens_cpu_upper_bound" in m.host:
        longest = m.host["seq_lens_cpu_upper_bound"].max()
    # A draft's may be that of its last step.
    longest = min(longest + m.num_speculative_tokens, m.max_model_len)
    if m.max_seq_len > longest:
        yield "max_seq_len", None, f"{longest} or less", m.max_seq_len
    elif m.writes_slots:
        assert m.cache is not None
        columns = m.cache.block_table.shape[1]
        if m.columns(np.array([m.max_seq_len])) > columns:
            expected = f"no more than fits in {columns} columns of the block table"
            yield "max_seq_len", None, expected, m.max_seq_len


def _seq_lens_cpu_upper_bound(m: _Metadata) -> Iterator[_Finding]:
    name, bound = "seq_lens_cpu_upper_bound", m.seq_lens_cpu_upper_bound
    if bound is None:
        yield name, None, "a tensor on the CPU", None
    elif bound.device.type != "cpu":
        yield name, None, "a tensor on the CPU", f"one on {bound.device}"
    elif len(bound) != m.num_reqs:
        yield name, None, f"{m.num_reqs} entries", len(bound)
    else:
        yield from _bounds(m, name, m.host[name], m.host["seq_lens"])


def _bounds(
    m: _Metadata, name: str, bound: np.ndarray, seq_lens: np.ndarray
) -> Iterator[_Finding]:
    for row in _first(bound < seq_lens):
        yield name, row, f"{seq_lens[row]} or more, its seq_len", bound[row]
    if m.for_cudagraph_capture or m.is_dummy or m.pcp:
        return
    # Rows with drafts are bounded, all others are counted.
    slack = np.full(m.num_reqs, m.unconfirmed_tokens)
    slack[m.host.get("is_prefilling", np.zeros(m.num_reqs)) != 0] = 0
    highest = np.minimum(seq_lens + slack, m.max_model_len)
    for row in _first(bound > highest):
        yield name, row, f"{highest[row]} or less, its seq_len with drafts", bound[row]


def _is_prefilling_is_there(m: _Metadata) -> Iterator[_Finding]:
    if m.keeps_state and m.reads("is_prefilling"):
        found = None if m.is_prefilling is None else len(m.is_prefilling)
        if found != m.num_reqs:
            yield "is_prefilling", None, f"{m.num_reqs} entries", found


def _speculative_tensors(m: _Metadata) -> Iterator[_Finding]:
    most = m.num_speculative_tokens
    legal = {
        "num_accepted_tokens": (1, most + 1),
        "num_decode_draft_tokens_cpu": (-1, most),
    }
    for name, tensor in m.speculative.items():
        if most == 0:
            yield (
                name,
                None,
                "None, without speculative decoding",
                f"{len(tensor)} entries",
            )
        elif len(tensor) != m.num_reqs:
            yield name, None, f"{m.num_reqs} entries", len(tensor)
        else:
            lowest, highest = legal[name]
            values = m.host[name]
            for row in _first((values < lowest) | (values > highest)):
                yield name, row, f"{lowest} to {highest}", values[row]


def _block_table(m: _Metadata) -> Iterator[_Finding]:
    if not (m.writes_slots or m.keeps_state):
        return
    assert m.cache is not None
    table, columns = m.host["block_table_tensor"], m.cache.block_table.shape[1]
    needed = m.columns(m.host["seq_lens"])
    for row in _first(needed > columns):
        if not m.is_dummy:
            expected = f"{needed[row]} columns or more"
            yield "block_table_tensor", row, expected, columns
    read = np.arange(table.shape[1]) < needed[:, None]
    outside = read & ((table < 0) | (table >= m.cache.num_blocks))
    for row in _first(outside.any(axis=1)):
        expected = f"blocks 0 to {m.cache.num_blocks - 1}"
        yield "block_table_tensor", row, expected, table[row][outside[row]][0]


def _slot_mapping(m: _Metadata) -> Iterator[_Finding]:
    if not m.writes_slots:
        return
    assert m.cache is not None
    slots, highest = m.host["slot_mapping"], m.cache.num_slots - 1
    if len(slots) < m.num_actual_tokens:
        expected = f"{m.num_actual_tokens} entries or more"
        yield "slot_mapping", None, expected, len(slots)
        return
    for token in _first((slots < PAD_SLOT_ID) | (slots > highest)):
        ends = m.host["query_start_loc_cpu"][1:]
        row = None
        if token < m.num_tokens and not m.pcp:
            row = np.searchsorted(ends, token, side="right")
        expected = f"slots 0 to {highest}, or {PAD_SLOT_ID}"
        yield "slot_mapping", row, expected, slots[token]


def _padding(m: _Metadata) -> Iterator[_Finding]:
    if m.pcp:
        return
    neutral = {
        "seq_lens": 0,
        "seq_lens_cpu_upper_bound": 0,
        "is_prefilling": 0,
        "num_accepted_tokens": 1,
        "num_decode_draft_tokens_cpu": -1,
    }
    for name in neutral.keys() & m.host.keys():
        for row in _first(m.host[name][m.num_rows :] != neutral[name]):
            row += m.num_rows
            yield name, row, f"{neutral[name]}, as it is padding", m.host[name][row]
    if m.writes_slots:
        slots = m.host["slot_mapping"][m.num_tokens : m.num_actual_tokens]
        for token in _first(slots != PAD_SLOT_ID):
            expected = f"{PAD_SLOT_ID} for tokens of no row"
            yield "slot_mapping", None, expected, slots[token]


def _rows_without_state(m: _Metadata) -> Iterator[_Finding]:
    """State is written wherever the block table says, so such rows need block 0."""
    if not m.keeps_state:
        return
    table = m.host["block_table_tensor"]
    owner = np.arange(m.num_reqs) < m.num_rows
    if m.is_dummy and (m.host["seq_lens"] <= m.query_lens).all():
        # A warm-up may hand out blocks, the first ones in order.
        if (table[:, 0] == np.arange(1, m.num_reqs + 1)).all():
            return
        owner[:] = False
    for row in _first(~owner & table.any(axis=1)):
        expected = "0, as the row is padding or a dummy"
        yield "block_table_tensor", row, expected, table[row][table[row] != 0][0]


def _row_order(m: _Metadata) -> Iterator[_Finding]:
    """Some builders take the first prefills, or the last, to be those with context."""
    if not m.reads("prefill_tokens_with_context", "split_decodes_prefills_and_extends"):
        return
    threshold = max(getattr(b, "reorder_batch_threshold", 1) or 1 for b in m.builders)
    prefill = np.maximum.accumulate(m.query_lens > threshold)
    context = m.host["seq_lens"] - m.query_lens
    fresh = prefill & (context <= 0) & (m.query_lens > 0)
    behind_fresh = np.maximum.accumulate(fresh)
    for row in _first(behind_fresh & (context > 0)):
        expected = "prefills with context before those without"
        yield "row order", row, expected, f"{context[row]} computed tokens"


RULES = (
    _query_start_loc,
    _num_actual_tokens,
    _max_query_len,
    _max_seq_len,
    _seq_lens_cpu_upper_bound,
    _is_prefilling_is_there,
    _speculative_tensors,
    _block_table,
    _slot_mapping,
    _padding,
    _rows_without_state,
    _row_order,
)
