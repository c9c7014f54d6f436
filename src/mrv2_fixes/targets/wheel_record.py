"""A wheel's RECORD: what it says of each file, and whether that is so."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets.wheel import DAMAGED, Wheel

# Those that the specification of wheels lets stand: SHA-256 and what is not weaker.
ALGORITHMS = ("sha256=", "sha384=", "sha512=")
SIGNATURES = ("RECORD.jws", "RECORD.p7s")
CHUNK = 1 << 20  # bytes


class Line(NamedTuple):
    """One line: the hash as algorithm and digest, and the size in bytes, as they are written."""

    path: str
    hash: str
    size: str


def line(path: str, content: bytes) -> Line:
    """What RECORD has to say of a file."""
    return Line(path, _written("sha256", hashlib.sha256(content).digest()), str(len(content)))


def serialize(lines: Iterable[tuple[str, str, str]]) -> bytes:
    """The file RECORD."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def name(wheel: Wheel) -> str:
    """Where RECORD stands in `wheel`. Raises TargetUnusable when it has none, or is signed."""
    folders = wheel.dist_infos
    if len(folders) != 1 or f"{folders[0]}/RECORD" not in wheel.members:
        raise _wrong(wheel, "not one .dist-info folder with a RECORD")
    for signature in SIGNATURES:
        if f"{folders[0]}/{signature}" in wheel.members:
            raise TargetUnusable(
                f"{wheel.path}: signed ({signature}), which holds for its own files alone: "
                "take the signature out if you mean to change them"
            )
    return f"{folders[0]}/RECORD"


def read(wheel: Wheel) -> dict[str, Line]:
    """Path to line, in order. Raises TargetUnusable unless they are the files that are there."""
    own = name(wheel)
    lines: dict[str, Line] = {}
    try:
        rows = list(csv.reader(io.StringIO(wheel.read(own).decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _wrong(wheel, f"RECORD cannot be read: {error}") from error
    for row in filter(None, rows):
        if len(row) != 3:
            raise _wrong(wheel, f"RECORD has a line of {len(row)} fields, for {row[0]}")
        if row[0] in lines:
            raise _wrong(wheel, f"{row[0]} is in RECORD twice")
        if row[0] not in wheel.members:
            raise _wrong(wheel, f"{row[0]} is in RECORD and not there")
        lines[row[0]] = Line(*row)
    for path, entry in wheel.members.items():
        found = lines.get(path)
        if found is None:
            raise _wrong(wheel, f"{path} is not in RECORD")
        if not found.hash.startswith(ALGORITHMS) and path != own:
            raise _wrong(wheel, f"{path} has no hash in RECORD that counts, such as sha256")
        if found.size not in ("", str(entry.file_size)):
            size = f"{entry.file_size} bytes where RECORD has {found.size}"
            raise _wrong(wheel, f"{path} has {size}")
    return lines


def verify(
    wheel: Wheel, lines: Mapping[str, Line], paths: Iterable[str], progress: Callable[[str], None]
) -> None:
    """Read the files `paths` and compare them with RECORD, on all cores.

    Raises TargetUnusable, which names the first that is another, or damaged.
    """
    entries = [wheel.members[path] for path in paths if lines[path].hash]
    size = sum(entry.file_size for entry in entries)
    count = f"{len(entries)} of {len(lines) - 1} files, {size / (1 << 20):.1f} MiB"
    progress(f"comparing {wheel.path.name} with its RECORD: {count}")

    def fault(path: str) -> str:
        algorithm, _, expected = lines[path].hash.partition("=")
        digest = hashlib.new(algorithm)
        try:
            with wheel.archive.open(path) as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except DAMAGED as error:
            return f"{path} in it is damaged: {error}"
        written = _written(algorithm, digest.digest())
        return "" if written == f"{algorithm}={expected}" else f"{path} is not what RECORD says"

    # From the end, the largest first: none is left for when the other cores have nothing to do.
    ahead = sorted(entries, key=lambda entry: entry.file_size)

    def work() -> list[str]:
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(fault(ahead.pop().filename))
        return found

    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        working = [pool.submit(work) for _ in range(cores)]
    faults = sorted(filter(None, itertools.chain(*(one.result() for one in working))))
    if faults:
        others = f", and {len(faults) - 1} more" if faults[1:] else ""
        raise _wrong(wheel, f"{faults[0]}{others}")


def _written(algorithm: str, digest: bytes) -> str:
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _wrong(wheel: Wheel, fault: str) -> TargetUnusable:
    return TargetUnusable(f"{wheel.path}: {fault}: get the official wheel")
