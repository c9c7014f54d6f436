"""Run in a release's environment: the scenarios, one engine after the other in this process.

python -m tests.contract.inside.run [--raise] RESULT SCENARIO …

With --raise the check ends a scenario at the first breach, as it does a server.
"""

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from vllm import LLM, PoolingParams, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from tests.contract.inside.recorder import Recorder
from tests.contract.outcome import Outcome
from tests.contract.scenarios import MAX_MODEL_LEN, REQUESTS, SCENARIOS, K, Request, Scenario
from tests.v1.worker import tiny_models
from tests.v1.worker.tiny_models import LOGPROB_TOLERANCE, TinyModel

COMMON: dict[str, Any] = {
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 48,
    "disable_log_stats": False,
    "async_scheduling": False,
}
# The kernels for gated delta nets take nothing wider, and transformers computes in float32.
TOLERANCE = {"qwen3_next": 0.5}
COUNTERS = {
    "vllm:num_preemptions": "preempted",
    "vllm:prefix_cache_hits": "cached",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}


@contextmanager
def booted(scenario: Scenario) -> Iterator[tuple[LLM, TinyModel]]:
    """The engine of a scenario, and its model."""
    scale = tiny_models.DRAFTABLE if scenario.draft else 1.0
    write = tiny_models.write_mtp_model if scenario.draft == "mtp" else tiny_models.write_model
    model = write(scenario.model, scale)
    options = COMMON | dict(scenario.engine)
    if scenario.draft:
        options["speculative_config"] = _drafts(scenario, model)
    with tiny_models.engine(model.folder, **options) as llm:
        yield llm, model


def _drafts(scenario: Scenario, model: TinyModel) -> dict[str, Any]:
    config: dict[str, Any] = {"method": scenario.draft, "num_speculative_tokens": K}
    if scenario.draft == "ngram":
        return config | {"prompt_lookup_max": 2, "prompt_lookup_min": 1}
    if scenario.draft == "eagle":
        llama = tiny_models.write_model("llama", tiny_models.DRAFTABLE)
        return config | {"model": tiny_models.write_eagle_draft(llama.folder)}
    if scenario.draft == "dflash":
        return config | {"model": tiny_models.write_dflash_draft()}
    if scenario.draft == "draft_model":
        # The same model, but for how much its layers have to say.
        draft = tiny_models.write_model("llama", tiny_models.DRAFTABLE / 2)
        return config | {"model": draft.folder}
    return config


def serve(llm: LLM, requests: tuple[Request, ...], recorder: Recorder, idle: bool) -> list[Any]:
    """The final output of each request, each of which joins when its step has come.

    idle: between requests run what an idle data-parallel rank does to keep up with the others.
    """
    engine = llm.llm_engine
    finished: dict[str, Any] = {}
    waiting = dict(enumerate(requests))
    recorder.step = 0
    while len(finished) < len(requests):
        for index in [i for i, request in waiting.items() if request.step <= recorder.step]:
            request = waiting.pop(index)
            engine.add_request(
                str(index), {"prompt_token_ids": list(request.prompt)}, _parameters(llm, request)
            )
        if idle and not engine.has_unfinished_requests():
            llm.collective_rpc("execute_dummy_batch")
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        recorder.step += 1
    return [finished[str(index)] for index in range(len(requests))]


def _parameters(llm: LLM, request: Request) -> Any:
    if llm.llm_engine.model_config.runner_type == "pooling":
        return PoolingParams(task="embed")
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=0,
        logprobs=0,
        detokenize=False,
        ignore_eos=True,
    )


def wrong_embeddings(
    model: TinyModel, requests: tuple[Request, ...], outputs: list[Any]
) -> Iterator[str]:
    """Where an embedding is not that of transformers: its first token's last state, of length 1."""
    for index, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        with torch.inference_mode():
            states = model.reference(torch.tensor([request.prompt])).last_hidden_state
        expected = torch.nn.functional.normalize(states[0, 0], dim=0)
        apart = float((output.outputs.data - expected).abs().max())
        if apart > LOGPROB_TOLERANCE:
            yield f"request {index}: {apart:.3f} away from the embedding of transformers"


def wrong(
    model: TinyModel, requests: tuple[Request, ...], outputs: list[Any], kind: str
) -> Iterator[str]:
    """Where what came out is not what transformers says, one line for each such request.

    transformers reads each prompt with what was generated, in one pass: every token has to be its
    best there, and have its log-probability.
    """
    if kind == "bert":
        yield from wrong_embeddings(model, requests, outputs)
        return
    tolerance = TOLERANCE.get(kind, LOGPROB_TOLERANCE)
    for index, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        (completion,) = output.outputs
        tokens = list(completion.token_ids)
        if len(tokens) != request.max_tokens:
            yield f"request {index}: {len(tokens)} tokens in place of {request.max_tokens}"
            continue
        with torch.inference_mode():
            read = torch.tensor([[*request.prompt, *tokens]])
            logits = model.reference(read, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
        logprobs = logits.float().log_softmax(-1)
        for place, (token, step) in enumerate(zip(tokens, completion.logprobs, strict=True)):
            best, mine = float(logprobs[place].max()), float(logprobs[place, token])
            theirs = int(logprobs[place].argmax())
            if best - mine > tolerance or abs(step[token].logprob - mine) > tolerance:
                yield (
                    f"request {index}, token {place}: {token} with {step[token].logprob:.3f}; "
                    f"transformers gives it {mine:.3f}, and {theirs} {best:.3f}"
                )
                break


def run(name: str, recorder: Recorder) -> Outcome:
    """Boot the engine of a scenario, serve its requests and say what was seen."""
    scenario = SCENARIOS[name]
    began = time.monotonic()
    error, differ, counters = "", [], {}
    recorder.begin()
    try:
        with booted(scenario) as (llm, model):
            requests = REQUESTS[scenario.requests]
            outputs = serve(llm, requests, recorder, scenario.idle)
            for metric in llm.get_metrics():
                if metric.name in COUNTERS:
                    counters[COUNTERS[metric.name]] = metric.value
            counters["rejected"] = counters.pop("drafted", 0) - counters.get("accepted", 0)
            differ = list(wrong(model, requests, outputs, scenario.model))
    except (Exception, pytest.skip.Exception) as raised:
        error = _one_line(raised)
        traceback.print_exception(raised)
        cleanup_dist_env_and_memory()
    return Outcome(
        scenario=name,
        seconds=round(time.monotonic() - began, 1),
        error=error,
        wrong=tuple(differ),
        counters=counters,
        findings=recorder.findings(),
    )


def _one_line(raised: BaseException) -> str:
    frames = traceback.extract_tb(raised.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}"
    return f"{type(raised).__name__}: {' '.join(str(raised).split())[:600]} ({place})"


def main(*arguments: str) -> None:
    """Run scenarios, and write what is known after each."""
    ends = arguments[0] == "--raise"
    result, *names = arguments[ends:]
    recorder = Recorder()
    if not ends:
        recorder.install()
    outcomes = []
    for name in names:
        print(f"## {name}", flush=True)
        outcomes.append(run(name, recorder))
        Path(result).write_bytes(msgspec.json.encode(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
