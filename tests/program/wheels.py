"""Wheels for tests: small ones that are true in all they say, and ones that are not."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import random
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mrv2_fixes.deliver import archive

Files = dict[str, bytes]
"""The name of each file in a wheel to what it holds."""

DATE = (2026, 6, 29, 8, 42, 36)
TAGS = "cp38-abi3-manylinux_2_28_x86_64"
LIBRARY = "vllm/_C.abi3.so"
VERSION_FILE = "vllm/_version.py"


def files_of(root: Path, version: str) -> Files:
    """What a wheel of the V2 runner in `root` would hold, as if it were of release `version`."""
    paths = (path for path in sorted((root / "vllm").rglob("*")) if path.is_file())
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    fields = repr(tuple(map(int, version.split("."))))
    files[VERSION_FILE] = (
        f"__version__ = version = '{version}'\n__version_tuple__ = version_tuple = {fields}\n"
    ).encode()
    files[LIBRARY] = random.Random(0).randbytes(100_000) * 3
    folder = f"vllm-{version}.dist-info"
    files[f"{folder}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\nRequires-Dist: six\n\nVersion: 1\n"
    ).encode()
    files[f"{folder}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: {TAGS}\n".encode()
    )
    files[f"{folder}/entry_points.txt"] = b"[console_scripts]\nvllm = vllm:main\n"
    return sealed(files)


def sealed(files: Files) -> Files:
    """The same with a true RECORD, as the last."""
    others = {name: text for name, text in files.items() if not name.endswith("/RECORD")}
    folder = next(name.partition("/")[0] for name in others if name.endswith("/METADATA"))
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name, text in others.items():
        writer.writerow([name, f"sha256={digest(text)}", len(text)])
    writer.writerow([f"{folder}/RECORD", "", ""])
    return {**others, f"{folder}/RECORD": lines.getvalue().encode()}


def digest(text: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")


def name_of(version: str) -> str:
    return f"vllm-{version}-{TAGS}.whl"


def pack(files: Mapping[str, bytes], path: Path, pairs: tuple[tuple[str, bytes], ...] = ()) -> Path:
    """Write a wheel, with `pairs` behind the files, whatever their names."""
    with zipfile.ZipFile(path, "w") as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names that are there twice
        for name, text in (*files.items(), *pairs):
            made.writestr(info(name), text)
    return path


def info(name: str) -> zipfile.ZipInfo:
    """The entry of a file as a builder of wheels makes it."""
    entry = zipfile.ZipInfo(name, DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
    entry.create_system = 3
    return entry


def raw(path: Path) -> dict[str, bytes]:
    """The name of each file in an archive to its data as they lie there, compressed."""
    content = path.read_bytes()
    found = {}
    with zipfile.ZipFile(path) as made:
        for entry in made.infolist():
            name, extra = struct.unpack_from("<2H", content, entry.header_offset + 26)
            start = entry.header_offset + 30 + name + extra
            found[entry.filename] = content[start : start + entry.compress_size]
    return found


class Laid(io.RawIOBase):
    """A new archive that is laid out and not written, as a file."""

    def __init__(self, source: BinaryIO, pieces: archive.Pieces) -> None:
        self.source, self.pieces, self.position = source, pieces, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size = sum(map(len, self.pieces))
        self.position = offset + {0: 0, 1: self.position, 2: size}[whence]
        return self.position

    def readinto(self, buffer: Any) -> int:
        first = 0
        for piece in self.pieces:
            if self.position < first + len(piece):
                part = piece[self.position - first :][: len(buffer)]
                if isinstance(part, range):
                    self.source.seek(part.start)
                    part = self.source.read(len(part))
                buffer[: len(part)] = part
                self.position += len(part)
                return len(part)
            first += len(piece)
        return 0


# Wheels that are unusual and in order.


class Stream(io.RawIOBase):
    """A file that cannot be sought in, so that sizes stand behind the data."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += data
        return len(data)


def streamed(files: Files, path: Path) -> None:
    stream = Stream()
    with zipfile.ZipFile(stream, "w") as made:
        for name, text in files.items():
            made.writestr(info(name), text)
    path.write_bytes(stream.written)


def with_large_numbers(files: Files, path: Path) -> None:
    """Sizes of eight bytes, as of a builder that does not know them beforehand."""
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            with made.open(info(name), "w", force_zip64=True) as file:
                file.write(text)


