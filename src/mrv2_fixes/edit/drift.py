"""What an edit raises when the code is neither as it should be nor as the edit expects it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Drift(Exception):
    """A place where a patch does not fit.

    file: path below the root, such as ``vllm/v1/worker/gpu/model_states/default.py``.
    symbol: the class or method, empty when the whole file is meant.
    sought: what the edit looked for.
    found: what stands there.
    """

    file: str
    symbol: str
    sought: str
    found: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.symbol}" if self.symbol else self.file
        return f"{place}: sought {self.sought}; found {self.found}"
