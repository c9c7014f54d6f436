"""Takes what the check finds instead of letting it raise, and adds up what is alike."""

import dataclasses
from typing import Any

import msgspec

from tests.contract.outcome import Seen

BOOTING = -1


@dataclasses.dataclass
class Recorder:
    """What the check has found in the scenario at hand.

    step: the engine's step that is under way.
    """

    step: int = BOOTING
    seen: dict[tuple[Any, ...], Seen] = dataclasses.field(default_factory=dict)

    def install(self) -> None:
        """Have the check of this process report to it; the check has to be on."""
        from vllm.v1.worker.gpu import attn_metadata_contract, attn_utils

        assert hasattr(attn_utils.build_attn_metadata, "__wrapped__"), "the check is off"
        attn_metadata_contract.on_breaches = self.add

    def begin(self) -> None:
        """Forget what was seen: another engine boots."""
        self.step = BOOTING
        self.seen.clear()

    def add(self, breaches: Any) -> None:
        """Take the breaches of one build."""
        for breach in breaches:
            key = (breach.group, breach.kind, breach.layer, breach.field)
            found = self.seen.get(key)
            self.seen[key] = (
                msgspec.structs.replace(found, count=found.count + 1)
                if found
                else Seen(*key, breach.row, str(breach.expected), str(breach.found), 1, self.step)
            )

    def findings(self) -> tuple[Seen, ...]:
        """What was found, each once."""
        return tuple(self.seen.values())
