"""`mrv2 apply` and `mrv2 revert` killed, starved and disturbed at every call that writes.

    python -m tests.program.faults

prints what was tried, how often, and how it ended. A failed expectation is an AssertionError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import py_compile
import shutil
import signal
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mrv2_fixes import known, series, targets
from mrv2_fixes.deliver import in_place, installed_record, transaction
from mrv2_fixes.errors import Mrv2Error, TargetUnusable
from mrv2_fixes.maintain import sources
from mrv2_fixes.record import NOTED

RELEASE = "0.22.1"  # the series changes files in three folders of it, and adds one
# Whatever the os module has that changes a file, so that none is forgotten when it comes into use.
CALLS = [
    name
    for name in (
        *(
            "open",
            "write",
            "pwrite",
            "writev",
            "pwritev",
            "sendfile",
            "copy_file_range",
            "truncate",
        ),
        *("ftruncate", "fsync", "fdatasync", "rename", "replace", "renames", "link", "symlink"),
        *("unlink", "remove", "mkdir", "mkfifo", "mknod", "rmdir", "utime", "chmod", "fchmod"),
        *("lchmod", "chown", "fchown", "lchown", "setxattr", "removexattr"),
    )
    if hasattr(os, name)
]
# What needs room on the disk, and what needs leave to write into a folder.
AFFECTED = {
    "ENOSPC": {"open", "write", "fsync", "mkdir", "symlink"},
    "EACCES": {"open", "rename", "unlink", "mkdir", "symlink"},
}

EDIT = b"# mine\n"

Snapshot = dict[str, tuple[Any, ...]]
Action = Callable[[Path], object]


def apply(root: Path) -> object:
    """The whole series, as `mrv2 apply --series all ROOT`."""
    return in_place.apply(str(root), series.load().patches, _nobody_waits)


def revert(root: Path) -> object:
    """As `mrv2 revert ROOT`."""
    return in_place.revert(str(root), (), False, _nobody_waits)


def recover(root: Path) -> object:
    """What each of them does first."""
    with transaction.locked(root / "vllm", lambda: _nobody_waits("waiting for another")):
        return transaction.recover(root)


def _nobody_waits(line: str) -> None:
    assert "waiting for another" not in line, "the lock of a process that ended is still held"


def tree(into: Path) -> Path:
    """A small installed vLLM: what the edits look at, its RECORD, compiled files, links."""
    published = sources.folder(RELEASE, lambda line: print(line, file=sys.stderr))
    root = into / "site-packages"
    kept = [*known.releases()[RELEASE].files, "vllm/__init__.py", "vllm/v1/worker/gpu/__init__.py"]
    for name in kept:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(published / name, root / name)
    shutil.copytree(published / f"vllm-{RELEASE}.dist-info", root / f"vllm-{RELEASE}.dist-info")
    changed = sorted(series.load().core[0].header.touches)
    # uv links what it installs to its cache, by one kind of link or the other.
    cache = into / "cache"
    cache.mkdir()
    shutil.move(root / changed[0], cache / "symbolic.py")
    (root / changed[0]).symlink_to(cache / "symbolic.py")
    os.link(root / changed[1], cache / "hard.py")
    compiled = [
        py_compile.compile(str(root / path), invalidation_mode=mode)
        for path, mode in zip(changed, py_compile.PycInvalidationMode, strict=False)
    ]
    rows = [
        installed_record.row(path.relative_to(root).as_posix(), path.read_bytes(), b"\r\n")
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    rows += [f"{Path(str(name)).relative_to(root)},,\r\n".encode() for name in compiled]
    record = f"vllm-{RELEASE}.dist-info/RECORD"
    (root / record).write_bytes(b"".join([*sorted(rows), f"{record},,".encode()]))
    (root / changed[2]).chmod(0o640)
    for path in root.rglob("*"):
        os.utime(path, ns=(10**18 + 7, 10**18 + 7), follow_symlinks=False)
    return root


def snapshot(root: Path, times: bool = True) -> Snapshot:
    """Every file below `root`: content, mode, link and, where they are to be equal, time."""
    found: Snapshot = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode):
            link = os.readlink(path) if path.is_symlink() else None
            content = path.read_bytes(), stat.S_IMODE(info.st_mode), link
            found[str(path.relative_to(root))] = (*content, info.st_mtime_ns if times else 0)
    return found


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th call that writes, counted from 1.

    how: "kill before", "kill midway" (of a write, half of which is written), "kill after",
    "interrupt" (Ctrl-C), "terminate" (SIGTERM), "edit" (somebody adds to the file `edited`, or
    creates it), or the name of an errno.
    lasting: the errno comes up in every later call too, of those in which it can.
    """

    at: int
    how: str
    lasting: bool = False
    edited: Path | None = None


@dataclass(frozen=True)
class Ended:
    """How a process ended. killed: by its fault. error: what it said; empty when it succeeded.

    calls: names and first arguments of the calls that write, in order.
    """

    killed: bool
    error: str
    calls: list[tuple[str, str]]


