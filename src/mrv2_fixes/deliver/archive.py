"""A zip archive made of another: what stays the same is copied as the compressed bytes it is.

The same archive and changes give the same bytes on every machine: new content is stored, since
what a compressor makes of it depends on the zlib at hand. zipfile, which reads the old archive, has
no way to copy a file without decompressing it; what it would write is written here instead, after
sections 4.3 and 4.5 of the format's APPNOTE.TXT.
"""

from __future__ import annotations

import itertools
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

HEADER = struct.Struct("<4s5H3L2H")  # before the data of each file
ENTRY = struct.Struct("<4s6H3L5H2L")  # in the directory at the end
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
DESCRIPTOR, UTF8 = 0x8, 0x800  # flags: the sizes stand behind the data; the name is in UTF-8
ZIP64, ZIP64_VERSION = 1, 45  # the extra field for large numbers, and the version that has it
ELSEWHERE, MANY = 0xFFFFFFFF, 0xFFFF  # in place of a number: it is too large to stand here
CHUNK = 1 << 20  # bytes

Pieces = list["bytes | range"]
"""An archive, one piece behind the other: new bytes, or which bytes of the old one."""


class Member(NamedTuple):
    """A file of the new archive.

    like: the file of the old one that it has its date and attributes from.
    name: what it is called.
    content: what it holds; None for what `like` holds.
    """

    like: zipfile.ZipInfo
    name: str
    content: bytes | None = None


class Kept(NamedTuple):
    """What is said of a file both before its data and in the directory; sizes in bytes."""

    flags: int
    method: int
    time: int
    date: int
    crc: int
    compressed: int
    size: int


def layout(source: BinaryIO, members: Iterable[Member], comment: bytes) -> Pieces:
    """Lay out the new archive; nothing of the old one is in it but the members.

    source: the old archive, open.
    Raises BadZipFile when what stands before a file's data is at odds with the directory, or two
    files share bytes.
    """
    pieces: Pieces = []
    directory = []
    position = 0
    for like, name, content in members:
        encoded, kept = name.encode(), _kept(like, name, content)
        header = _header(like, encoded, kept)
        directory.append(_entry(like, encoded, kept, position))
        for piece in _copied(source, like, header, kept) if content is None else (header, content):
            position += len(piece)
            _append(pieces, piece)
    copied = [piece for piece in pieces if isinstance(piece, range)]
    copied.sort(key=lambda extent: extent.start)
    if any(one.stop > following.start for one, following in itertools.pairwise(copied)):
        raise zipfile.BadZipFile("files in it share bytes")
    entries = b"".join(directory)
    return [*pieces, entries, _end(len(directory), len(entries), position, comment)]


def write(source: BinaryIO, pieces: Pieces, path: Path) -> None:
    """Write the archive `path`. Raises OSError, BadZipFile when the old one ends early."""
    with path.open("wb") as file:
        for piece in pieces:
            if isinstance(piece, range):
                _copy(source, piece, file)
            else:
                file.write(piece)


def _kept(like: zipfile.ZipInfo, name: str, content: bytes | None) -> Kept:
    """One form for all: sizes in front, and a name in UTF-8 only where it has to be."""
    year, month, day, hour, minute, second = like.date_time
    time, date = hour << 11 | minute << 5 | second >> 1, (year - 1980) << 9 | month << 5 | day
    flags = 0 if name.isascii() else UTF8
    if content is not None:
        size = len(content)
        return Kept(flags, zipfile.ZIP_STORED, time, date, zlib.crc32(content), size, size)
    flags |= like.flag_bits & ~(DESCRIPTOR | UTF8)
    sizes = (like.compress_size, like.file_size)
    return Kept(flags, like.compress_type, time, date, like.CRC, *sizes)


def _header(like: zipfile.ZipInfo, name: bytes, kept: Kept) -> bytes:
    """What stands before a file's data."""
    version, extra = like.extract_version, b""
    if kept.compressed >= ELSEWHERE or kept.size >= ELSEWHERE:
        extra = struct.pack("<2H2Q", ZIP64, 16, kept.size, kept.compressed)
        version = max(version, ZIP64_VERSION)
        kept = kept._replace(compressed=ELSEWHERE, size=ELSEWHERE)
    return HEADER.pack(b"PK\3\4", version, *kept, len(name), len(extra)) + name + extra


