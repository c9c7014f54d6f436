"""Files below one folder, changed together: all of them or none, whenever it is stopped.

First what will be done is noted, every new file is written whole beside its place, and nothing has
changed. Then the note is renamed to `JOURNAL`, which decides it: from there on the files move to
their places, and whoever comes after a kill finishes that. The journal holds every file as it was
and as it will be, so it can be gone through again from any point, in both directions.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.record import JOURNAL, NOTED, File


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path: before and after, None where there is no file.

    derived: made from other files, such as a .pyc: whatever stands there may be replaced.
    """

    before: File | None
    after: File | None
    derived: bool = False


class Journal(msgspec.Struct, frozen=True):
    """Changes that belong together, by path below the root, and the command that makes them."""

    command: str
    changes: dict[str, Change]


@contextlib.contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of `folder`, which leaves no trace and ends with the process.

    waiting: called once when somebody else holds it.
    """
    while True:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # An installer may have put another folder there while this waited.
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                yield
                return
        finally:
            os.close(descriptor)


def read(path: Path) -> File | None:
    """The file at `path`; None when there is none. Raises OSError when it cannot be read."""
    try:
        own = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    link = os.readlink(path) if stat.S_ISLNK(own.st_mode) else None
    mode = stat.S_IMODE(os.stat(path).st_mode)
    owner = (own.st_uid, own.st_gid)
    return File(path.read_bytes(), mode, own.st_mtime_ns, owner, link)


def same(one: File | None, other: File | None) -> bool:
    """Whether two files read alike: not their times and permissions."""
    if one is None or other is None:
        return one is other
    return (one.content, one.link) == (other.content, other.link)


def commit(root: Path, command: str, changes: Mapping[str, Change]) -> None:
    """Make `changes` below `root`, whose lock the caller holds, or none of them.

    Raises TargetUnusable when a file is another than `before` says, or a system call fails: then
    everything is taken back, or the message says that the next command will. What somebody writes
    into a file in the moment between the last look at it and the rename over it goes unnoticed.
    """
    journal = Journal(command, dict(changes))
    _check_places(root, journal.changes)
    with _taken_back_on_failure(root, journal):
        # Noted first, so that what is staged is found again.
        own = os.stat(root / NOTED.rpartition("/")[0])
        note = msgspec.json.encode(journal)
        _write(root / NOTED, File(note, 0o644, time.time_ns(), (own.st_uid, own.st_gid)))
        _sync([root / NOTED])
        for path, change in journal.changes.items():
            if change.after is not None:
                _write(_staged(root / path), change.after)
        for path, change in journal.changes.items():
            _check_unchanged(root / path, change)
        os.rename(root / NOTED, root / JOURNAL)
        _sync([root / JOURNAL])
        for path, change in journal.changes.items():
            _check_unchanged(root / path, change)
            if change.after is not None:
                os.rename(_staged(root / path), root / path)
            elif os.path.lexists(root / path):
                os.unlink(root / path)
        _sync(root / path for path in journal.changes)
        _end(root)


def recover(root: Path) -> str:
    """Settle what a command that was stopped left below `root`, whose lock the caller holds.

    Returns one line about what was done, or nothing. It is finished, unless somebody changed a file
    meanwhile, as by installing another vLLM: then everything else is taken back, and the file is
    left alone and named. Raises TargetUnusable when neither can be done.
    """
    noted, journal = _load(root / NOTED), _load(root / JOURNAL)
    if journal is None:
        if not os.path.lexists(root / NOTED):
            return ""
        # A note that is not whole has nothing staged yet.
        noted = noted or Journal("", {})
        _check_places(root, noted.changes)
        _take_back(root, noted)
        return "removed what an interrupted command had begun; nothing had changed"
    _check_places(root, journal.changes)
    with _taken_back_on_failure(root, journal):
        foreign = [
            path for path, change in journal.changes.items() if _foreign(root / path, change)
        ]
        for path, change in journal.changes.items():
            _remove(_staged(root / path))
            if not foreign:
                _put(root / path, change.after)
            elif change.derived:
                _remove(root / path)  # nobody knows what it would be taken for
            elif path not in foreign:
                _put(root / path, change.before)
        _sync(root / path for path in journal.changes)
        _end(root)
    if not foreign:
        return f"finished an interrupted {journal.command}"
    left = f"changed by someone else meanwhile, and left alone: {', '.join(foreign)}"
    return f"took back an interrupted {journal.command}; {left}"


@contextlib.contextmanager
def _taken_back_on_failure(root: Path, journal: Journal) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        try:
            _take_back(root, journal)
        except OSError as second:
            begun = os.path.lexists(root / JOURNAL)
            raise TargetUnusable(
                f"{reason or 'stopped'}; taking it back failed too: {_reason(second)}; "
                f"{'some files are changed' if begun else 'nothing is changed'}: "
                f"the next mrv2 apply or revert there {'finishes' if begun else 'clears up'}"
            ) from error
        if isinstance(error, (OSError, TargetUnusable)):
            raise TargetUnusable(f"{reason}; everything is as it was") from error
        raise


def _take_back(root: Path, journal: Journal) -> None:
    begun = os.path.lexists(root / JOURNAL)
    for path, change in reversed(journal.changes.items()):
        _remove(_staged(root / path))
        if begun and not _foreign(root / path, change):
            _put(root / path, change.before)
    if begun:
        _sync(root / path for path in journal.changes)
    _end(root)


def _end(root: Path) -> None:
    """The journal goes; all that it says is on disk."""
    _remove(root / NOTED)
    _remove(root / JOURNAL)
    # Everything is done: should a power cut bring the journal back, it is gone through once more.
    with contextlib.suppress(OSError):
        _sync([root / JOURNAL])


def _put(path: Path, file: File | None) -> None:
    """What `file` says stands at `path`; no other file has it for a moment."""
    if file is None:
        _remove(path)
    elif read(path) != file:
        _write(_staged(path), file)
        os.rename(_staged(path), path)


def _write(path: Path, file: File) -> None:
    """Create `path`, with all that `file` says; it is on disk afterwards."""
    if not path.parent.is_dir():
        os.mkdir(path.parent)
    if file.link is not None:
        os.symlink(file.link, path)
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns), follow_symlinks=False)
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(file.content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        created = os.fstat(descriptor)
        if (created.st_uid, created.st_gid) != file.owner:
            # Only root may give a file away, and not to everyone where user ids are mapped.
            with contextlib.suppress(OSError):
                os.fchown(descriptor, *file.owner)
        os.fchmod(descriptor, file.mode)
        os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
        os.fsync(descriptor)
    except OSError as error:
        error.filename = error.filename if isinstance(error.filename, str) else str(path)
        raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _sync(paths: Iterable[Path]) -> None:
    """The names of `paths` are on disk as they are now."""
    for folder in sorted({path.parent for path in paths}):
        if not folder.is_dir():
            continue
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network file systems have no such thing for a folder.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise OSError(error.errno, error.strerror, str(folder)) from error
        finally:
            os.close(descriptor)


def _staged(path: Path) -> Path:
    return path.with_name(f".{path.name}.mrv2-fixes")


def _load(path: Path) -> Journal | None:
    """The journal at `path`; None where there is none, or the note is not whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        if path.name == PurePosixPath(NOTED).name:
            return None
        raise TargetUnusable(f"{path}: damaged: {error}; install vLLM again") from error


def _check_places(root: Path, paths: Iterable[str]) -> None:
    """Raise TargetUnusable for a path that leads out of the tree; a journal may come with it."""
    inside = [Path(os.path.realpath(folder)) for folder in (root, root / "vllm")]
    for path in paths:
        folder = Path(os.path.realpath((root / path).parent))
        plain = not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts
        if not plain or not any(folder.is_relative_to(top) for top in inside):
            raise TargetUnusable(f"{root / path}: leads out of {root}; nothing is changed")


def _check_unchanged(path: Path, change: Change) -> None:
    if not change.derived and not same(read(path), change.before):
        raise TargetUnusable(f"{path}: changed by someone else while this ran: run it again")


def _foreign(path: Path, change: Change) -> bool:
    """Whether what stands at `path` is neither before nor after."""
    there = read(path)
    return not (change.derived or same(there, change.before) or same(there, change.after))


def _reason(error: OSError) -> str:
    # Of a rename, it is the place that a reader knows.
    path = error.filename2 or error.filename
    where = f"{os.fsdecode(path)}: " if isinstance(path, (str, bytes)) else ""
    return f"{where}{error.strerror or error}"