def with_gaps(files: Files, path: Path) -> None:
    """Bytes before the first file and between all, as of an archive that was changed in place."""
    with zipfile.ZipFile(path, "w") as made:
        assert made.fp is not None
        for name, text in files.items():
            made.fp.write(b"PK\3\4 no file at all")
            made.start_dir = made.fp.tell()
            made.writestr(info(name), text)
    path.write_bytes(b"#!/bin/sh\nexit 1\n" + path.read_bytes())


def with_a_comment(files: Files, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.comment = b"a comment"
        for name, text in files.items():
            made.writestr(info(name), text)


def with_folders(files: Files, path: Path) -> None:
    pack(files, path, (("vllm/", b""), ("vllm/v1/", b"")))


def with_names_in_utf_8(files: Files, path: Path) -> None:
    """The flag for it on every name, and one that needs it; extra fields; a comment."""
    files = sealed({"vllm/größe.txt": b"L", **files})
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            entry = info(name)
            entry.flag_bits |= 0x800
            entry.extra = struct.pack("<2HBL", 0x5455, 5, 1, 1782722556)
            entry.comment = b"of one file"
            made.writestr(entry, text)


def stored(files: Files, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
        for name, text in files.items():
            made.writestr(zipfile.ZipInfo(name, DATE), text)


def in_another_order(files: Files, path: Path) -> None:
    """A directory that lists the files from the last to the first."""
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(info(name), text)
        made.filelist.reverse()


UNUSUAL: list[Callable[[Files, Path], None]] = [
    streamed,
    with_large_numbers,
    with_gaps,
    with_a_comment,
    with_folders,
    with_names_in_utf_8,
    stored,
    in_another_order,
]


# Wheels that are to be refused, and what is said of each.


def _record(files: Files) -> str:
    return next(name for name in files if name.endswith("/RECORD"))


def _changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Files, Path], None]:
    """A wheel in which one file is another than when RECORD was written."""

    def make(files: Files, path: Path) -> None:
        full = next(full for full in files if full.endswith(name))
        pack({**files, full: change(files[full])}, path)

    return make


def _named(*names: str) -> Callable[[Files, Path], None]:
    """A wheel that has and lists files of these names besides."""

    def make(files: Files, path: Path) -> None:
        extra = dict.fromkeys(names, b"x")
        pack(sealed({**files, **extra}), path)

    return make


def _twice(files: Files, path: Path) -> None:
    pack(files, path, ((LIBRARY, files[LIBRARY]),))


def _not_listed(files: Files, path: Path) -> None:
    pack({"vllm/more.py": b"", **files}, path)


def _not_there(files: Files, path: Path) -> None:
    pack({name: text for name, text in files.items() if name != LIBRARY}, path)


def _listed_twice(files: Files, path: Path) -> None:
    record = files[_record(files)]
    pack({**files, _record(files): record.splitlines(keepends=True)[0] + record}, path)


def _weak_hash(files: Files, path: Path) -> None:
    md5 = base64.urlsafe_b64encode(hashlib.md5(files[LIBRARY]).digest()).rstrip(b"=")
    line = f"sha256={digest(files[LIBRARY])}".encode()
    pack({**files, _record(files): files[_record(files)].replace(line, b"md5=" + md5)}, path)


def _no_record(files: Files, path: Path) -> None:
    pack({name: text for name, text in files.items() if name != _record(files)}, path)


def _signed(files: Files, path: Path) -> None:
    pack({**files, f"{_record(files)}.jws": b"{}"}, path)


def _damaged(files: Files, path: Path) -> None:
    """Bytes in the middle of a file that no patch looks at."""
    pack(files, path)
    with zipfile.ZipFile(path) as made:
        at = made.getinfo(LIBRARY).header_offset + 5000
    content = bytearray(path.read_bytes())
    content[at : at + 100] = bytes(100)
    path.write_bytes(content)


def _other_header(files: Files, path: Path) -> None:
    """A file that unpackers which do not read the directory would write under another name."""
    pack(files, path)
    content = path.read_bytes()
    other = LIBRARY.replace("_C", "_D").encode()
    path.write_bytes(content.replace(LIBRARY.encode(), other, 1))


