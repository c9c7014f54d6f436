"""Two workers, however their processes come to be, have the fixes, and say the same of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mrv2_fixes
from mrv2_fixes import engine, known, plan, series
from mrv2_fixes.targets import folder

from .conftest import RELEASE, Model, run

pytestmark = pytest.mark.engine

HYBRID = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
VARIABLES = {
    # two workers compile something, and there is no device to compile it for
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # anything but what a worker would do by itself
    "MRV2_FIXES": "warn",
}
# The engine core in a process of its own, as it is unless it is told otherwise.
SPAWN = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "CUDA_VISIBLE_DEVICES": "0,1",  # what Ray gives out, and nobody uses
}


@pytest.mark.parametrize(
    ("executor", "installed", "kind", "variables"),
    [
        pytest.param("spawn", "plugin", "granite", SPAWN, id="spawn"),
        pytest.param("fork", "plugin", "lfm2", {}, id="fork"),
        pytest.param("ray", "ray", "lfm2", RAY, id="ray"),
    ],
)
def test_both_workers_run_the_same(
    request: pytest.FixtureRequest,
    models: dict[str, Model],
    tmp_path: Path,
    executor: str,
    installed: str,
    kind: str,
    variables: dict[str, str],
) -> None:
    environment: engine.Environment = request.getfixturevalue(installed)
    result = tmp_path / "seen.json"
    model = models[kind]
    run(environment, "workers", model.folder, executor, result, **VARIABLES, **variables)
    seen = json.loads(result.read_bytes())
    assert seen["token_ids"] == model.expected
    reports = seen["reports"]
    assert len({seen["pid"], *(report["pid"] for report in reports)}) == 3
    same = mrv2_fixes.compare(reports)
    assert same["plugin"] == "warn"
    assert {slug: (patch["state"], patch["how"]) for slug, patch in same["patches"].items()} == {
        "batch-max-seq-len": ("upstream", "base"),
        "forward-seq-lens-cpu-upper-bound": ("applied", "import hook"),
        "gate-speculative-tensors": ("applied", "import hook"),
    }
    files = folder.read(environment.site_packages).files
    made = plan.make(series.load().core, files, version=RELEASE)
    loaded = same["modules"][HYBRID.removesuffix(".py").replace("/", ".")]
    assert loaded == {"loaded": "import hook", "sha256": known.digest(made.after[HYBRID])}
