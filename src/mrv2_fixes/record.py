"""What a delivery wrote into a vLLM, kept beside it so that it can be read back and taken away."""

from __future__ import annotations

import msgspec

PATH = "vllm/.mrv2-fixes.json"


class Record(msgspec.Struct, frozen=True):
    """The file `PATH` below the folder that holds `vllm/`.

    delivery: "apply" or "wheel".
    version: of this program.
    patches: the slugs.
    files: path to SHA-256 of each file as it was written.
    """

    delivery: str
    version: str
    patches: tuple[str, ...]
    files: dict[str, str]
