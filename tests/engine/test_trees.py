"""A patched tree: what is replaced is replaced, and the environment is never written to."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from mrv2_fixes.engine import EngineError, Environment, patched_tree


@pytest.fixture
def installed(tmp_path: Path) -> Environment:
    environment = Environment("0.24.0", tmp_path / "environment", "3.11")
    (environment.vllm / "v1").mkdir(parents=True)
    (environment.vllm / "__init__.py").write_text("")
    (environment.vllm / "v1" / "old.py").write_text("value = 'released'\n")
    (environment.vllm / "v1" / "other.py").write_text("")
    py_compile.compile(str(environment.vllm / "v1" / "old.py"))
    py_compile.compile(str(environment.vllm / "v1" / "other.py"))
    return environment


def test_files_are_replaced_and_added_without_touching_the_release(
    installed: Environment, tmp_path: Path
) -> None:
    files: dict[str, str | bytes] = {
        "vllm/v1/old.py": "value = 'patched!'\n",
        "vllm/v1/new/added.py": b"value = 1\r\n",
    }
    tree = patched_tree(installed, files, tmp_path)
    assert (tree / "vllm/v1/old.py").read_text() == "value = 'patched!'\n"
    assert (tree / "vllm/v1/new/added.py").read_bytes() == b"value = 1\r\n"
    assert (installed.vllm / "v1/old.py").read_text() == "value = 'released'\n"
    assert not (installed.vllm / "v1/new").exists()
    # the rest is shared, with what was compiled of it
    assert (tree / "vllm/v1/other.py").samefile(installed.vllm / "v1/other.py")
    compiled = [path.name.split(".")[0] for path in (tree / "vllm/v1/__pycache__").iterdir()]
    assert compiled == ["other"]


def test_the_same_contents_are_the_same_tree(installed: Environment, tmp_path: Path) -> None:
    one = patched_tree(installed, {"vllm/v1/old.py": "a = 1\n"}, tmp_path)
    assert patched_tree(installed, {"vllm/v1/old.py": b"a = 1\n"}, tmp_path) == one
    assert patched_tree(installed, {"vllm/v1/old.py": "a = 2\n"}, tmp_path) != one
    assert len(list((tmp_path / "trees").iterdir())) == 2  # nothing half made is left


def test_nothing_replaced_is_the_release_itself(installed: Environment, tmp_path: Path) -> None:
    assert patched_tree(installed, {}, tmp_path) == installed.site_packages


@pytest.mark.parametrize("path", ["vllm/../out.py", "torch/x.py", "/vllm/x.py", "vllm"])
def test_a_path_outside_the_package_is_refused(
    installed: Environment, tmp_path: Path, path: str
) -> None:
    with pytest.raises(EngineError, match="not the path of a file in vllm/"):
        patched_tree(installed, {path: ""}, tmp_path)


def test_a_tree_works_where_hard_links_do_not(
    installed: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("mrv2_fixes.engine.trees.os.link", no_link)
    tree = patched_tree(installed, {"vllm/v1/old.py": "a = 1\n"}, tmp_path)
    assert (tree / "vllm/v1/other.py").is_file()