def _other_size(files: Files, path: Path) -> None:
    """A file that ends elsewhere for unpackers which do not read the directory."""
    pack(files, path)
    with zipfile.ZipFile(path) as made:
        at = made.getinfo(LIBRARY).header_offset + 22
    content = bytearray(path.read_bytes())
    content[at : at + 4] = struct.pack("<L", len(files[LIBRARY]) - 1)
    path.write_bytes(content)


def _patched_before(files: Files, path: Path) -> None:
    one = {"delivery": "wheel", "version": "0", "patches": [], "files": {}}
    pack(sealed({"vllm/.mrv2-fixes.json": repr(one).replace("'", '"').encode(), **files}), path)


def _two(files: Files, path: Path) -> None:
    pack(sealed({**files, "other-1.dist-info/RECORD.txt": b""}), path)


def _of_another_version(files: Files, path: Path) -> None:
    metadata = next(name for name in files if name.endswith("/METADATA"))
    other = files[metadata].replace(b"\nVersion: 0", b"\nVersion: 1", 1)
    pack(sealed({**files, metadata: other}), path)


def _without_version_file(files: Files, path: Path) -> None:
    pack(sealed({name: text for name, text in files.items() if name != VERSION_FILE}), path)


REFUSED: dict[str, tuple[Callable[[Files, Path], None], str]] = {
    "wrong hash": (_changed(LIBRARY, lambda b: b[:-1] + b"\0"), f"{LIBRARY} is not what RECORD"),
    "wrong size": (_changed(LIBRARY, lambda b: b + b"\0"), f"{LIBRARY} has 300001 bytes where"),
    "metadata changed": (
        _changed("/METADATA", lambda b: b.replace(b"six", b"sin")),
        "METADATA is not what RECORD says",
    ),
    "hash of a weak kind": (_weak_hash, f"{LIBRARY} has no hash in RECORD that counts"),
    "not in RECORD": (_not_listed, "vllm/more.py is not in RECORD"),
    "not there": (_not_there, f"{LIBRARY} is in RECORD and not there"),
    "in RECORD twice": (_listed_twice, "is in RECORD twice"),
    "RECORD of other fields": (_changed("/RECORD", lambda b: b + b"a,b\n"), "a line of 2 fields"),
    "RECORD not in UTF-8": (_changed("/RECORD", lambda b: b + b"\xff,,\n"), "RECORD cannot be"),
    "no RECORD": (_no_record, "not one .dist-info folder with a RECORD"),
    "two .dist-info": (_two, "not one .dist-info folder with a RECORD"),
    "signed": (_signed, "signed (RECORD.jws)"),
    "damaged": (_damaged, f"{LIBRARY} in it is damaged"),
    "twice": (_twice, f"'{LIBRARY}' in it is one file with '{LIBRARY}'"),
    "twice but for case": (_named("vllm/_c.ABI3.so"), f"is one file with '{LIBRARY}'"),
    "twice but for form": (_named("vllm/é.py", "vllm/e\u0301.py"), "is one file with"),
    "file and folder": (_named("vllm/_C.abi3.so/x.py"), f"'{LIBRARY}' in it is a file and a"),
    "absolute": (_named("/etc/passwd"), "'/etc/passwd' in it is an absolute path"),
    "drive": (_named("C:/windows.py"), "'C:/windows.py' in it is an absolute path"),
    "parent": (_named("vllm/../../up.py"), "'vllm/../../up.py' in it leads elsewhere"),
    "parent at the end": (_named("vllm/.."), "'vllm/..' in it leads elsewhere"),
    "itself": (_named("vllm/./self.py"), "'vllm/./self.py' in it leads elsewhere"),
    "nothing between": (_named("vllm//none.py"), "'vllm//none.py' in it leads elsewhere"),
    "backslash": (_named("vllm\\up.py"), "has a backslash"),
    "control character": (_named("vllm/a\nb.py"), "a control character"),
    "other name before the data": (_other_header, f"{LIBRARY} in it is "),
    "other size before the data": (_other_size, f"{LIBRARY} in it is not what its directory"),
    "patched before": (_patched_before, "patched by this series before"),
    "other version": (_of_another_version, "name it as it was"),
    "no version file": (_without_version_file, f"no {VERSION_FILE} in it"),
}
