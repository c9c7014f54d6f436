"""What is run with the check on: one table, and the requests that its rows serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from packaging.specifiers import SpecifierSet

MAX_MODEL_LEN = 128
K = 3
"""Draft tokens per step, where there are drafts."""

Counter = Literal["preempted", "cached", "accepted", "rejected"]
Draft = Literal["eagle", "mtp", "dflash", "draft_model", "ngram"]


class Request(NamedTuple):
    """A prompt that joins the engine before step `step`, those that run going on."""

    prompt: tuple[int, ...]
    max_tokens: int
    step: int = 0


def _tokens(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


# More than one step can take, so that prompts are chunked; long beside short, in both orders; one
# that ends at max_model_len; joining and leaving while others run.
MIXED = (
    Request(_tokens(1, 5), 14),
    Request(_tokens(20, 70), 4),
    Request(_tokens(100, 3), 9, step=2),
    Request((7,), 6, step=4),
    Request(_tokens(9, 33), 8, step=6),
    Request(_tokens(60, 116), 12, step=8),
    Request(_tokens(40, 10), 5, step=8),
)
# The later ones find one block, two and three of theirs in the cache, beside a fresh prompt.
SHARED = (
    Request(_tokens(200, 20), 2),
    Request(_tokens(1, 100), 6),
    Request(_tokens(1, 68), 8, step=14),
    Request(_tokens(1, 40), 6, step=14),
    Request(_tokens(150, 20), 6, step=14),
    Request((*_tokens(1, 96), 250), 6, step=18),
)
# More tokens than the cache has room for.
CROWDED = (
    Request(_tokens(1, 60), 20),
    Request(_tokens(101, 60), 20),
    Request(_tokens(30, 40), 30, step=2),
)
# Drafts repeat what the prompt did.
REPEATING = (
    Request(_tokens(1, 8) * 3, 40),
    Request(_tokens(50, 30), 10, step=2),
    Request(_tokens(90, 5) * 8, 40, step=4),
    Request((7,), 8, step=6),
)

# To be read, and nothing more.
PROMPTS = (
    Request(_tokens(1, 5), 0),
    Request(_tokens(20, 40), 0),
    Request(_tokens(100, 3), 0),
    Request((7,), 0, step=1),
    Request(_tokens(9, 33), 0, step=2),
)

REQUESTS = {
    "prompts": PROMPTS,
    "mixed": MIXED,
    "shared": SHARED,
    "crowded": CROWDED,
    "repeating": REPEATING,
}


class Where(NamedTuple):
    """The releases that something holds for, and what is in the way on the others."""

    releases: SpecifierSet
    why_not: str


EVERYWHERE = Where(SpecifierSet(), "")
NO_MLA = Where(SpecifierSet(">=0.28"), "there is no MLA for the CPU")
NO_ENCODERS = Where(SpecifierSet(">=0.27"), "V2 has no model state for encoders")
NO_ALIGN = Where(SpecifierSet(">=0.25"), "V2 refuses this mode of the Mamba cache")
NO_ALL = Where(SpecifierSet("<0.30"), "V2 refuses this mode of the Mamba cache, or it is gone")
NO_DFLASH = Where(SpecifierSet(">=0.24"), "V2 has no DFlash")
NO_DRAFT_MODEL = Where(SpecifierSet(">=0.31"), "V2 has no draft models")
NO_NGRAM = Where(SpecifierSet(">=0.32"), "V2 has no n-gram drafts")
NO_GDN_DRAFTS = Where(SpecifierSet(">=0.26"), "gated delta nets take no drafts on the CPU")
# Alone and on a new cache too, so that it tells nothing of metadata.
GDN_APART = Where(SpecifierSet(">=0.23"), "a row of this model is not what transformers says")
# The Triton kernels do, which the CPU builds before them ran.
DRAFTS_FORGOTTEN = Where(SpecifierSet("<0.27"), "CPU kernels of Mamba2 do not look at drafts")


class Scenario(msgspec.Struct, frozen=True):
    """One engine, and the requests that it serves.

    model: a kind of `tiny_models`. engine: keywords of `LLM` beyond what all have.
    shows: what has to be counted at least once, without which nothing was shown.
    idle: run the dummy batches of a data-parallel rank while it has no request of its own.
    boots: where it does. right: where what it generates can be compared with transformers.
    """

    model: str
    requests: str = "mixed"
    draft: Draft | None = None
    engine: Mapping[str, Any] = {}
    shows: tuple[Counter, ...] = ()
    idle: bool = False
    boots: Where = EVERYWHERE
    right: Where = EVERYWHERE


PREEMPTED: tuple[Counter, ...] = ("preempted",)
CACHED: tuple[Counter, ...] = ("cached",)
DRAFTS: tuple[Counter, ...] = ("accepted", "rejected")

FEW_BLOCKS = {"num_gpu_blocks_override": 6}
# The states take blocks too.
FEW_BLOCKS_AND_STATES = {"num_gpu_blocks_override": 8}
CACHE = {"enable_prefix_caching": True}
ALIGN = CACHE | {"mamba_cache_mode": "align"}
# Blocks hold whole chunks.
ALL = CACHE | {"mamba_cache_mode": "all", "hf_overrides": {"mamba_chunk_size": 32}}
ASYNC = {"async_scheduling": True}
# Encoders ask for a tokenizer, and read a prompt in one step.
ENCODER = {"skip_tokenizer_init": False, "max_num_batched_tokens": 256}
# What the CPU kernels of gated delta nets take.
GDN = {"dtype": "bfloat16", "mamba_ssm_cache_dtype": "float32"}

SCENARIOS: dict[str, Scenario] = {
    "llama": Scenario("llama"),
    "llama, async": Scenario("llama", engine=ASYNC),
    "llama, prefix caching": Scenario("llama", requests="shared", engine=CACHE, shows=CACHED),
    "llama, preempted": Scenario("llama", requests="crowded", engine=FEW_BLOCKS, shows=PREEMPTED),
    "gemma3": Scenario("gemma3"),
    "gemma3, prefix caching": Scenario("gemma3", requests="shared", engine=CACHE, shows=CACHED),
    "deepseek": Scenario("deepseek", boots=NO_MLA),
    "bert": Scenario("bert", requests="prompts", engine=ENCODER, boots=NO_ENCODERS),
    "lfm2": Scenario("lfm2"),
    "lfm2, async": Scenario("lfm2", engine=ASYNC),
    "lfm2, preempted": Scenario(
        "lfm2", requests="crowded", engine=FEW_BLOCKS_AND_STATES, shows=PREEMPTED
    ),
    "lfm2, align": Scenario("lfm2", requests="shared", engine=ALIGN, shows=CACHED, boots=NO_ALIGN),
    "lfm2, align, idle": Scenario(
        "lfm2", requests="shared", engine=ALIGN, shows=CACHED, idle=True, boots=NO_ALIGN
    ),
    "granite": Scenario("granite"),
    "granite, preempted": Scenario(
        "granite", requests="crowded", engine=FEW_BLOCKS_AND_STATES, shows=PREEMPTED
    ),
    "granite, all": Scenario("granite", requests="shared", engine=ALL, shows=CACHED, boots=NO_ALL),
    "granite, all, idle": Scenario(
        "granite", requests="shared", engine=ALL, shows=CACHED, idle=True, boots=NO_ALL
    ),
    "mamba2": Scenario("mamba2"),
    "qwen3_next": Scenario("qwen3_next", engine=GDN, right=GDN_APART),
    "qwen3_next, align": Scenario(
        "qwen3_next", requests="shared", engine=GDN | ALIGN, shows=CACHED, boots=NO_ALIGN
    ),
    "eagle": Scenario("llama", draft="eagle", shows=DRAFTS),
    "eagle, async": Scenario("llama", draft="eagle", engine=ASYNC, shows=DRAFTS),
    "eagle, prefix caching": Scenario(
        "llama", requests="shared", draft="eagle", engine=CACHE, shows=DRAFTS + CACHED
    ),
    "eagle, preempted": Scenario(
        "llama", requests="crowded", draft="eagle", engine=FEW_BLOCKS, shows=DRAFTS + PREEMPTED
    ),
    "eagle, idle": Scenario(
        "llama", requests="shared", draft="eagle", engine=CACHE, shows=DRAFTS + CACHED, idle=True
    ),
    "granite, eagle": Scenario("granite", draft="eagle", shows=DRAFTS, right=DRAFTS_FORGOTTEN),
    "mtp": Scenario("qwen2", draft="mtp", shows=DRAFTS),
    "mtp, async": Scenario("qwen2", draft="mtp", engine=ASYNC, shows=DRAFTS),
    "qwen3_next, mtp": Scenario(
        "qwen3_next",
        requests="repeating",
        draft="mtp",
        engine=GDN,
        shows=DRAFTS,
        boots=NO_GDN_DRAFTS,
    ),
    "dflash": Scenario("llama", draft="dflash", shows=("rejected",), boots=NO_DFLASH),
    "draft model": Scenario("llama", draft="draft_model", shows=DRAFTS, boots=NO_DRAFT_MODEL),
    "draft model, async": Scenario(
        "llama", draft="draft_model", engine=ASYNC, shows=DRAFTS, boots=NO_DRAFT_MODEL
    ),
    "draft model, idle": Scenario(
        "llama",
        requests="shared",
        draft="draft_model",
        engine=CACHE,
        shows=DRAFTS + CACHED,
        idle=True,
        boots=NO_DRAFT_MODEL,
    ),
    "ngram": Scenario("llama", requests="repeating", draft="ngram", shows=DRAFTS, boots=NO_NGRAM),
    "granite, ngram": Scenario(
        "granite",
        requests="repeating",
        draft="ngram",
        shows=DRAFTS,
        boots=NO_NGRAM,
        right=DRAFTS_FORGOTTEN,
    ),
}
