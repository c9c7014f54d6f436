"""What a delivery wrote into a vLLM, kept beside it so that it can be read back and taken away."""

from __future__ import annotations

import msgspec

from mrv2_fixes.deliver.transaction import File

PATH = "vllm/.mrv2-fixes.json"


class Listing(msgspec.Struct, frozen=True):
    """The `RECORD` of an installed distribution, as far as it was changed.

    file: how it stood, without its content.
    rows: what was there and what is there instead, in order.
    """

    file: File
    rows: tuple[tuple[bytes, bytes], ...]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file `PATH` below the folder that holds `vllm/`.

    delivery: "apply" or "wheel".
    version: of this program.
    patches: the slugs.
    files: path to SHA-256 of each file as it was written.
    vllm: what the vLLM said it was; None when it did not say, or when that is of no use.
    originals: path to the file that stood there, None for none; empty when they are not kept.
    listings: path to each `RECORD` that lists the files.
    """

    delivery: str
    version: str
    patches: tuple[str, ...]
    files: dict[str, str]
    vllm: str | None = None
    originals: dict[str, File | None] = {}
    listings: dict[str, Listing] = {}
