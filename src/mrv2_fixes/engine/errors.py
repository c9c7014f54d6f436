"""What goes wrong with the engine itself, as opposed to what is run on it."""

from __future__ import annotations

from mrv2_fixes.errors import Mrv2Error


class EngineError(Mrv2Error):
    """An environment, a tree or a run could not be made; nothing is known of the tests."""
