"""Whatever happens to `mrv2 apply` and `mrv2 revert` on their way, nothing is lost or half done."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2_fixes import cli, plan, record, series
from mrv2_fixes.deliver import transaction
from mrv2_fixes.targets import folder

from . import faults
from .conftest import Mrv2, Source
from .faults import Bench

pytestmark = [
    pytest.mark.releases,
    # pytest-xdist has threads; what is forked here uses none of them.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

UNFINISHED = "an mrv2 apply or revert is at work there, or was interrupted"
# What a fault may come to. "lost" is one moment: somebody writes into a file in place between the
# last look at it and the call that replaces or removes it.
ENDS = {
    "kill before": {"old, then old", "refused, then new", "new, then new"},
    "kill midway": {"old, then old"},
    "kill after": {"old, then old", "refused, then new", "new, then new"},
    "ENOSPC": {"taken back", "succeeded"},
    "EACCES": {"taken back"},
    "ENOSPC from then on": {"taken back", "succeeded", "said to be left to the next, then new"},
    "EACCES from then on": {
        "taken back",
        "said to be left to the next, then new",
        "said to be left to the next, then old",
    },
    "interrupt": {"stopped, old", "stopped, new"},
    "a file edited": {
        "named and left alone, taken back",
        "named and left alone, done but there",
        "lost: between the last look and what replaces it",
    },
}


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    made = faults.benches(tmp_path_factory.mktemp("benches"))
    return {bench.action.__name__: bench for bench in made}


@pytest.mark.parametrize("command", ["apply", "revert"])
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_at_every_call_that_writes(benches: dict[str, Bench], command: str, fault: str) -> None:
    ends = faults.tried(benches[command], fault)
    print(command, fault, dict(ends))
    assert set(ends) <= ENDS[fault]
    lost = ends["lost: between the last look and what replaces it"]
    assert lost <= len(faults.edited())  # one for each file
    assert ends["succeeded"] + ends["stopped, new"] <= 1  # the very last call, when all is done


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_no_call_that_changes_something_escapes_the_count(
    benches: dict[str, Bench], command: str
) -> None:
    """Python's own audit of what opens for writing, renames and so on sees no other call."""
    bench = benches[command]
    with bench.begun() as root:
        code = f"""
import sys
from pathlib import Path
from tests.program import faults
MUTATING = {{"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink",
            "os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr"}}
seen, root = [], Path({str(root)!r})
def hook(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o1103
    if event in MUTATING or (writes and str(root) in str(arguments[0])):
        seen.append(event.removeprefix("os."))
counted = []
faults._counted(None, lambda line: counted.append(line.split("\\t")[0]))
sys.addaudithook(hook)
faults.{command}(root)
same = {{"unlink": "remove", "fchmod": "chmod", "fchown": "chown", "replace": "rename"}}
counted = [same.get(name, name) for name in counted if name not in ("write", "fsync")]
assert seen == counted, (seen, counted)
assert len(seen) > 20
"""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False
        )
        assert done.returncode == 0


def command(root: Path) -> None:
    """`mrv2 apply --series all ROOT`."""
    sys.argv = ["mrv2", "apply", "--series", "all", str(root)]
    cli.main()


def test_sigterm_on_the_way_changes_nothing(benches: dict[str, Bench]) -> None:
    """As from what ends a job or a container."""
    bench = benches["apply"]
    names = [name for name, _ in faults.calls(bench)]
    with bench.begun() as root:
        last = len(names) - names[::-1].index("rename")
        ended = faults.run(command, root, faults.Fault(last, "terminate"))
        assert ended.error == "mrv2: stopped"
        assert bench.state(root) == "old"


