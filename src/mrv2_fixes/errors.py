"""What goes wrong, and the exit status that each kind has."""

from __future__ import annotations

NEEDED = 1  # something is needed, or a proof failed
WRONG_CALL = 2
DRIFTED = 3  # drifted or tampered
UNUSABLE = 4


class Mrv2Error(Exception):
    """One line for people: the thing it is about, what is wrong with it, and the way out."""

    exit_status = UNUSABLE


class WrongCall(Mrv2Error):
    """What was asked for does not make sense, whatever the target holds."""

    exit_status = WRONG_CALL


class TargetUnusable(Mrv2Error):
    """The target is not a vLLM, or cannot be reached, read or written."""


class SeriesError(Mrv2Error):
    """The series itself is wrong: a header, the order, or two patches at odds."""


class Drifted(Mrv2Error):
    """A patch does not fit the target, so nothing is written."""

    exit_status = DRIFTED
