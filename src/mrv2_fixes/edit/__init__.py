"""The words in which a patch states its change: in this method, at the one call of this name, …

A patch's ``edit.py`` gets a `Vllm` and says what must hold; see `mrv2_fixes.edit.vllm`.
"""

from mrv2_fixes.edit.drift import Drift
from mrv2_fixes.edit.place import Outcome, Place
from mrv2_fixes.edit.vllm import Vllm

__all__ = ["Drift", "Outcome", "Place", "Vllm"]
