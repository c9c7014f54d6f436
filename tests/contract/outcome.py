"""What one scenario came to, as it goes from the engine's process to the one that asked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """A breach of the contract, as often as it was seen in one scenario.

    group, kind, field: which KV cache group (None for layers without one), the layers in it, and
    what was wrong.
    row, expected, found: of the first. step: the engine's step that it was in; -1 for booting.
    """

    group: int | None
    kind: str
    layer: str
    field: str
    row: int | None
    expected: str
    found: str
    count: int
    step: int


class Outcome(msgspec.Struct, frozen=True):
    """What a scenario showed.

    error: what ended it early, in one line. wrong: the requests whose tokens or log-probabilities
    are not the reference's, with the first place. counters: what was counted, as "preempted".
    """

    scenario: str
    seconds: float
    error: str = ""
    wrong: tuple[str, ...] = ()
    counters: Mapping[str, int] = {}
    findings: tuple[Seen, ...] = ()
