"""What became of each place that an edit was about."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """What became of one place."""

    ABSENT = "absent"  # neither the class or function nor its file exists
    PRESENT = "present"
    OTHERWISE = "otherwise"  # the fix is there in another form, which needs nothing of ours
    CHANGED = "changed"


@dataclass(frozen=True)
class Place:
    """One place that an edit was about, for people to read."""

    file: str
    symbol: str
    what: str
    outcome: Outcome