def test_the_lock_is_that_of_the_folder_which_stands_there(tmp_path: Path) -> None:
    """Also when an installer puts another one there while this waits."""
    folder = tmp_path / "vllm"
    folder.mkdir()
    holder = os.open(folder, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def waiting() -> None:
        folder.rename(tmp_path / "old")
        folder.mkdir()
        os.close(holder)

    with transaction.locked(folder, waiting):
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_a_reader_is_told_of_what_is_unfinished(benches: dict[str, Bench], mrv2: Mrv2) -> None:
    bench = benches["apply"]
    names = [name for name, _ in faults.calls(bench)]
    with bench.begun() as root:
        faults.run(faults.apply, root, faults.Fault(names.index("unlink"), "kill before"))
        for command in ("status", "diff", "build"):
            done = mrv2(command, root)
            assert done.returncode == 4
            assert UNFINISHED in done.stderr
            assert done.stderr.count("\n") == 1
        done = mrv2("apply", root)
        assert done.returncode == 0
        assert f"{root}: finished an interrupted apply" in done.stderr
        assert "nothing to do" in done.stdout
        assert bench.state(root) == "new"


def test_a_file_that_somebody_changed_after_a_kill_is_left_alone(
    benches: dict[str, Bench], mrv2: Mrv2
) -> None:
    bench = benches["apply"]
    names = [name for name, _ in faults.calls(bench)]
    with bench.begun() as root:
        last = len(names) - names[::-1].index("rename")
        faults.run(faults.apply, root, faults.Fault(last, "kill before"))
        path = root / "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
        mine = path.read_bytes() + b"# mine\n"
        path.write_bytes(mine)
        done = mrv2("apply", root)
        assert done.returncode == 3
        assert "took back an interrupted apply; changed by someone else meanwhile" in done.stderr
        assert path.read_bytes() == mine
        path.write_bytes((bench.before / path.relative_to(root)).read_bytes())
        # All but what was compiled, of which nobody knows what it would be taken for.
        there, before = (
            {name: file for name, file in found.items() if not name.endswith(".pyc")}
            for found in (faults.snapshot(root, times=False), faults.snapshot(bench.before, False))
        )
        assert there == before


def test_a_vllm_that_was_installed_over_a_kill_is_whole(
    benches: dict[str, Bench], published: Source, mrv2: Mrv2
) -> None:
    """Files that both releases have alike are not patched for the one that is gone."""
    bench = benches["apply"]
    names = [name for name, _ in faults.calls(bench)]
    files = folder.read(published("0.21.0")).files
    after = plan.make(series.load().core, files, version="0.21.0").after
    with bench.begun() as root:
        last = len(names) - names[::-1].index("rename")
        faults.run(faults.apply, root, faults.Fault(last, "kill before"))
        for path in after:
            (root / path).write_bytes(files[path])
        done = mrv2("apply", root)
        assert "took back an interrupted apply" in done.stderr
        assert done.returncode == 0, done.stderr
        assert {path: (root / path).read_bytes() for path in after} == after


def escaping(path: str) -> bytes:
    return b'{"command":"apply","changes":{"%s":{"before":null,"after":null}}}' % path.encode()


JOURNALS = [
    (b"{", "damaged"),
    (escaping("../outside.py"), "leads out of"),
    (escaping("vllm/../../outside.py"), "leads out of"),
    (escaping("/outside.py"), "leads out of"),
    (escaping("vllm/link/outside.py"), "leads out of"),
]


@pytest.mark.parametrize(("journal", "says"), JOURNALS)
def test_a_journal_that_came_with_the_tree_reaches_nothing_outside(
    benches: dict[str, Bench], mrv2: Mrv2, journal: bytes, says: str
) -> None:
    with benches["apply"].begun() as root:
        (root.parent / "outside.py").write_text("")
        (root / "vllm" / "link").symlink_to("../..")
        (root / record.JOURNAL).write_bytes(journal)
        done = mrv2("apply", root)
        assert done.returncode == 4
        assert says in done.stderr
        assert (root.parent / "outside.py").exists()


def together(root: Path, actions: list[Callable[[Path], object]]) -> list[int]:
    """Exit statuses of processes that begin at the same moment."""
    reading, writing = os.pipe()
    children = []
    for action in actions:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(writing)
                os.read(reading, 1)
                done = action(root)
                status = 10 if getattr(done, "changed", ()) else 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(reading)
    os.close(writing)  # they all see the end of it
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def patiently(action: str) -> Callable[[Path], object]:
    from mrv2_fixes import series
    from mrv2_fixes.deliver import in_place

    def quiet(line: str) -> None: ...

    if action == "apply":
        return lambda root: in_place.apply(str(root), series.load().patches, quiet)
    return lambda root: in_place.revert(str(root), (), False, quiet)


def test_eight_at_once_apply_once(benches: dict[str, Bench]) -> None:
    bench = benches["apply"]
    for _ in range(10):
        with bench.begun() as root:
            statuses = together(root, [patiently("apply")] * 8)
            assert sorted(statuses) == [0] * 7 + [10]
            assert bench.state(root) == "new"


def test_apply_races_revert(benches: dict[str, Bench]) -> None:
    bench = benches["apply"]
    random_ = random.Random(3)
    for _ in range(10):
        with bench.begun() as root:
            actions = [patiently("apply")] * 4 + [patiently("revert")] * 4
            random_.shuffle(actions)
            assert set(together(root, actions)) <= {0, 10}
            assert bench.state(root) in ("old", "new")


def test_eight_commands_at_once(benches: dict[str, Bench], tmp_path: Path) -> None:
    mrv2 = Path(sys.executable).with_name("mrv2")
    with benches["apply"].begun() as root:
        running = [
            subprocess.Popen(
                [mrv2, "apply", "--series", "all", root], stdout=subprocess.PIPE, text=True
            )
            for _ in range(8)
        ]
        outputs = [one.communicate()[0] for one in running]
        assert [one.returncode for one in running] == [0] * 8
        assert sum("nothing to do" in output for output in outputs) == 7
        assert benches["apply"].state(root) == "new"
