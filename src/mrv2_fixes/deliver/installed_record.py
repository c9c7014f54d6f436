"""The `RECORD` of an installed distribution: rows replaced, and put back, to the byte.

Only the rows of the files concerned change; order, line ends and all other rows stay.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence, Set

from mrv2_fixes.targets import wheel_record

Rows = Sequence[tuple[bytes, bytes]]


def lists(text: bytes, path: str) -> bool:
    """Whether a RECORD has a row for `path`."""
    return path.encode() in text and any(_path(line) == path for line in text.splitlines())


def replace(
    text: bytes, files: Mapping[str, bytes], gone: Set[str]
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """RECORD with the hash and size of `files`, and without the rows of `gone`.

    With it, for `put_back`, what stood there and what stands there instead.
    """
    out: list[bytes] = []
    rows: list[tuple[bytes, bytes]] = []
    dropped = b""
    for line in text.splitlines(keepends=True):
        path = _path(line)
        if path in gone:
            dropped += line
            continue
        new = row(path, files[path], _end(line)) if path in files else line
        if dropped + line != new:
            # A row that went is remembered with the next that stays, which tells where it was.
            rows.append((dropped + line, new))
        out.append(new)
        dropped = b""
    if dropped:
        last = out[-1] if out else b""
        was = rows.pop()[0] if rows and rows[-1][1] == last else last
        rows.append((was + dropped, last))
    return b"".join(out), rows


def put_back(text: bytes, rows: Rows) -> tuple[bytes, bool]:
    """RECORD with what stood there before `replace`, and whether all of it could be put back."""
    whole = True
    for was, now in reversed(rows):
        if _find(text, was) >= 0:
            continue
        at = _find(text, now)
        if at >= 0:
            text = text[:at] + was + text[at + len(now) :]
        else:
            whole = False
    return text, whole


def with_own(text: bytes, path: str, content: bytes | None) -> bytes:
    """RECORD with the row of a file of ours, in the place of an earlier one or as the first.

    content: None for no file and no row.
    """
    if content is None:
        return replace(text, {}, {path})[0]
    if lists(text, path):
        return replace(text, {path: content}, set())[0]
    return row(path, content, _end(text.partition(b"\n")[0] + b"\n")) + text


def row(path: str, content: bytes, end: bytes = b"\n") -> bytes:
    """The row of a file, whose line ends with `end`, as those around it do."""
    return ",".join(wheel_record.line(path, content)).encode() + end


def _find(text: bytes, rows: bytes) -> int:
    """Where `rows` begin, at the start of a line; -1 when they are not there."""
    return (b"\n" + text).find(b"\n" + rows)


def _path(line: bytes) -> str:
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
    if not text.startswith('"'):
        return text.partition(",")[0]
    return next(csv.reader([text]))[0]


def _end(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]
