"""A zip archive made of another: what stays the same is copied as the compressed bytes it is.

The same archive and changes give the same bytes on every machine: new content is stored, since
what a compressor makes of it depends on the zlib at hand.
"""

from __future__ import annotations

import copy
import itertools
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

# What stands before the data of a file (APPNOTE.TXT, 4.3.7), up to its name.
HEADER = struct.Struct("<4s5H3L2H")
SIGNATURE = b"PK\x03\x04"
DESCRIPTOR, UTF8 = 0x8, 0x800  # flags: the sizes stand behind the data; the name is in UTF-8
ELSEWHERE = 0xFFFFFFFF  # in place of a size: it stands in the extra field
ZIP64 = 1  # the extra field for such sizes
CHUNK = 1 << 20  # bytes


class Member(NamedTuple):
    """A file of the new archive.

    like: the file of the old one that it has its date and attributes from.
    name: what it is called.
    content: what it holds; None for what `like` holds.
    """

    like: zipfile.ZipInfo
    name: str
    content: bytes | None = None


@dataclass(frozen=True)
class Layout:
    """A new archive, but for the directory at its end.

    pieces: one behind the other: new bytes, or which bytes of the old archive.
    entries: the directory.
    """

    pieces: Sequence[bytes | range]
    entries: Sequence[zipfile.ZipInfo]


def layout(source: BinaryIO, members: Iterable[Member]) -> Layout:
    """Lay out the new archive, without a gap; nothing of the old one is in it but the members.

    source: the old archive, open.
    Raises BadZipFile when what stands before a file's data is at odds with the directory, or two
    files share bytes.
    """
    pieces: list[bytes | range] = []
    entries = []
    copied = []
    position = 0
    for member in members:
        entry = _entry(member, position)
        if member.content is not None:
            new: list[bytes | range] = [entry.FileHeader(), member.content]
        else:
            flags, header, data = _read_header(source, member.like)
            copied.append(range(header.start, data.stop))
            if (flags, member.name) == (entry.flag_bits, member.like.orig_filename):
                new = [header, data]
            else:
                new = [entry.FileHeader(), data]
        entries.append(entry)
        for piece in new:
            position += len(piece)
            _append(pieces, piece)
    copied.sort(key=lambda extent: extent.start)
    if any(one.stop > following.start for one, following in itertools.pairwise(copied)):
        raise zipfile.BadZipFile("files that share bytes")
    return Layout(pieces, entries)


def write(source: BinaryIO, made: Layout, comment: bytes, path: Path) -> None:
    """Write the archive `path`. Raises OSError, BadZipFile when the old one ends early."""
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as target:
        for piece in made.pieces:
            if isinstance(piece, range):
                _copy(source, piece, file)
            else:
                file.write(piece)
        # zipfile has no public way to take compressed bytes as they are; with these two it writes
        # the directory of what stands there, in every size of archive.
        target.filelist = list(made.entries)
        target.start_dir = file.tell()
        target.comment = comment


def _entry(member: Member, position: int) -> zipfile.ZipInfo:
    """The new directory's entry, in the one form that everything is written in."""
    entry = copy.copy(member.like)
    entry.filename, entry.header_offset = member.name, position
    entry.flag_bits &= ~(DESCRIPTOR | UTF8)
    entry.flag_bits |= 0 if member.name.isascii() else UTF8
    entry.extra = _without_zip64(entry.extra)  # zipfile adds it where it is needed
    if member.content is not None:
        entry.compress_type, entry.flag_bits = zipfile.ZIP_STORED, entry.flag_bits & UTF8
        entry.CRC = zlib.crc32(member.content)
        entry.file_size = entry.compress_size = len(member.content)
    return entry


def _read_header(source: BinaryIO, entry: zipfile.ZipInfo) -> tuple[int, range, range]:
    """The flags of the header before a file's data, where the header lies, and where the data."""
    name = entry.orig_filename.encode("utf-8" if entry.flag_bits & UTF8 else "cp437")
    start = entry.header_offset
    header = os.pread(source.fileno(), HEADER.size + len(name), start)
    if len(header) != HEADER.size + len(name):
        raise zipfile.BadZipFile(f"{entry.filename}: no header before its data")
    signature, _, flags, method, _, _, crc, *sizes, length, extra = HEADER.unpack_from(header)
    said = (signature, method, length, header[HEADER.size :])
    same = said == (SIGNATURE, entry.compress_type, len(name), name)
    if same and not flags & DESCRIPTOR:
        expected = entry.compress_size, entry.file_size
        same = crc == entry.CRC and all(
            size in (want, ELSEWHERE) for size, want in zip(sizes, expected, strict=True)
        )
    if not same:
        raise zipfile.BadZipFile(f"{entry.filename}: its header is at odds with the directory")
    data = start + HEADER.size + length + extra
    return flags, range(start, data), range(data, data + entry.compress_size)


def _append(pieces: list[bytes | range], piece: bytes | range) -> None:
    """Put `piece` behind the others, as one with the last where it continues that."""
    last = pieces[-1] if pieces else b""
    if isinstance(last, range) and isinstance(piece, range) and last.stop == piece.start:
        pieces[-1] = range(last.start, piece.stop)
    else:
        pieces.append(piece)


def _without_zip64(extra: bytes) -> bytes:
    kept = b""
    while len(extra) >= 4:
        tag, size = struct.unpack_from("<HH", extra)
        kept += extra[: 4 + size] if tag != ZIP64 else b""
        extra = extra[4 + size :]
    return kept


def _copy(source: BinaryIO, extent: range, target: BinaryIO) -> None:
    """Copy bytes of one file to where another is at, inside the kernel where it can."""
    target.flush()
    position = extent.start
    while position < extent.stop:
        try:
            done = os.copy_file_range(
                source.fileno(), target.fileno(), extent.stop - position, position
            )
        except (AttributeError, OSError):
            break  # whatever is the matter, such as no room, is met again below
        if not done:
            break
        position += done
    target.seek(0, os.SEEK_END)
    while position < extent.stop:
        chunk = os.pread(source.fileno(), min(CHUNK, extent.stop - position), position)
        if not chunk:
            raise zipfile.BadZipFile("it ends before its last file does")
        target.write(chunk)
        position += len(chunk)
