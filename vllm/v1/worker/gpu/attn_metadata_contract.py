# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Check, where Model Runner V2 builds attention metadata, what backends rely on.

VLLM_CHECK_ATTN_METADATA=1 turns it on. Each build then copies lengths, block tables and
slot mappings to the host: it is for finding faults, not for serving.

A rule is a function of what one KV cache group is about to get. It yields each field
that breaks it, with the first such row, what was expected, and what was found.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from vllm.v1.attention.backends.mamba_attn import BaseMambaAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import AttentionSpec, CrossAttentionSpec, MambaSpec

P = ParamSpec("P")
R = TypeVar("R")
Finding = tuple[str, int | None, Any, Any]

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
    metadata = Metadata(
        group=None,
        attn_groups=attn_groups,
        builders=builders,
        vllm_config=builders[0].vllm_config,
        for_cudagraph_capture=for_cudagraph_capture,
        num_reqs=common.num_reqs,
        num_actual_tokens=common.num_actual_tokens,
        query_start_loc=common.query_start_loc,
        query_start_loc_cpu=common.query_start_loc_cpu,
        max_query_len=common.max_query_len,
        seq_lens=common.seq_lens,
        max_seq_len=common.max_seq_len,
        seq_lens_cpu_upper_bound=common.seq_lens_cpu_upper_bound,
    )
    _check([metadata])


def _check(groups: Sequence["Metadata"]) -> None:
    if not groups or not groups[0].num_reqs:
        return
    if groups[0].seq_lens.is_cuda and torch.cuda.is_current_stream_capturing():
        # Nothing can be copied to the host now.
        return
    breaches = [breach for group in groups for breach in group.breaches(_malformed)]
    if not breaches:
        _read(groups)
        breaches = [breach for group in groups for breach in group.breaches(*RULES)]
    if breaches:
        on_breaches(breaches)


