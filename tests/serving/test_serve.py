"""`vllm serve` with the V2 runner: it dies as the headers say, and with the series it answers."""

from __future__ import annotations

import re

import pytest

from mrv2_fixes import engine, series

from . import traffic
from .conftest import RELEASE, Model
from .server import Server, serve

pytestmark = pytest.mark.engine

FORWARD = "forward-seq-lens-cpu-upper-bound"
GATE = "gate-speculative-tensors"


def assert_dies(server: Server, model: Model, slug: str) -> None:
    """No client gets a whole answer, and the server ends with the failure of the patch's header."""
    answers = traffic.send(server.socket, model.folder, model.requests)
    for request, answer in zip(model.requests, answers, strict=True):
        assert answer.error or request.leaves
    server.wait_until_ended()
    (reproducer,) = series.load().patch(slug).reproducers(RELEASE)
    raised = (
        rf'{reproducer.failure.file}", line \d+, in .*\n.* {re.escape(reproducer.failure.message)}'
    )
    assert re.search(raised, server.output), server.output


@pytest.mark.parametrize("kind", ["lfm2", "granite"])
def test_as_published_it_dies(
    published: engine.Environment, models: dict[str, Model], kind: str
) -> None:
    with serve(published, models[kind].folder, engine.variables(published)) as server:
        assert_dies(server, models[kind], FORWARD)


def test_without_the_gate_it_dies_when_a_request_joins(
    plugin: engine.Environment, models: dict[str, Model]
) -> None:
    variables = engine.variables(plugin) | {"MRV2_FIXES": FORWARD}
    with serve(plugin, models["granite"].folder, variables) as server:
        assert_dies(server, models["granite"], GATE)


@pytest.mark.parametrize("kind", ["lfm2", "granite"])
def test_it_answers_with_transformers_tokens(
    plugin: engine.Environment, models: dict[str, Model], kind: str
) -> None:
    model = models[kind]
    with serve(plugin, model.folder, engine.variables(plugin)) as server:
        answers = traffic.send(server.socket, model.folder, model.requests)
        (last,) = traffic.send(server.socket, model.folder, model.requests[:1])
        _, metrics = traffic.get(server.socket, "/metrics")
        assert server.stop() == 0
    for request, answer, expected in zip(model.requests, answers, model.expected, strict=True):
        if not request.leaves:
            assert (answer.status, answer.error, answer.token_ids) == (200, "", expected)
        elif request.streamed:
            assert answer.token_ids == expected[:1]
    assert last.token_ids == model.expected[0]
    # who left is not served to the end
    whole = re.findall(r'^vllm:request_success_total.*"length".* ([\d.]+)$', metrics, re.MULTILINE)
    assert whole == [f"{1 + sum(not request.leaves for request in model.requests):.1f}"]