def run(action: Action, root: Path, fault: Fault | None = None) -> Ended:
    """`action(root)` in a process of its own, with `fault`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.close(reading)
            with open(writing, "w", buffering=1) as out:
                for_real = _counted(fault, out.write)
                try:
                    action(root)
                    said = ""
                except Mrv2Error as error:
                    said = str(error)
                except KeyboardInterrupt:
                    said = "stopped"
                except SystemExit as ended:
                    said = str(ended.code or "")
                for_real()
                out.write(f"end\t{said}\n")
            status = 0
        except BaseException as error:  # a failed expectation too: the parent raises it
            with contextlib.suppress(OSError):
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as lines:
        told = [line.rstrip("\n").split("\t") for line in lines]
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"{action.__name__} with {fault} ended with {status}"
    ends = [line[1] for line in told if line[0] == "end"]
    return Ended(killed, ends[0] if ends else "", [(one, two) for one, two in told if one != "end"])


def _counted(fault: Fault | None, tell: Callable[[str], object]) -> Callable[[], None]:
    """Put `fault` into the os module; what is returned takes it out again."""
    real = {name: getattr(os, name) for name in CALLS}
    count = 0

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return real[name](*arguments, **options)
            count += 1
            tell(f"{name}\t{arguments[0]}\n")
            if fault and (fault.at == count or (fault.lasting and fault.at < count)):
                _strike(fault, name, arguments, real)
            # A kill takes nothing from what the system was given to write.
            done = None if name == "fsync" else real[name](*arguments, **options)
            if fault and fault.at == count and fault.how == "kill after":
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call

    for name in CALLS:
        setattr(os, name, wrapped(name))

    def for_real() -> None:
        for name in CALLS:
            setattr(os, name, real[name])

    return for_real


def _strike(
    fault: Fault, name: str, arguments: tuple[Any, ...], real: dict[str, Callable[..., Any]]
) -> None:
    if fault.how == "kill midway" and name == "write":
        real["write"](arguments[0], arguments[1][: len(arguments[1]) // 2])
    if fault.how in ("kill before", "kill midway"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.how == "interrupt":
        raise KeyboardInterrupt
    if fault.how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if fault.edited is not None:
        descriptor = real["open"](fault.edited, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        real["write"](descriptor, EDIT)
        os.close(descriptor)
    if name in AFFECTED.get(fault.how, ()):
        number = getattr(errno, fault.how)
        path = arguments[0] if isinstance(arguments[0], (str, Path)) else None
        raise OSError(number, os.strerror(number), path and str(path))


@dataclass
class Bench:
    """A tree as it is before and after a command, to begin from as often as need be."""

    action: Action
    before: Path
    after: Path

    @cached_property
    def old(self) -> Snapshot:
        return snapshot(self.before)

    @cached_property
    def new(self) -> Snapshot:
        """Without times, as what is written has that of the clock."""
        return snapshot(self.after, times=False)

    def state(self, root: Path) -> str:
        """ "old", "new", or what differs from both."""
        if snapshot(root) == self.old:
            return "old"
        now = snapshot(root, times=False)
        if now == self.new:
            return "new"
        return f"neither: {sorted(path for path, _ in {*now.items()} ^ {*self.new.items()})}"

    @contextlib.contextmanager
    def begun(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.before.parent) as folder:
            yield shutil.copytree(self.before, Path(folder) / "site-packages", symlinks=True)


def benches(into: Path) -> list[Bench]:
    """For `apply` and for `revert`."""
    old = tree(into)
    new = shutil.copytree(old, into / "applied", symlinks=True)
    apply(new)
    back = shutil.copytree(new, into / "reverted", symlinks=True)
    revert(back)
    assert snapshot(back) == snapshot(old)
    return [Bench(apply, old, new), Bench(revert, new, back)]


def calls(bench: Bench) -> list[tuple[str, str]]:
    """Those that write, when nothing goes wrong."""
    with bench.begun() as root:
        return run(bench.action, root).calls


def kill(bench: Bench, how: str, at: int) -> str:
    """Kill it there; what comes next finds the old or the new state, and brings about either."""
    with bench.begun() as root:
        if not run(bench.action, root, Fault(at, how)).killed:
            return "not reached"
        left = _seen_by_a_reader(bench, root)
        settled = run(recover, root)
        assert not settled.error, settled.error
        state = bench.state(root)
        assert state in ("old", "new"), (bench.action.__name__, how, at, state)
        # The next command may be either.
        other = revert if bench.action is apply else apply
        ahead = [(bench.action, bench.after), (other, bench.before)]
        for action, tree in ahead[:: 1 if at % 2 else -1]:
            run_ = run(action, root)
            assert not run_.error, run_.error
            # What is applied has the time of the clock, what is reverted its own.
            found, meant = (snapshot(one, times=action is revert) for one in (root, tree))
            differ = sorted({path for path, _ in {*found.items()} ^ {*meant.items()}})
            assert not differ, (bench.action.__name__, how, at, action.__name__, differ)
        return f"{left}, then {state}"


def _seen_by_a_reader(bench: Bench, root: Path) -> str:
    """What `mrv2 status` makes of it: one whole state, or a refusal."""
    try:
        targets.open_target(str(root), _nobody_waits).record()
    except TargetUnusable as error:
        return "refused" if "interrupted" in str(error) else str(error)
    files = {path: file for path, file in snapshot(root, times=False).items() if _is_own(path)}
    for name, state in (("old", snapshot(bench.before, times=False)), ("new", bench.new)):
        if files == state:
            return name
    raise AssertionError(f"a reader takes a mixture for a vLLM: {sorted(files)}")


def _is_own(path: str) -> bool:
    """Not what is staged beside its place."""
    return not path.endswith((NOTED, ".mrv2-fixes"))


def fail(bench: Bench, name: str, lasting: bool, at: int) -> str:
    """Let a call fail; all is taken back at once, or by the next command when nothing works."""
    with bench.begun() as root:
        ended = run(bench.action, root, Fault(at, name, lasting))
        state = bench.state(root)
        if not ended.error:
            assert state == "new", (bench.action.__name__, name, at, state)
            return "succeeded"
        assert "\n" not in ended.error
        assert os.strerror(getattr(errno, name)) in ended.error, ended.error
        if "as it was" in ended.error:
            assert state == "old", (bench.action.__name__, name, at, state)
            return "taken back"
        assert lasting, ended.error
        assert "the next mrv2 apply or revert there" in ended.error, ended.error
        assert not run(recover, root).error
        state = bench.state(root)
        assert state in ("old", "new"), (bench.action.__name__, name, at, state)
        return f"said to be left to the next, then {state}"


def interrupt(bench: Bench, at: int, last: int) -> str:
    """Press Ctrl-C; all is taken back, but at the `last` call, when all is done."""
    with bench.begun() as root:
        ended = run(bench.action, root, Fault(at, "interrupt"))
        state = bench.state(root)
        assert ended.error == "stopped"
        if at < last:
            assert state == "old", (bench.action.__name__, at, state)
        return f"stopped, {state}"


def edit(bench: Bench, path: str, at: int) -> str:
    """Let somebody add to a file; what they wrote stays, but in the one moment that is too late."""
    with bench.begun() as root:
        ended = run(bench.action, root, Fault(at, "edit", edited=root / path))
        name, argument = ended.calls[at - 1] if at <= len(ended.calls) else ("", "")
        there = (root / path).read_bytes() if (root / path).exists() else b""
        moment = (name, Path(argument).name) in (
            ("rename", f".{Path(path).name}.mrv2-fixes"),
            ("unlink", Path(path).name),
        )
        if moment and not there.endswith(EDIT):
            return "lost: between the last look and what replaces it"
        assert there.endswith(EDIT), (bench.action.__name__, at, name)
        assert ended.error, (bench.action.__name__, at, name)
        others = {p: file for p, file in snapshot(root, times=False).items() if p != path}
        before = snapshot(bench.before, times=False)
        for said, state in (("taken back", before), ("done but there", bench.new)):
            if others == {p: file for p, file in state.items() if p != path}:
                return f"named and left alone, {said}"
        raise AssertionError(f"{bench.action.__name__} disturbed at {at} left a mixture")


FAULTS = (
    *("kill before", "kill midway", "kill after", "ENOSPC", "ENOSPC from then on"),
    *("EACCES", "EACCES from then on", "interrupt", "a file edited"),
)


def edited() -> list[str]:
    """The files that somebody else writes to: one that the series changes, and all that it adds."""
    changed = sorted(series.load().core[0].header.touches)[2]
    return [changed, *(path for patch in series.load().patches for path in patch.modules())]


def tried(bench: Bench, fault: str) -> Counter[str]:
    """How often `fault` ended how, at each call where it can come up."""
    named = list(enumerate((name for name, _ in calls(bench)), start=1))
    name, _, lasting = fault.partition(" from ")
    if fault.startswith("kill"):
        return Counter(
            kill(bench, fault, at)
            for at, name in named
            if fault != "kill midway" or name == "write"
        )
    if fault == "interrupt":
        return Counter(interrupt(bench, at, len(named)) for at, _ in named)
    if fault == "a file edited":
        return Counter(edit(bench, path, at) for path in edited() for at, _ in named)
    where = [at for at, call in named if call in AFFECTED[name]]
    return Counter(fail(bench, name, bool(lasting), at) for at in where)


def main() -> None:
    """Print the table."""
    print(f"{'command':<8} {'fault':<20} {'times':>5}  how it ended")
    with tempfile.TemporaryDirectory() as folder:
        for bench in benches(Path(folder)):
            for fault in FAULTS:
                for end, times in tried(bench, fault).most_common():
                    print(f"{bench.action.__name__:<8} {fault:<20} {times:>5}  {end}")


if __name__ == "__main__":
    main()
