"""A finding of the audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What is wrong, in words."""

    BOUND = "bound not forwarded"
    OVER = "max_seq_len over-estimated"
    SPECULATIVE = "speculative tensor not gated"
    ONCE = "never renewed"
    DROPPED = "field dropped"


class Sure(str, Enum):
    """How sure it is that this hurts somebody.

    LOOK: the code is as said; whether a backend of such a model reads it is not decided here.
    """

    CERTAIN = "certain"
    LIKELY = "likely"
    LOOK = "worth a look"

    @property
    def rank(self) -> int:
        """0 for the surest."""
        return list(Sure).index(self)


@dataclass(frozen=True)
class Finding:
    """One breach of the contract of attention metadata.

    file, line, symbol: where, as the source has it.
    field: of the metadata, or the attribute that it is taken from.
    why: who is hurt, in one line.
    """

    file: str
    line: int
    symbol: str
    kind: Kind
    field: str
    sure: Sure
    why: str

    @property
    def key(self) -> str:
        """What names it from one release to the next: no line is in it."""
        return ": ".join((self.file, self.symbol, self.kind.value, self.field))