def _entry(like: zipfile.ZipInfo, name: bytes, kept: Kept, position: int) -> bytes:
    """What stands in the directory for a file that is at `position`."""
    made_by = like.create_system << 8 | like.create_version
    version, extra = like.extract_version, _without_zip64(like.extra) if like.extra else b""
    if kept.compressed >= ELSEWHERE or kept.size >= ELSEWHERE or position >= ELSEWHERE:
        numbers = (kept.size, kept.compressed, position)
        large = [number for number in numbers if number >= ELSEWHERE]
        extra = struct.pack(f"<2H{len(large)}Q", ZIP64, 8 * len(large), *large) + extra
        version, position = max(version, ZIP64_VERSION), min(position, ELSEWHERE)
        sizes = (min(kept.compressed, ELSEWHERE), min(kept.size, ELSEWHERE))
        kept = kept._replace(compressed=sizes[0], size=sizes[1])
    lengths = (len(name), len(extra), len(like.comment), 0)
    attributes = (like.internal_attr, like.external_attr, position)
    entry = ENTRY.pack(b"PK\1\2", made_by, version, *kept, *lengths, *attributes)
    return entry + name + extra + like.comment


def _end(count: int, size: int, position: int, comment: bytes) -> bytes:
    """What stands behind a directory of so many files and bytes that is at `position`."""
    large = b""
    if count >= MANY or max(size, position) >= ELSEWHERE:
        versions = (ZIP64_VERSION, ZIP64_VERSION)
        large = END64.pack(b"PK\6\6", 44, *versions, 0, 0, count, count, size, position)
        large += LOCATOR.pack(b"PK\6\7", 0, position + size, 1)
    count = min(count, MANY)
    where = (min(size, ELSEWHERE), min(position, ELSEWHERE))
    return large + END.pack(b"PK\5\6", 0, 0, count, count, *where, len(comment)) + comment


def _copied(source: BinaryIO, like: zipfile.ZipInfo, header: bytes, kept: Kept) -> Pieces:
    """A file of the old archive, with `header` in front unless it stands there already."""
    known = like.orig_filename
    name = known.encode("utf-8" if like.flag_bits & UTF8 or known.isascii() else "cp437")
    there = os.pread(source.fileno(), HEADER.size + len(name), like.header_offset)
    data = like.header_offset + len(there)
    if there == header:
        return [range(like.header_offset, data + kept.compressed)]
    if len(there) < HEADER.size + len(name):
        raise zipfile.BadZipFile(f"{like.filename}: it ends before that")
    signature, _, flags, method, _, _, crc, *sizes, length, extra = HEADER.unpack_from(there)
    said = (signature, method, length, there[HEADER.size :])
    fits = said == (b"PK\3\4", kept.method, len(name), name)
    if not flags & DESCRIPTOR:
        both = zip(sizes, (kept.compressed, kept.size), strict=True)
        fits = fits and crc == kept.crc and all(one in (size, ELSEWHERE) for one, size in both)
    if not fits:
        raise zipfile.BadZipFile(f"{like.filename} in it is not what its directory says")
    return [header, range(data + extra, data + extra + kept.compressed)]


def _append(pieces: Pieces, piece: bytes | range) -> None:
    """Put `piece` behind the others, as one with the last where it continues that."""
    last = pieces[-1] if pieces else b""
    if isinstance(last, range) and isinstance(piece, range) and last.stop == piece.start:
        pieces[-1] = range(last.start, piece.stop)
    else:
        pieces.append(piece)


def _without_zip64(extra: bytes) -> bytes:
    kept = b""
    while len(extra) >= 4:
        tag, size = struct.unpack_from("<2H", extra)
        kept += extra[: 4 + size] if tag != ZIP64 else b""
        extra = extra[4 + size :]
    return kept


def _copy(source: BinaryIO, extent: range, target: BinaryIO) -> None:
    """Copy bytes of one file to where another is at, inside the kernel where it can."""
    target.flush()  # from here on, both ways write where the descriptor is at
    position = extent.start
    while position < extent.stop:
        count = extent.stop - position
        try:
            done = os.copy_file_range(source.fileno(), target.fileno(), count, position)
        except (AttributeError, OSError):
            break  # whatever is the matter, such as no room, is met again below
        if not done:
            break
        position += done
    while position < extent.stop:
        chunk = os.pread(source.fileno(), min(CHUNK, extent.stop - position), position)
        if not chunk:
            raise zipfile.BadZipFile("it ends before its last file does")
        target.write(chunk)
        position += len(chunk)
