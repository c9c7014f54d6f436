"""What a delivery wrote into a vLLM, kept beside it so that it can be read back and taken away."""

from __future__ import annotations

import msgspec

PATH = "vllm/.mrv2-fixes.json"
# There while files change; `mrv2_fixes.deliver.transaction` says what for.
JOURNAL = "vllm/.mrv2-fixes.journal"
NOTED = f"{JOURNAL}.new"


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file as it stands on disk.

    content: what a reader gets, also through a link.
    mode: permission bits; of a link, those of what it leads to.
    mtime_ns: nanoseconds since the epoch; of a link, its own.
    owner: user and group id.
    link: what a symbolic link says; None for a regular file.
    """

    content: bytes
    mode: int
    mtime_ns: int
    owner: tuple[int, int]
    link: str | None = None


class RecordRows(msgspec.Struct, frozen=True):
    """What was changed in the `RECORD` that Python packaging keeps of a distribution.

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
    listings: dict[str, RecordRows] = {}


def encode(record: Record) -> bytes:
    """The file; in lines for people, unless the whole of other files is in it."""
    content = msgspec.json.encode(record)
    return content if record.originals else msgspec.json.format(content, indent=2) + b"\n"
