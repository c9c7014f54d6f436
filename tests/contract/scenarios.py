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
DRAFTS: tuple[Counter, ...] = ("accepted", "rejected")
Draft = Literal["eagle", "mtp", "draft_model", "ngram"]


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
# The second and third find most of their prompt in the cache, beside a fresh one.
SHARED = (
    Request(_tokens(1, 100), 4),
    Request(_tokens(1, 68), 8, step=12),
    Request(_tokens(200, 20), 6, step=12),
    Request((*_tokens(1, 96), 250), 6, step=16),
)
# More tokens than the cache has room for.
CROWDED = (
    Request(_tokens(1, 60), 20),
    Request(_tokens(101, 60), 20),
    Request(_tokens(30, 40), 30, step=2),
)
# Drafts repeat what the prompt did.
REPEATING = (
    Request(_tokens(1, 8) * 3, 16),
    Request(_tokens(50, 30), 5, step=2),
    Request(_tokens(90, 5) * 8, 12, step=4),
)

REQUESTS = {"mixed": MIXED, "shared": SHARED, "crowded": CROWDED, "repeating": REPEATING}


class Scenario(msgspec.Struct, frozen=True):
    """One engine, and the requests that it serves.

    model: a kind of `tiny_models`. engine: keywords of `LLM` beyond what all have.
    shows: what has to be counted at least once, without which nothing was shown.
    releases: where it boots; why_not: the reason for the others.
    """

    model: str
    requests: str = "mixed"
    draft: Draft | None = None
    engine: Mapping[str, Any] = {}
    shows: tuple[Counter, ...] = ()
    releases: SpecifierSet = SpecifierSet()
    why_not: str = ""


FEW_BLOCKS = {"num_gpu_blocks_override": 6}
CACHE = {"enable_prefix_caching": True}
ALIGN = CACHE | {"mamba_cache_mode": "align"}
ALL = CACHE | {"mamba_cache_mode": "all"}
ASYNC = {"async_scheduling": True}
# What the CPU kernels of gated delta nets take.
GDN = {"dtype": "bfloat16", "mamba_ssm_cache_dtype": "float32"}

SCENARIOS: dict[str, Scenario] = {
    "llama": Scenario("llama"),
    "llama, async": Scenario("llama", engine=ASYNC),
    "llama, prefix caching": Scenario("llama", "shared", engine=CACHE, shows=("cached",)),
    "llama, preempted": Scenario("llama", "crowded", engine=FEW_BLOCKS, shows=("preempted",)),
    "gemma3": Scenario("gemma3"),
    "gemma3, prefix caching": Scenario("gemma3", "shared", engine=CACHE, shows=("cached",)),
    "deepseek": Scenario("deepseek"),
    "deepseek, prefix caching": Scenario("deepseek", "shared", engine=CACHE, shows=("cached",)),
    "lfm2": Scenario("lfm2"),
    "lfm2, async": Scenario("lfm2", engine=ASYNC),
    "lfm2, preempted": Scenario("lfm2", "crowded", engine=FEW_BLOCKS, shows=("preempted",)),
    "lfm2, align": Scenario("lfm2", "shared", engine=ALIGN, shows=("cached",)),
    "granite": Scenario("granite"),
    "granite, preempted": Scenario("granite", "crowded", engine=FEW_BLOCKS, shows=("preempted",)),
    "granite, align": Scenario("granite", "shared", engine=ALIGN, shows=("cached",)),
    "granite, all": Scenario("granite", "shared", engine=ALL, shows=("cached",)),
    "qwen3_next": Scenario("qwen3_next", engine=GDN),
    "qwen3_next, align": Scenario("qwen3_next", "shared", engine=GDN | ALIGN, shows=("cached",)),
    "eagle": Scenario("llama", draft="eagle", shows=DRAFTS),
    "eagle, async": Scenario("llama", draft="eagle", engine=ASYNC, shows=DRAFTS),
    "eagle, prefix caching": Scenario("llama", "shared", "eagle", CACHE, (*DRAFTS, "cached")),
    "eagle, preempted": Scenario("llama", "crowded", "eagle", FEW_BLOCKS, (*DRAFTS, "preempted")),
    "mtp": Scenario("qwen2", draft="mtp", shows=DRAFTS),
    "mtp, async": Scenario("qwen2", draft="mtp", engine=ASYNC, shows=DRAFTS),
    "draft model": Scenario("llama", draft="draft_model", shows=DRAFTS),
    "draft model, async": Scenario("llama", draft="draft_model", engine=ASYNC, shows=DRAFTS),
    "ngram": Scenario("llama", "repeating", "ngram", shows=DRAFTS),
    "lfm2, eagle": Scenario("lfm2", draft="eagle", shows=DRAFTS),
    "granite, eagle": Scenario("granite", draft="eagle", shows=DRAFTS),
    "granite, ngram": Scenario("granite", "repeating", "ngram", shows=DRAFTS),
    "qwen3_next, mtp": Scenario("qwen3_next", draft="mtp", engine=GDN, shows=DRAFTS),
}