@dataclass
class Cache:
    """The KV cache of a group, and where a batch reads and writes it."""

    block_table: torch.Tensor
    """[rows, columns]"""
    slot_mapping: torch.Tensor
    """[tokens]"""
    num_blocks: int
    """Counted as the block table counts them."""
    tokens_per_column: int
    num_slots: int

    def columns(self, seq_lens: np.ndarray) -> np.ndarray:
        """How many columns of the block table sequences of these lengths take up."""
        return -(-seq_lens // self.tokens_per_column)


@dataclass
class Metadata:
    """What the builders of one KV cache group are about to get.

    Names, shapes and units are those of vLLM's CommonAttentionMetadata.
    """

    group: int | None
    attn_groups: Sequence[Any]
    builders: Sequence[Any]
    vllm_config: Any
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
    cache: Cache | None = None
    host: dict[str, np.ndarray] = field(default_factory=dict)
    """The values, without those of fields that have not one for each row."""
    is_dummy: bool = False
    """Nothing of the batch is kept, and its rows own no blocks."""

    def breaches(
        self, *rules: Callable[["Metadata"], Iterator[Finding]]
    ) -> Iterator[Breach]:
        first = self.attn_groups[0]
        kind, layer = first.backend.get_name(), first.layer_names[0]
        for rule in rules:
            for name, row, *values in rule(self):
                row = None if row is None else int(row)
                yield Breach(self.group, kind, layer, name, row, *map(str, values))

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
    def query_lens(self) -> np.ndarray:
        return np.diff(self.host["query_start_loc_cpu"])

    @property
    def prefilling(self) -> np.ndarray:
        return self.host.get("is_prefilling", np.zeros(self.num_reqs)) != 0

    @property
    def num_tokens(self) -> int:
        """The tokens that belong to a row."""
        return int(self.host["query_start_loc_cpu"][-1])

    @property
    def num_rows(self) -> int:
        """The rows up to the last one with tokens; all where there are no tokens."""
        filled = np.flatnonzero(self.query_lens)
        return int(filled[-1]) + 1 if filled.size else self.num_reqs

    def reads(self, *names: str) -> bool:
        """Whether the code of a builder mentions one of the names."""
        return any(set(names) & _names_in(type(builder)) for builder in self.builders)


@functools.cache
def _names_in(builder: Any) -> frozenset[str]:
    members = [member for cls in builder.__mro__ for member in vars(cls).values()]
    codes = [member.__code__ for member in members if inspect.isfunction(member)]
    return frozenset(name for c in codes for name in c.co_names + c.co_varnames)


def _groups(arguments: Mapping[str, Any]) -> list[Metadata]:
    """What each KV cache group is to get of the arguments of `build_attn_metadata`."""
    num_reqs, bound = arguments["num_reqs"], arguments["seq_lens_cpu_upper_bound"]
    all_builders = [
        [group.get_metadata_builder(arguments.get("ubatch_idx", 0)) for group in groups]
        for groups in arguments["attn_groups"]
    ]
    # Some builders keep but parts of it.
    configs = [getattr(b, "vllm_config", None) for bs in all_builders for b in bs]
    vllm_config = next((config for config in configs if config is not None), None)
    made = []
    for index, builders in enumerate(all_builders):
        if not builders:
            continue
        is_prefilling, speculative = _of_model(arguments, index, builders)
        made.append(
            Metadata(
                group=index,
                attn_groups=arguments["attn_groups"][index],
                builders=builders,
                vllm_config=vllm_config,
                for_cudagraph_capture=arguments["for_cudagraph_capture"],
                num_reqs=num_reqs,
                num_actual_tokens=arguments["num_tokens"],
                query_start_loc=arguments["query_start_loc_gpu"],
                query_start_loc_cpu=arguments["query_start_loc_cpu"],
                max_query_len=arguments["max_query_len"],
                seq_lens=arguments["seq_lens"][:num_reqs],
                max_seq_len=arguments["max_seq_len"],
                seq_lens_cpu_upper_bound=None if bound is None else bound[:num_reqs],
                is_prefilling=is_prefilling,
                speculative=speculative,
                cache=_cache(arguments, index, builders[0], vllm_config),
            )
        )
    return made


def _of_model(
    arguments: Mapping[str, Any], index: int, builders: Sequence[Any]
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """is_prefilling, and the tensors of speculative decoding."""
    is_prefilling = arguments.get("is_prefilling")
    model_specific = arguments["model_specific_attn_metadata"]
    if model_specific is None:
        return is_prefilling, {}
    num_reqs = arguments["num_reqs"]
    kwargs: dict[str, Any] = {}
    if not arguments["for_cudagraph_capture"]:
        for builder in builders:
            kwargs |= model_specific.get_extra_attn_kwargs(builder, num_reqs)
    names = "num_accepted_tokens", "num_decode_draft_tokens_cpu"
    common = model_specific.get_extra_common_attn_kwargs(index, num_reqs)
    return (
        common.get("is_prefilling", is_prefilling),
        {name: kwargs[name] for name in names if kwargs.get(name) is not None},
    )


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
        block_table=arguments["block_tables"][index],
        slot_mapping=arguments["slot_mappings"][index],
        num_blocks=num_blocks * max(1, block_size // unit),
        tokens_per_column=unit * shards,
        num_slots=num_blocks * block_size,
    )


def _read(groups: Sequence[Metadata]) -> None:
    """Copy the values: the lengths first, then as much of the cache as they tell of."""
    for tensors_of in _rows, _places:
        wanted = [(m, name, t) for m in groups for name, t in tensors_of(m).items()]
        # One copy for all, since each waits for the device.
        device = groups[0].seq_lens.device
        flat = [t.reshape(-1).to(device, torch.int64) for _, _, t in wanted]
        values = torch.cat(flat).cpu().split([len(t) for t in flat]) if flat else ()
        for (m, name, tensor), value in zip(wanted, values, strict=True):
            m.host[name] = value.view(tensor.shape).numpy()
    slots = [m.host["slot_mapping"] for m in groups if m.token_cache]
    parallel_config = groups[0].vllm_config.parallel_config
    if slots and parallel_config.decode_context_parallel_size == 1:
        # Otherwise a rank may write none of a batch's tokens.
        is_dummy = all((slot == PAD_SLOT_ID).all() for slot in slots)
        for m in groups:
            m.is_dummy = is_dummy


def _rows(m: Metadata) -> dict[str, torch.Tensor]:
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


def _places(m: Metadata) -> dict[str, torch.Tensor]:
    if m.cache is None:
        return {}
    columns = int(m.cache.columns(m.host["seq_lens"]).max(initial=1))
    if m.state_cache:
        columns = max(columns, 1 + m.num_speculative_tokens)
    return {
        "block_table_tensor": m.cache.block_table[:, :columns],
        "slot_mapping": m.cache.slot_mapping,
    }


def _first(wrong: np.ndarray) -> np.ndarray:
    """Where the first True is, if there is one."""
    return np.flatnonzero(wrong)[:1]


def _malformed(m: Metadata) -> Iterator[Finding]:
    """What has to be right before rows can be told apart."""
    lengths = {
        "query_start_loc": (m.query_start_loc, m.num_reqs + 1),
        "query_start_loc_cpu": (m.query_start_loc_cpu, m.num_reqs + 1),
        "seq_lens": (m.seq_lens, m.num_reqs),
    }
    if m.cache is not None:
        lengths["block_table_tensor"] = m.cache.block_table, m.num_reqs
    for name, (tensor, rows) in lengths.items():
        if len(tensor) != rows:
            yield name, None, f"{rows} entries", len(tensor)


def _query_start_loc(m: Metadata) -> Iterator[Finding]:
    device, host = m.host["query_start_loc"], m.host["query_start_loc_cpu"]
    for name, starts in ("query_start_loc", device), ("query_start_loc_cpu", host):
        if starts[0] != 0:
            yield name, 0, 0, starts[0]
        for row in _first(np.diff(starts) < 0):
            yield name, row, f"an end at {starts[row]} or later", starts[row + 1]
    differs = device != host
    speculative_config = m.vllm_config.speculative_config
    if getattr(speculative_config, "enable_adaptive_verification", False):
        # Which row gets how many of the tokens is decided on the device.
        differs[:-1] = False
    for row in _first(differs):
        yield "query_start_loc", row, f"{host[row]}, as on the host", device[row]


def _num_actual_tokens(m: Metadata) -> Iterator[Finding]:
    # A FULL CUDA graph has tokens that belong to no row.
    mode = m.vllm_config.compilation_config.cudagraph_mode
    padded = m.for_cudagraph_capture or mode.has_full_cudagraphs()
    excess = m.num_actual_tokens - m.num_tokens
    if excess < 0 or (excess > 0 and not padded):
        expected = f"{m.num_tokens}, the end of query_start_loc"
        yield "num_actual_tokens", None, expected, m.num_actual_tokens


def _max_query_len(m: Metadata) -> Iterator[Finding]:
    longest = np.maximum(m.query_lens, np.diff(m.host["query_start_loc"]))
    for row in _first(longest > m.max_query_len):
        yield "max_query_len", row, f"{longest[row]} or more", m.max_query_len


def _max_seq_len(m: Metadata) -> Iterator[Finding]:
    name, seq_lens = "max_seq_len", m.host["seq_lens"]
    row = seq_lens.argmax()
    if m.max_seq_len < seq_lens[row]:
        yield name, row, f"{seq_lens[row]} or more", m.max_seq_len
    if m.for_cudagraph_capture or m.is_dummy:
        return
    longest = seq_lens[row] + m.unconfirmed_tokens
    if "seq_lens_cpu_upper_bound" in m.host:
        longest = m.host["seq_lens_cpu_upper_bound"].max()
    # A draft's may cover all of its steps.
    longest = min(longest + m.num_speculative_tokens, m.max_model_len)
    if m.max_seq_len > longest:
        yield name, None, f"{longest} or less", m.max_seq_len
    elif m.token_cache:
        columns = m.token_cache.block_table.shape[1]
        if m.token_cache.columns(np.array(m.max_seq_len)) > columns:
            expected = f"no more than {columns} columns of the block table hold"
            yield name, None, expected, m.max_seq_len


def _seq_lens_cpu_upper_bound(m: Metadata) -> Iterator[Finding]:
    name, bound = "seq_lens_cpu_upper_bound", m.seq_lens_cpu_upper_bound
    if bound is None or bound.device.type != "cpu":
        found = "None" if bound is None else f"one on {bound.device}"
        yield name, None, "a tensor on the CPU", found
    if name not in m.host:
        if bound is not None:
            yield name, None, f"{m.num_reqs} entries", len(bound)
        return
    bounds, seq_lens = m.host[name], m.host["seq_lens"]
    for row in _first(bounds < seq_lens):
        yield name, row, f"{seq_lens[row]} or more, its seq_len", bounds[row]
    if m.for_cudagraph_capture or m.is_dummy or m.pcp:
        return
    highest = seq_lens + np.where(m.prefilling, 0, m.unconfirmed_tokens)
    highest = np.minimum(highest, m.max_model_len)
    for row in _first(bounds > highest):
        yield name, row, f"{highest[row]} or less, by its seq_len", bounds[row]


def _is_prefilling(m: Metadata) -> Iterator[Finding]:
    # Others get what does not count padding, and read it in no batch that has any.
    if m.state_cache and m.reads("is_prefilling") and "is_prefilling" not in m.host:
        found = None if m.is_prefilling is None else len(m.is_prefilling)
        yield "is_prefilling", None, f"{m.num_reqs} entries", found


def _speculative_tensors(m: Metadata) -> Iterator[Finding]:
    most = m.num_speculative_tokens
    lowest = {"num_accepted_tokens": 1, "num_decode_draft_tokens_cpu": -1}
    highest = {"num_accepted_tokens": most + 1, "num_decode_draft_tokens_cpu": most}
    for name, tensor in m.speculative.items():
        if most == 0:
            expected = "None, as nothing is speculative"
            yield name, None, expected, f"{len(tensor)} entries"
        elif name not in m.host:
            yield name, None, f"{m.num_reqs} entries", len(tensor)
        else:
            values = m.host[name]
            for row in _first((values < lowest[name]) | (values > highest[name])):
                yield name, row, f"{lowest[name]} to {highest[name]}", values[row]


def _accepted_tokens(m: Metadata) -> Iterator[Finding]:
    """A state is kept where only a row that verifies drafts looks for it."""
    accepted = m.host.get("num_accepted_tokens")
    if accepted is None or m.num_speculative_tokens == 0:
        return
    for row in _first(m.prefilling & (accepted != 1)):
        yield "num_accepted_tokens", row, "1, as it is a prefill", accepted[row]
    filled = m.query_lens > 0
    decodes = filled & ~m.prefilling
    if any(isinstance(b, BaseMambaAttentionMetadataBuilder) for b in m.builders):
        # These run what stands behind a prefill as one. A prefill of one token is a
        # decode to them when it has a state.
        prefills = filled & m.prefilling
        prefills &= (m.query_lens > 1) | (m.host["seq_lens"] == 1)
        verifies = decodes & ((accepted > 1) | (m.query_lens > 1))
        for row in _first(verifies & np.maximum.accumulate(prefills)):
            expected = "rows that verify drafts before prefills"
            yield "row order", row, expected, "one behind"
    elif "num_decode_draft_tokens_cpu" in m.host:
        drafts = m.host["num_decode_draft_tokens_cpu"]
        for row in _first(decodes & (accepted > 1) & (drafts < 0)):
            expected = f"0 or more, as {accepted[row]} tokens were accepted"
            yield "num_decode_draft_tokens_cpu", row, expected, drafts[row]


def _row_order(m: Metadata) -> Iterator[Finding]:
    """Some builders take the first prefills to be all those that have a context."""
    if not m.reads("prefill_tokens_with_context", "split_decodes_prefills_and_extends"):
        return
    threshold = max(getattr(b, "reorder_batch_threshold", 1) or 1 for b in m.builders)
    prefills = np.maximum.accumulate(m.query_lens > threshold) & (m.query_lens > 0)
    context = m.host["seq_lens"] - m.query_lens
    behind = np.maximum.accumulate(prefills & (context <= 0))
    for row in _first(behind & prefills & (context > 0)):
        expected = "prefills with context before those without"
        yield "row order", row, expected, f"one of {context[row]} tokens behind"


def _block_table(m: Metadata) -> Iterator[Finding]:
    if (cache := m.token_cache or m.state_cache) is None:
        return
    name, table = "block_table_tensor", m.host["block_table_tensor"]
    needed, columns = cache.columns(m.host["seq_lens"]), cache.block_table.shape[1]
    for row in _first((needed > columns) & (not m.is_dummy)):
        yield name, row, f"{needed[row]} columns or more", columns
    read = np.arange(table.shape[1]) < needed[:, None]
    outside = read & ((table < 0) | (table >= cache.num_blocks))
    for row in _first(outside.any(axis=1)):
        expected = f"blocks 0 to {cache.num_blocks - 1}"
        yield name, row, expected, table[row][outside[row]][0]


def _slot_mapping(m: Metadata) -> Iterator[Finding]:
    if (cache := m.token_cache) is None:
        return
    name, slots = "slot_mapping", m.host["slot_mapping"]
    if len(slots) < m.num_actual_tokens:
        yield name, None, f"{m.num_actual_tokens} entries or more", len(slots)
    if not m.pcp:
        slots = slots[: m.num_actual_tokens]
    for token in _first((slots < PAD_SLOT_ID) | (slots >= cache.num_slots)):
        ends = m.host["query_start_loc_cpu"][1:]
        row = int(np.searchsorted(ends, token, side="right"))
        expected = f"slots 0 to {cache.num_slots - 1}, or {PAD_SLOT_ID}"
        yield name, None if m.pcp or row == m.num_reqs else row, expected, slots[token]


def _padding(m: Metadata) -> Iterator[Finding]:
    if m.pcp:
        return
    neutral = {
        "seq_lens": 0,
        "seq_lens_cpu_upper_bound": 0,
        "is_prefilling": 0,
        "num_accepted_tokens": 1,
        "num_decode_draft_tokens_cpu": -1,
    }
    for name, value in neutral.items():
        values = m.host.get(name, np.empty(0))
        for row in m.num_rows + _first(values[m.num_rows :] != value):
            yield name, row, f"{value}, as it is padding", values[row]
    if m.token_cache:
        slots = m.host["slot_mapping"][m.num_tokens : m.num_actual_tokens]
        for token in _first(slots != PAD_SLOT_ID):
            expected = f"{PAD_SLOT_ID} for tokens of no row"
            yield "slot_mapping", None, expected, slots[token]


def _rows_without_state(m: Metadata) -> Iterator[Finding]:
    """Such a row's state is written too: to block 0, which is nobody's."""
    if m.state_cache is None:
        return
    table = m.host["block_table_tensor"]
    without = np.arange(m.num_reqs) >= m.num_rows
    if m.is_dummy and (m.host["seq_lens"] <= m.query_lens).all():
        # A warm-up may hand out blocks, the first ones in order.
        without |= table[:, 0] != np.arange(1, m.num_reqs + 1)
    for row in _first(without & table.any(axis=1)):
        expected = "block 0, as the row is padding or a dummy"
        yield "block_table_tensor", row, expected, table[row][table[row] != 0][0]


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
