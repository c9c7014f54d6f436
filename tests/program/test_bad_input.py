"""What is not a vLLM, or cannot be read: one clear line, the right exit status, nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2_fixes import series

from .conftest import HYBRID, Mrv2, Source, clone_of, git

pytestmark = pytest.mark.releases

SCHEDULER = "vllm/v1/core/sched/scheduler.py"


def wheel_of(root: Path, into: Path) -> Path:
    """A wheel that holds what the source folder of a release holds."""
    path = into / "vllm-0.24.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, file.relative_to(root))
    return path


def empty_folder(root: Path, into: Path) -> Path:
    (into / "empty").mkdir()
    return into / "empty"


def other_wheel(root: Path, into: Path) -> Path:
    path = into / "six-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("six.py", "")
        archive.writestr("six-1.0.dist-info/METADATA", "Name: six\nVersion: 1.0\n\n")
    return path


def truncated_wheel(root: Path, into: Path) -> Path:
    path = wheel_of(root, into)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def damaged_wheel(root: Path, into: Path) -> Path:
    """Whole, but for some bytes in the middle of a file that is read."""
    path = wheel_of(root, into)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo(HYBRID).header_offset + 500
    content[start : start + 20] = b"\0" * 20
    path.write_bytes(content)
    return path


def other_clone(root: Path, into: Path) -> Path:
    path = clone_of(root, into)
    git(path, "rm", "-q", "-r", "vllm")
    git(path, "commit", "-qm", "nothing")
    return path


def clone_without_commits(root: Path, into: Path) -> Path:
    git(into, "init", "-q", "clone")
    return into / "clone"


def text_file(root: Path, into: Path) -> Path:
    (into / "notes.txt").write_text("0.24.0")
    return into / "notes.txt"


def encrypted_wheel(root: Path, into: Path) -> Path:
    """The flag of encryption, set in the directory for the file that is read."""
    path = wheel_of(root, into)
    content = bytearray(path.read_bytes())
    at = content.rindex(HYBRID.encode()) - 46
    assert content[at : at + 4] == b"PK\x01\x02"
    content[at + 8] |= 1
    path.write_bytes(content)
    return path


def bloated_wheel(root: Path, into: Path) -> Path:
    path = wheel_of(root, into)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vllm-0.dist-info/METADATA", b"\n" * (17 << 20))
        archive.filelist.insert(0, archive.filelist.pop())
    return path


UNUSABLE: list[tuple[Callable[[Path, Path], Path], str]] = [
    (empty_folder, "beside vllm/v1/: name its site-packages"),
    (other_wheel, "not a wheel of vLLM"),
    (truncated_wheel, "not a whole wheel"),
    (damaged_wheel, f"{HYBRID} in it is damaged"),
    (encrypted_wheel, f"{HYBRID} in it is damaged"),
    (bloated_wheel, "larger than any file of vLLM"),
    (text_file, "neither a folder nor a wheel"),
    (other_clone, "not a vLLM"),
    (clone_without_commits, "no commit to read"),
]


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git/" not in str(path))
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("command", ["status", "diff", "build"])
@pytest.mark.parametrize(("make", "says"), UNUSABLE, ids=[make.__name__ for make, _ in UNUSABLE])
def test_what_cannot_be_read_is_named(
    published: Source,
    mrv2: Mrv2,
    tmp_path: Path,
    make: Callable[[Path, Path], Path],
    says: str,
    command: str,
) -> None:
    path = make(published("0.24.0"), tmp_path)
    before = content(tmp_path)
    done = mrv2(command, path)
    assert done.returncode == 4, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr
    assert says in done.stderr
    assert content(tmp_path) == before


@pytest.mark.parametrize("make", [wheel_of, clone_of, lambda root, into: root / "vllm"])
def test_what_can_be_read_is_read_alike(
    published: Source, mrv2: Mrv2, tmp_path: Path, make: Callable[[Path, Path], Path]
) -> None:
    root = published("0.24.0")
    diff = mrv2("diff", root)
    assert diff.returncode == 1
    assert mrv2("diff", make(root, tmp_path)).stdout == diff.stdout


def test_a_clone_is_read_at_its_head_and_says_so(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    clone = clone_of(published("0.24.0"), tmp_path)
    (clone / HYBRID).write_text("broken(")
    done = mrv2("status", clone)
    assert done.returncode == 1
    assert "the work tree has changes that this does not see" in done.stdout
    assert "files of 0.24.0" in done.stdout

    for command in ("diff", "build"):
        assert "has changes that this does not see" in mrv2(command, clone).stderr


def test_reading_a_clone_runs_nothing_of_it_and_writes_nothing(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    clone = clone_of(published("0.24.0"), tmp_path)
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    spy.chmod(0o755)
    git(clone, "config", "core.fsmonitor", str(spy))
    os.utime(clone / HYBRID)
    before = {path: path.read_bytes() for path in (clone / ".git").rglob("*") if path.is_file()}
    assert mrv2("status", clone).returncode == 1
    assert not (tmp_path / "ran").exists()
    after = {path: path.read_bytes() for path in (clone / ".git").rglob("*") if path.is_file()}
    assert after == before


def test_a_number_is_a_release_and_a_path_is_a_folder(
    published: Source, mrv2: Mrv2, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "0.24.0").mkdir()
    named = mrv2("status", "0.24.0").stdout
    assert "vllm==0.24.0 (release): files of 0.24.0" in named
    assert mrv2("status", "0.24").stdout == mrv2("status", "vllm==0.24.0").stdout == named
    assert "mrv2: 0.24.0: not a vLLM" in mrv2("status", "./0.24.0").stderr


def test_what_is_installed_beside_vllm_does_not_hide_its_version(
    source: Source, mrv2: Mrv2
) -> None:
    root = source("0.24.0")
    beside = root / "vllm_mrv2_fixes-0.1.0.dist-info"
    beside.mkdir()
    (beside / "METADATA").write_text("Name: vllm-mrv2-fixes\nVersion: 0.1.0\n\n")
    assert '"version": "0.24.0"' in mrv2("status", "--json", root).stdout


def test_a_file_that_is_gone_is_not_taken_for_unaffected(source: Source, mrv2: Mrv2) -> None:
    root = source("0.24.0")
    (root / HYBRID).unlink()
    done = mrv2("status", root)
    assert done.returncode == 3
    assert f"{HYBRID}: no such file, and 0.24.0 has it" in done.stdout


def test_code_that_is_rewritten_is_not_taken_for_unaffected(source: Source, mrv2: Mrv2) -> None:
    root = source("0.26.0")
    text = (root / SCHEDULER).read_text().replace("pad_spec_decode", "padded")
    (root / SCHEDULER).write_text(text.replace("num_new_tokens == 1\n", "num_new_tokens < 2\n"))
    done = mrv2("status", "--series", "all", root)
    assert done.returncode == 3
    assert f"{SCHEDULER}: sought the code that 0.26.0 has; found none" in done.stdout


def test_a_drift_is_one_line_and_exit_status_3(source: Source, mrv2: Mrv2) -> None:
    root = source("0.24.0")
    text = (root / HYBRID).read_text()
    (root / HYBRID).write_text(text.replace("def prepare_attn", "def prepare"))
    before = content(root)
    for command in ("diff", "build"):
        done = mrv2(command, root)
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        slugs = ", ".join(patch.slug for patch in series.load().core)
        place = f"{HYBRID}: MambaHybridModelState: sought method prepare_attn"
        assert done.stderr.startswith(f"mrv2: {root}: {slugs}: drifted: {place}")
        assert done.stderr.endswith(f"; nothing is changed; mrv2 status {root} shows all\n")
    status = mrv2("status", root)
    assert status.returncode == 3
    assert "unknown base" in status.stdout
    assert content(root) == before


WRONG_CALLS = [
    (["status", "--patch", "no-such-patch"], "no patch 'no-such-patch'"),
    (["explain", "no-such-patch"], "no patch 'no-such-patch'"),
    (["status", "--series", "some"], "'some' is not one of"),
    (["status", ""], "the target is empty"),
    (["verify", "--workers", "0"], "0 is not in the range"),
    (["mend"], "No such command"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG_CALLS)
def test_a_wrong_call_is_exit_status_2(mrv2: Mrv2, arguments: list[str], says: str) -> None:
    done = mrv2(*arguments)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("command", ["status", "diff", "apply", "revert", "build"])
def test_help_says_what_a_target_may_be(mrv2: Mrv2, command: str) -> None:
    _, _, said = " ".join(mrv2(command, "--help").stdout.split()).partition(" TARGET: ")
    assert "a folder" in said
    assert ("nothing (the vLLM of this Python)" in said) == (command != "build")
    assert ("a release number" in said) == (command not in ("apply", "revert"))


def test_a_release_that_does_not_exist_has_no_proof(mrv2: Mrv2) -> None:
    done = mrv2("verify", "9.9.9")
    assert done.returncode == 4
    assert done.stderr.startswith("mrv2: 9.9.9: no such release; the newest known is ")


def test_where_nothing_is_to_prove_is_said(mrv2: Mrv2, tmp_path: Path) -> None:
    done = mrv2("verify", "0.33")
    assert done.returncode == 0
    assert done.stdout.count("upstream, nothing to prove") == 3
    assert "0 of 0 proven" in done.stdout
    assert not (tmp_path / "elsewhere" / "dist").exists()


def test_a_release_that_does_not_exist(mrv2: Mrv2, tmp_path: Path) -> None:
    done = mrv2("build", "0.24.99", env={**os.environ, "MRV2_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 4
    assert (
        done.stderr.splitlines()[-1] == "mrv2: vllm 0.24.99: no such release on the package index"
    )
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_without_a_network(mrv2: Mrv2, tmp_path: Path) -> None:
    env = {**os.environ, "MRV2_CACHE": str(tmp_path / "cache"), "PIP_RETRIES": "0"}
    env |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_CACHE_DIR": "1"}
    done = mrv2("build", "0.24.0", env=env)
    assert done.returncode == 4
    assert "the package index does not answer" in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_without_git(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    done = mrv2("build", published("0.24.0"), env=env)
    assert done.returncode == 4
    assert done.stderr == "mrv2: git is not installed: install it and run this again\n"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_room(published: Source, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    mrv2 = Path(sys.executable).with_name("mrv2")
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 6; exec {mrv2} build {published('0.22.1')}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done
    assert "git fast-import" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_an_installed_vllm_is_read_and_not_imported(source: Source, mrv2: Mrv2) -> None:
    root = source("0.24.0")
    (root / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    done = mrv2("status", env={**os.environ, "PYTHONPATH": str(root), "MRV2_FIXES": "off"})
    assert done.returncode == 1, done
    assert f"{root / 'vllm'} (installed): files of 0.24.0" in done.stdout


def test_no_vllm_in_this_python(mrv2: Mrv2) -> None:
    done = mrv2("status")
    assert done.returncode == 4
    assert done.stderr.startswith("mrv2: no vLLM in this Python")
