# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Model Runner V2: wrong attention metadata is named before a backend gets it.

With VLLM_CHECK_ATTN_METADATA=1, `build_attn_metadata` refuses metadata that breaks its
contract with the backends. Otherwise that shows as a wrong token or a dead engine.
"""

import copy
import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import pytest
import torch

from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridAttnMetadata
from vllm.version import __version_tuple__

from .tiny_models import BLOCK_SIZE, Layers, Row, build_layers, make_batch

CONTRACT = "vllm.v1.worker.gpu.attn_metadata_contract"
NUM_SPECULATIVE_TOKENS = 2
# No cache is as large.
FAR = 1 << 30

DECODES = [Row(40, 1), Row(7, 1), Row(99, 1)]
MIXED = [Row(40, 1), Row(60, 35, True), Row(0, 50, True)]
DRAFTS = [Row(40, 3, num_draft_tokens=2), Row(7, 3, num_draft_tokens=2)]
JOINED = [*DRAFTS, Row(0, 50, True)]

BOUND = "seq_lens_cpu_upper_bound"
STARTS = "query_start_loc"
ACCEPTED = "num_accepted_tokens"
DRAFTED = "num_decode_draft_tokens_cpu"
SLOTS = "slot_mappings"
TABLES = "block_tables"
ALL = slice(None)

Arguments = dict[str, Any]
Build = Callable[..., dict[str, Any]]
LayersOf = Callable[[str], Layers]
Change = Callable[[Arguments], None]


def load_attn_utils(patch: pytest.MonkeyPatch, value: str) -> ModuleType:
    """The module as it is when the variable is set before vLLM is imported."""
    patch.setenv("VLLM_CHECK_ATTN_METADATA", value)
    patch.delitem(sys.modules, CONTRACT, raising=False)
    spec = importlib.util.find_spec(attn_utils.__name__)
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    return load_attn_utils(monkeypatch, "1").build_attn_metadata


@pytest.fixture(scope="module")
def layers_of() -> Iterator[Callable[[str], Layers]]:
    """Layers by name: a kind of model, and "+drafts" with speculative decoding."""
    config = {
        "method": "ngram",
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "prompt_lookup_max": 2,
    }
    # One model at a time: a process has one distributed environment.
    with ExitStack() as stack:
        made: dict[str, Layers] = {}

        def layers(name: str) -> Layers:
            if name not in made:
                stack.close()
                made.clear()
                kind, _, drafts = name.partition("+")
                kwargs = {"speculative_config": config} if drafts else {}
                made[name] = stack.enter_context(build_layers(kind, **kwargs))
            return made[name]

        yield layers


def right(layers: Layers, rows: list[Row], padding: int = 0) -> Arguments:
    """Arguments that keep the contract, with `padding` rows of one token behind."""
    batch = make_batch(rows, layers.device, padding)
    num_reqs = batch.num_reqs_after_padding
    block_tables, slot_mappings = [], []
    for groups in layers.attn_groups:
        block_size = groups[0].get_metadata_builder(0).kv_cache_spec.block_size
        columns = cdiv(layers.vllm_config.model_config.max_model_len, block_size)
        columns = max(columns, 1 + layers.vllm_config.num_speculative_tokens)
        block_table = torch.zeros(num_reqs, columns, dtype=torch.int32)
        slots = []
        for i, row in enumerate(rows):
            # Rows share their blocks, as with a common prefix.
            used = cdiv(row.computed + row.scheduled, block_size)
            block_table[i, :used] = torch.arange(1, used + 1)
            for position in range(row.computed, row.computed + row.scheduled):
                block, offset = divmod(position, block_size)
                slots.append((block + 1) * block_size + offset)
        block_tables.append(block_table.to(layers.device))
        slot_mappings.append(slots + [-1] * padding)
    arguments = {
        "attn_groups": layers.attn_groups,
        "num_reqs": num_reqs,
        "num_tokens": batch.num_tokens_after_padding,
        "query_start_loc_gpu": batch.query_start_loc,
        "query_start_loc_cpu": torch.from_numpy(batch.query_start_loc_np).clone(),
        "max_query_len": max(row.scheduled for row in rows),
        "seq_lens": batch.seq_lens,
        "max_seq_len": max(row.computed + row.scheduled for row in rows),
        "block_tables": block_tables,
        "slot_mappings": torch.tensor(slot_mappings, device=layers.device),
        "kv_cache_config": layers.kv_cache_config,
        "seq_lens_cpu_upper_bound": batch.seq_lens_cpu_upper_bound,
        "for_cudagraph_capture": False,
    }
    if len(layers.attn_groups) > 1:
        arguments["model_specific_attn_metadata"] = hybrid(layers, rows, padding)
    return arguments


def hybrid(layers: Layers, rows: list[Row], padding: int) -> MambaHybridAttnMetadata:
    """What a model with recurrent layers adds to the arguments."""
    prefilling = [row.is_prefilling for row in rows] + [False] * padding
    metadata = MambaHybridAttnMetadata(is_prefilling=torch.tensor(prefilling))
    if layers.vllm_config.num_speculative_tokens:
        accepted = torch.ones(len(prefilling), dtype=torch.int32)
        drafts = [-1 if row.is_prefilling else row.num_draft_tokens for row in rows]
        metadata.num_accepted_tokens = accepted.to(layers.device)
        metadata.num_decode_draft_tokens_cpu = torch.tensor(
            drafts + [-1] * padding, dtype=torch.int32
        )
    return metadata


def holder_of(arguments: Arguments, name: str) -> Arguments:
    if name in arguments:
        return arguments
    return vars(arguments["model_specific_attn_metadata"])


def give(name: str, value: Any) -> Change:
    return lambda arguments: holder_of(arguments, name).update({name: value})


def put(name: str, *place: int | slice, to: int) -> Change:
    """Change values of a tensor, or of one of several."""

    def change(arguments: Arguments) -> None:
        tensor = holder_of(arguments, name)[name]
        for index in place[:-1]:
            tensor = tensor[index]
        tensor[place[-1]] = to

    return change


def shorten(name: str) -> Change:
    def change(arguments: Arguments) -> None:
        holder = holder_of(arguments, name)
        holder[name] = holder[name][:-1]

    return change


def lengthen(name: str) -> Change:
    def change(arguments: Arguments) -> None:
        values = arguments[name]
        behind = values.new_full((len(values), 2), FAR)
        arguments[name] = torch.cat([values, behind], dim=1)

    return change


def all_of(*changes: Change) -> Change:
    def change(arguments: Arguments) -> None:
        for each in changes:
            each(arguments)

    return change


def changed(
    layers: Layers,
    rows: list[Row],
    padding: int,
    change: Change,
    patch: pytest.MonkeyPatch,
) -> Arguments:
    if padding:
        # Only batches of FULL CUDA graphs are padded.
        config = layers.vllm_config.compilation_config
        patch.setattr(config, "cudagraph_mode", CUDAGraphMode.FULL)
    arguments = right(layers, rows, padding)
    change(arguments)
    return arguments


def test_wrong_metadata_is_refused(build: Build, layers_of: LayersOf) -> None:
    arguments = right(layers_of("llama"), DECODES) | {"max_seq_len": 99}

    refusal = ""
    try:
        build(**arguments)
    except RuntimeError as error:
        refusal = str(error)
    assert "max_seq_len, row 2: expected 100 or more, found 99" in refusal
    assert "KV cache group 0 (" in refusal
    assert "layer model.layers.0.self_attn.attn)" in refusal
    assert "VLLM_CHECK_ATTN_METADATA=0 turns this check off" in refusal


NOTHING = all_of()


@pytest.mark.parametrize(
    ("model", "rows", "padding", "change"),
    [
        pytest.param("llama", DECODES, 0, NOTHING, id="decodes"),
        pytest.param("llama", MIXED, 0, NOTHING, id="mixed"),
        pytest.param("llama", DECODES, 2, NOTHING, id="padding"),
        pytest.param(
            "llama",
            DECODES,
            0,
            all_of(give("for_cudagraph_capture", True), give("max_seq_len", 1024)),
            id="capture",
        ),
        # Behind its own blocks a row has those of an earlier one.
        pytest.param("llama", DECODES, 0, put(TABLES, 0, 1, 1, to=FAR), id="stale"),
        pytest.param("llama", MIXED, 0, put(SLOTS, 0, 3, to=-1), id="not-local"),
        pytest.param("llama", MIXED, 0, lengthen(SLOTS), id="behind-the-tokens"),
        # With drafts the host may be ahead, and a draft's maximum is of its last step.
        pytest.param("llama+drafts", DRAFTS, 0, put(BOUND, 0, to=45), id="in-flight"),
        pytest.param("llama+drafts", DRAFTS, 0, give("max_seq_len", 45), id="steps"),
        pytest.param("granite", DECODES, 0, NOTHING, id="hybrid-decodes"),
        pytest.param("granite", MIXED, 0, NOTHING, id="hybrid-mixed"),
        pytest.param("granite", DECODES, 2, NOTHING, id="hybrid-padding"),
        pytest.param(
            "granite",
            [Row(0, 1), Row(0, 1)],
            0,
            all_of(put(SLOTS, ALL, ALL, to=-1), put(TABLES, 0, ALL, ALL, to=0)),
            id="hybrid-dummy",
        ),
        pytest.param(
            "granite",
            [Row(0, 1), Row(0, 1)],
            0,
            all_of(put(SLOTS, ALL, ALL, to=-1), put(TABLES, 0, 1, 0, to=2)),
            id="hybrid-warm-up",
        ),
        pytest.param(
            "granite+drafts", JOINED, 0, put(ACCEPTED, 1, to=3), id="hybrid-drafts"
        ),
        pytest.param("granite+drafts", DRAFTS, 1, NOTHING, id="hybrid-drafts-padding"),
        # One token of a prompt that has a state is run as a decode.
        pytest.param(
            "granite+drafts", [Row(9, 1, True), *DRAFTS], 0, NOTHING, id="hybrid-tail"
        ),
        pytest.param(
            "qwen3_next+drafts", JOINED, 0, put(ACCEPTED, 1, to=3), id="gdn-drafts"
        ),
    ],
)
def test_right_metadata_is_built(
    build: Build,
    layers_of: LayersOf,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    rows: list[Row],
    padding: int,
    change: Change,
) -> None:
    layers = layers_of(model)
    built = build(**changed(layers, rows, padding, change, monkeypatch))
    groups = [group for groups in layers.attn_groups for group in groups]
    assert set(built) == {name for group in groups for name in group.layer_names}


BREACHES: list[tuple[str, list[Row], int, Change, str]] = [
    (
        *("llama", DECODES, 0, give("max_seq_len", 1024)),
        "max_seq_len: expected 100 or less, found 1024",
    ),
    (
        *("llama", DECODES, 0, give(BOUND, None)),
        f"{BOUND}: expected a tensor on the CPU, found None",
    ),
    (
        *("llama", DECODES, 0, shorten(BOUND)),
        f"{BOUND}: expected 3 entries, found 2",
    ),
    (
        *("llama", DECODES, 0, put(BOUND, 1, to=7)),
        f"{BOUND}, row 1: expected 8 or more, its seq_len, found 7",
    ),
    (
        *("llama", DECODES, 0, put(BOUND, 1, to=9)),
        f"{BOUND}, row 1: expected 8 or less, by its seq_len, found 9",
    ),
    (
        *("llama", MIXED, 0, give("max_query_len", 49)),
        "max_query_len, row 2: expected 50 or more, found 49",
    ),
    (
        *("llama", MIXED, 0, put(f"{STARTS}_cpu", 0, to=1)),
        f"{STARTS}_cpu, row 0: expected 0, found 1",
    ),
    (
        *("llama", MIXED, 0, put(f"{STARTS}_cpu", 2, to=0)),
        f"{STARTS}_cpu, row 1: expected an end at 1 or later, found 0",
    ),
    (
        *("llama", MIXED, 0, put(f"{STARTS}_gpu", 2, to=35)),
        f"{STARTS}, row 2: expected 36, as on the host, found 35",
    ),
    (
        *("llama", DECODES, 0, give("num_reqs", 2)),
        f"{STARTS}: expected 3 entries, found 4",
    ),
    (
        *("llama", MIXED, 0, give("num_tokens", 85)),
        "num_actual_tokens: expected 86, the end of query_start_loc, found 85",
    ),
    (
        *("llama", DECODES, 0, give("num_tokens", 4)),
        "num_actual_tokens: expected 3, the end of query_start_loc, found 4",
    ),
    (
        *("llama", MIXED, 0, give(SLOTS, torch.zeros(1, 85))),
        "slot_mapping: expected 86 entries or more, found 85",
    ),
    (
        *("llama", MIXED, 0, put(SLOTS, 0, 3, to=FAR)),
        "slot_mapping, row 1: expected slots 0 to ",
    ),
    (
        *("llama", MIXED, 0, put(SLOTS, 0, 85, to=-2)),
        "slot_mapping, row 2: expected slots 0 to ",
    ),
    (
        *("llama", DECODES, 0, put(TABLES, 0, 2, 3, to=FAR)),
        "block_table_tensor, row 2: expected blocks 0 to ",
    ),
    (
        *("llama", DECODES, 0, give(TABLES, [torch.ones(3, 3).int()])),
        "block_table_tensor, row 2: expected 4 columns or more, found 3",
    ),
    (
        *("llama", DECODES, 0, give(TABLES, [torch.ones(3, 3).int()])),
        "max_seq_len: expected no more than 3 columns of the block table hold",
    ),
    (
        *("llama", DECODES, 0, give(TABLES, [torch.ones(2, 32).int()])),
        "block_table_tensor: expected 3 entries, found 2",
    ),
    (
        *("llama+drafts", DRAFTS, 0, give("max_seq_len", 46)),
        "max_seq_len: expected 45 or less, found 46",
    ),
    (
        *("llama+drafts", DRAFTS, 0, put(BOUND, 1, to=200)),
        f"{BOUND}, row 1: expected 1",
    ),
    (
        *("granite", DECODES, 0, put(TABLES, 1, 1, 0, to=-5)),
        "block_table_tensor, row 1: expected blocks 0 to ",
    ),
    (
        *("granite", DECODES, 0, give(ACCEPTED, torch.ones(3))),
        f"{ACCEPTED}: expected None, as nothing is speculative, found 3 entries",
    ),
    (
        *("granite", DECODES, 0, give(DRAFTED, torch.zeros(3))),
        f"{DRAFTED}: expected None, as nothing is speculative, found 3 entries",
    ),
    (
        *("granite+drafts", JOINED, 0, put(BOUND, 2, to=51)),
        f"{BOUND}, row 2: expected 50 or less, by its seq_len, found 51",
    ),
    (
        *("granite+drafts", JOINED, 0, shorten(ACCEPTED)),
        f"{ACCEPTED}: expected 3 entries, found 2",
    ),
    (
        *("granite+drafts", JOINED, 0, put(ACCEPTED, 1, to=0)),
        f"{ACCEPTED}, row 1: expected 1 to 3, found 0",
    ),
    (
        *("granite+drafts", JOINED, 0, put(ACCEPTED, 0, to=4)),
        f"{ACCEPTED}, row 0: expected 1 to 3, found 4",
    ),
    (
        *("granite+drafts", JOINED, 0, put(ACCEPTED, 2, to=3)),
        f"{ACCEPTED}, row 2: expected 1, as it is a prefill, found 3",
    ),
    (
        *("granite+drafts", JOINED, 0, put(DRAFTED, 0, to=3)),
        f"{DRAFTED}, row 0: expected -1 to 2, found 3",
    ),
    (
        *("granite+drafts", [Row(0, 2, True), *DRAFTS], 0, NOTHING),
        "row order, row 1: expected rows that verify drafts before prefills",
    ),
    (
        *("qwen3_next+drafts", [Row(40, 1), *DRAFTS], 0),
        all_of(put(ACCEPTED, 0, to=3), put(DRAFTED, 0, to=-1)),
        f"{DRAFTED}, row 0: expected 0 or more, as 3 tokens were accepted",
    ),
    (
        *("llama", DECODES, 1, give("num_tokens", 2)),
        "num_actual_tokens: expected 3, the end of query_start_loc, found 2",
    ),
    (
        *("llama", DECODES, 1, put("seq_lens", 3, to=1)),
        "seq_lens, row 3: expected 0, as it is padding, found 1",
    ),
    (
        *("llama", DECODES, 1, put(BOUND, 3, to=5)),
        f"{BOUND}, row 3: expected 0, as it is padding, found 5",
    ),
    (
        *("llama", DECODES, 1, put(SLOTS, 0, 3, to=70)),
        "slot_mapping: expected -1 for tokens of no row, found 70",
    ),
    (
        *("granite", DECODES, 1, put(TABLES, 0, 3, 0, to=2)),
        "block_table_tensor, row 3: expected block 0, as the row is padding",
    ),
    (
        *("granite", [Row(0, 1), Row(0, 1)], 0, put(SLOTS, ALL, ALL, to=-1)),
        "block_table_tensor, row 1: expected block 0, as the row is padding or a",
    ),
    # A row of the batch before, which begins as a warm-up's does.
    (
        *("granite+drafts", [Row(0, 1)]),
        *(0, all_of(put(SLOTS, ALL, ALL, to=-1), put(TABLES, 0, 0, ALL, to=1))),
        "block_table_tensor, row 0: expected block 0, as the row is padding or a",
    ),
    (
        *("granite", DECODES, 1, put("is_prefilling", 3, to=1)),
        "is_prefilling, row 3: expected False, as it is padding, found True",
    ),
    (
        *("granite+drafts", DRAFTS, 1, put(ACCEPTED, 2, to=2)),
        f"{ACCEPTED}, row 2: expected 1, as it is padding, found 2",
    ),
    (
        *("granite+drafts", DRAFTS, 1, put(DRAFTED, 2, to=0)),
        f"{DRAFTED}, row 2: expected -1, as it is padding, found 0",
    ),
]


@pytest.mark.parametrize(
    ("model", "rows", "padding", "change", "breach"),
    BREACHES,
    ids=[f"{model}-{breach.partition(': ')[0]}" for model, *_, breach in BREACHES],
)
def test_each_breach_is_named(
    build: Build,
    layers_of: LayersOf,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    rows: list[Row],
    padding: int,
    change: Change,
    breach: str,
) -> None:
    arguments = changed(layers_of(model), rows, padding, change, monkeypatch)
    with pytest.raises(RuntimeError) as caught:
        build(**arguments)
    assert f"): {breach}" in str(caught.value)


def test_recurrent_layers_need_is_prefilling(build: Build, layers_of: LayersOf) -> None:
    arguments = right(layers_of("granite"), DECODES)
    shorten("is_prefilling")(arguments)
    with pytest.raises(RuntimeError, match="is_prefilling: expected 3 entries"):
        build(**arguments)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Build:
    """The check, and no builder that runs behind it."""
    load_attn_utils(monkeypatch, "1")
    unbuilt = functools.wraps(attn_utils.build_attn_metadata)(lambda **_: {})
    return sys.modules[CONTRACT].checked(unbuilt)


CONTEXT_LAST = [MIXED[0], MIXED[2], MIXED[1]]


@pytest.mark.parametrize(
    ("module", "name", "breaks"),
    [
        # From 0.28.0 on it tells the rows with a context one by one.
        pytest.param(
            "vllm.model_executor.layers.attention.mla_attention",
            "MLACommonMetadataBuilder",
            __version_tuple__ < (0, 28),
            id="mla",
        ),
        pytest.param(
            "vllm.model_executor.layers.attention.sparse_mla_attention",
            "SparseMLACommonMetadataBuilder",
            __version_tuple__ < (0, 28),
            id="sparse-mla",
            marks=pytest.mark.skipif(
                __version_tuple__ < (0, 26), reason="it has no prefill with context"
            ),
        ),
        pytest.param(
            "vllm.v1.attention.backends.triton_attn",
            "TritonAttentionMetadataBuilder",
            False,
            id="triton",
        ),
    ],
)
def test_prefills_with_context_come_first_where_a_builder_wants_them(
    check: Build, layers_of: LayersOf, module: str, name: str, breaks: bool
) -> None:
    layers = layers_of("llama")
    ((group,),) = layers.attn_groups
    builder = copy.copy(group.get_metadata_builder(0))
    # vLLM's own class, with the attributes of another: it is asked, and does not run.
    builder.__class__ = getattr(importlib.import_module(module), name)
    group = dataclasses.replace(group, metadata_builders=[builder])
    check(**right(layers, MIXED) | {"attn_groups": [[group]]})

    arguments = right(layers, CONTEXT_LAST) | {"attn_groups": [[group]]}
    if breaks:
        breach = "row order, row 2: expected prefills with context"
        with pytest.raises(RuntimeError, match=breach):
            check(**arguments)
    else:
        check(**arguments)


@pytest.mark.skipif(__version_tuple__ < (0, 28), reason="there is no MLA for the CPU")
def test_latent_attention_takes_contexts_in_any_order(
    build: Build, layers_of: LayersOf
) -> None:
    layers = layers_of("deepseek")
    built = build(**right(layers, CONTEXT_LAST))
    assert {metadata.num_prefills for metadata in built.values()} == {2}


def test_where_no_builder_knows_the_configuration_nothing_is_said(
    check: Build, layers_of: LayersOf
) -> None:
    layers = layers_of("llama")
    ((group,),) = layers.attn_groups
    builder = copy.copy(group.get_metadata_builder(0))
    del builder.vllm_config
    group = dataclasses.replace(group, metadata_builders=[builder])
    check(**right(layers, DECODES) | {"attn_groups": [[group]], "max_seq_len": 1})


def test_the_cache_ends_with_its_last_block(build: Build, layers_of: LayersOf) -> None:
    layers = layers_of("llama")
    arguments = right(layers, [Row(BLOCK_SIZE - 1, 1)])
    num_blocks = layers.kv_cache_config.num_blocks
    arguments["block_tables"][0][0, 0] = num_blocks - 1
    arguments["slot_mappings"][0, 0] = num_blocks * BLOCK_SIZE - 1
    build(**arguments)

    arguments["block_tables"][0][0, 0] += 1
    arguments["slot_mappings"][0, 0] += 1
    with pytest.raises(RuntimeError) as caught:
        build(**arguments)
    assert f"blocks 0 to {num_blocks - 1}, found {num_blocks}" in str(caught.value)
    assert f"or -1, found {num_blocks * BLOCK_SIZE}" in str(caught.value)


def test_the_device_may_split_tokens_otherwise_when_it_verifies_adaptively(
    build: Build, layers_of: LayersOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = layers_of("llama+drafts")
    arguments = right(layers, [Row(40, 2), Row(7, 2)])
    # The host has spread four tokens evenly; its bound has room for three each.
    arguments["query_start_loc_gpu"][1] = 3
    arguments["seq_lens"][:] = torch.tensor([43, 8])
    arguments["seq_lens_cpu_upper_bound"][:] = torch.tensor([43, 10])
    arguments |= {"max_query_len": 3, "max_seq_len": 43}
    with pytest.raises(RuntimeError, match="query_start_loc, row 1: expected 2, as on"):
        build(**arguments)

    config = layers.vllm_config.speculative_config
    monkeypatch.setattr(config, "enable_adaptive_verification", True, raising=False)
    build(**arguments)
    with pytest.raises(RuntimeError, match="max_query_len, row 0: expected 3 or more"):
        build(**arguments | {"max_query_len": 2})


def without_cache(device: torch.device) -> CommonAttentionMetadata:
    """What layers without a KV cache get."""
    seq_lens = torch.tensor([7, 3], dtype=torch.int32)
    starts = torch.tensor([0, 7, 10], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=seq_lens.to(device),
        num_reqs=2,
        num_actual_tokens=10,
        max_query_len=7,
        max_seq_len=7,
        # Nobody reads these.
        block_table_tensor=torch.zeros(2, 1, dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(10, dtype=torch.int64, device=device),
        seq_lens_cpu_upper_bound=seq_lens.clone(),
    )


def test_layers_without_a_cache(build: Build, layers_of: LayersOf) -> None:
    layers = layers_of("llama")
    metadata = without_cache(layers.device)
    check_metadata = sys.modules[CONTRACT].check_metadata
    check_metadata(metadata, layers.attn_groups[0], False)
    metadata.seq_lens_cpu_upper_bound[1] = 2
    with pytest.raises(
        RuntimeError, match=r"no KV cache \(.*row 1: expected 3 or more"
    ):
        check_metadata(metadata, layers.attn_groups[0], False)


@pytest.mark.skipif(not current_platform.is_cuda(), reason="CUDA graphs need a GPU")
def test_a_capture_is_not_ended_by_a_copy_to_the_host(
    build: Build, layers_of: LayersOf
) -> None:
    layers = layers_of("llama")
    metadata = without_cache(layers.device)
    metadata.max_seq_len = 6
    check_metadata = sys.modules[CONTRACT].check_metadata
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        check_metadata(metadata, layers.attn_groups[0], False)
    with pytest.raises(RuntimeError, match="max_seq_len, row 0: expected 7 or more"):
        check_metadata(metadata, layers.attn_groups[0], False)


def test_a_batch_without_slots_may_be_a_warm_up(
    check: Build, layers_of: LayersOf
) -> None:
    layers = layers_of("granite")
    (mamba,) = [i for i, groups in enumerate(layers.attn_groups) if is_mamba(groups)]
    alone = [
        groups if i == mamba else [] for i, groups in enumerate(layers.attn_groups)
    ]
    arguments = right(layers, DECODES) | {"attn_groups": alone, "max_seq_len": 1024}
    check(**arguments)
    with pytest.raises(RuntimeError, match="max_seq_len: expected 100 or less"):
        check(**arguments | {"attn_groups": layers.attn_groups})


def is_mamba(groups: list[Any]) -> bool:
    return bool(groups[0].backend.get_name() == "MAMBA2_ATTN")


def test_the_error_crosses_processes(check: Build, layers_of: LayersOf) -> None:
    with pytest.raises(RuntimeError) as caught:
        check(**right(layers_of("llama"), DECODES) | {"max_seq_len": 99})
    copied = ForkingPickler.loads(ForkingPickler.dumps(caught.value))
    assert str(copied) == str(caught.value)
    assert copied.breaches == caught.value.breaches


def test_warn_logs_each_fault_once_and_builds(
    layers_of: LayersOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = layers_of("llama")
    build = load_attn_utils(monkeypatch, "warn").build_attn_metadata
    logged: list[str] = []
    logger = sys.modules[CONTRACT].logger
    monkeypatch.setattr(logger, "warning", lambda text, *of: logged.append(text % of))
    # Above the longest sequence it costs, below it tokens are lost: two faults.
    for value in 1024, 98, 99:
        assert build(**right(layers, DECODES) | {"max_seq_len": value})
    assert build(**right(layers, MIXED) | {"max_query_len": 49})
    above, below, other = logged
    assert "max_seq_len: expected 100 or less, found 1024" in above
    assert "max_seq_len, row 2: expected 100 or more, found 98" in below
    assert "max_query_len, row 2: expected 50 or more, found 49" in other


@pytest.mark.parametrize("value", ["", "0"])
def test_off_there_is_nothing_to_call(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    module = load_attn_utils(monkeypatch, value)
    assert not hasattr(module.build_attn_metadata, "__wrapped__")
    sys.modules[CONTRACT].check_metadata(None, [None], False)


def test_a_typing_error_turns_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="VLLM_CHECK_ATTN_METADATA=true: expected 1 "):
        load_attn_utils(monkeypatch, "true")
