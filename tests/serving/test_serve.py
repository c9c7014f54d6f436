"""`vllm serve` with the V2 runner: it dies as the headers say, and with the series it answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mrv2_fixes import engine, series

from . import traffic
from .conftest import RELEASE, Model
from .server import Server, serve

pytestmark = pytest.mark.engine

HYBRID = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
FORWARD = "forward-seq-lens-cpu-upper-bound"
GATE = "gate-speculative-tensors"


def assert_dies(server: Server, model: Model, slug: str) -> list[traffic.Answer]:
    """The server ends with the failure of the patch's header; the answers that it gave before."""
    answers = traffic.send(server.socket, model.folder, model.requests)
    server.wait_until_ended()
    (reproducer,) = series.load().patch(slug).reproducers(RELEASE)
    raised = (
        rf'{reproducer.failure.file}", line \d+, in .*\n.* {re.escape(reproducer.failure.message)}'
    )
    assert re.search(raised, server.output), server.output
    assert answers[-1].error
    return answers


@pytest.mark.parametrize("kind", ["lfm2", "granite"])
def test_as_published_it_dies(
    published: engine.Environment, models: dict[str, Model], kind: str
) -> None:
    with serve(published, models[kind].folder, engine.variables(published)) as server:
        answers = assert_dies(server, models[kind], FORWARD)
    assert not any(answer.token_ids for answer in answers)


def test_without_the_gate_it_dies_when_a_request_joins(
    plugin: engine.Environment, models: dict[str, Model]
) -> None:
    variables = engine.variables(plugin) | {"MRV2_FIXES": FORWARD}
    with serve(plugin, models["granite"].folder, variables) as server:
        assert_dies(server, models["granite"], GATE)


def test_where_a_fix_does_not_fit_it_does_not_start(
    plugin: engine.Environment, models: dict[str, Model], tmp_path: Path
) -> None:
    text = (plugin.vllm.parent / HYBRID).read_text()
    changed = text.replace("if not for_capture:", "if not for_capture and self.on:")
    tree = engine.patched_tree(plugin, {HYBRID: changed}, tmp_path)
    refused = f"refusing to start: {GATE}: drifted: {HYBRID}: MambaHybridModelState.prepare_attn"
    with (
        pytest.raises(AssertionError, match=re.escape(refused)),
        serve(plugin, models["lfm2"].folder, engine.variables(plugin, [tree])),
    ):
        pass


WHEEL = f"{RELEASE}+mrv2.{series.load().revision}"
# By way: the version that the server says it has, and how many of its processes say what is in.
WAYS = [("plugin", RELEASE, 3), ("wheel", WHEEL, 0), ("apply", RELEASE, 0)]


@pytest.mark.parametrize("kind", ["lfm2", "granite"])
@pytest.mark.parametrize(("way", "version", "lines"), WAYS, ids=[way for way, _, _ in WAYS])
def test_it_answers_with_transformers_tokens(
    request: pytest.FixtureRequest,
    models: dict[str, Model],
    kind: str,
    way: str,
    version: str,
    lines: int,
) -> None:
    environment: engine.Environment = request.getfixturevalue(way)
    model = models[kind]
    with serve(environment, model.folder, engine.variables(environment)) as server:
        answers = traffic.send(server.socket, model.folder, model.requests)
        (last,) = traffic.send(server.socket, model.folder, model.requests[:1])
        metrics = traffic.get(server.socket, "/metrics")[1]
        assert json.loads(traffic.get(server.socket, "/version")[1]) == {"version": version}
        assert server.stop() == 0
    for sent, answer, expected in zip(model.requests, answers, model.expected, strict=True):
        if not sent.leaves:
            assert (answer.status, answer.error, answer.token_ids) == (200, "", expected)
        elif sent.streamed:
            assert answer.token_ids == expected
    assert last.token_ids == model.expected[0]
    # who left is not served to the end, but for one whose leaving the server saw too late
    whole = re.findall(r'^vllm:request_success_total.*"length".* ([\d.]+)$', metrics, re.MULTILINE)
    (count,) = map(float, whole)
    assert 1 + sum(not sent.leaves for sent in model.requests) <= count <= len(model.requests) - 1
    said = re.findall(rf" mrv2-fixes \S+ on vLLM {RELEASE}: .*{GATE} import hook", server.output)
    assert len(said) == lines
