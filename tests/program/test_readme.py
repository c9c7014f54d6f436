"""Every command in the README does what it is there for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mrv2_fixes import series

from .conftest import HYBRID, Source, clone_of

pytestmark = pytest.mark.releases

TESTS = "tests/v1/worker/test_mamba_hybrid_speculative_tensors.py"
ROOT = Path(__file__).parents[2]
COMMANDS = [
    command
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)
]
# What builds vLLM from the branch; test_rebuild.py runs it.
REBUILD = [command for command in COMMANDS if "vllm-mrv2" in command or "PRECOMPILED" in command]
# What makes a release of this project, in order; test_release.py runs it.
RELEASE = (
    "make tag-check TAG=vVERSION",
    "make releases",
    "make release VLLM=0.24.0",
    "make package provenance-check checksums",
)
# What goes to vLLM, with a run of the engine; test_pull_request.py runs it.
SUBMIT = [command for command in COMMANDS if "draft-model-metadata-bounds" in command]
# These run in other places: `.ci/run` calls the first; test_proof.py does what the second does and
# collects the third, which needs a GPU to do more; tests/serving serves.
SERVE = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve MODEL"
GPU = "python -m pytest tests/v1"
ELSEWHERE = {"make lint test", "make verify", GPU, SERVE, *REBUILD, *RELEASE, *SUBMIT}
FAULTY = {
    ".venv/bin/mrv2 status 0.24.0": 1,
    ".venv/bin/mrv2 diff CLONE": 1,
    ".venv/bin/mrv2 audit 0.24.0": 1,
}


def test_every_command_of_the_readme_works(published: Source, tmp_path: Path) -> None:
    clone = clone_of(published("0.24.0"), tmp_path)
    assert set(COMMANDS) >= ELSEWHERE
    if not (ROOT / ".venv" / "bin" / "mrv2").exists():
        pytest.fail("the README's commands run in the .venv that make sets up: call make test")
    site = shutil.copytree(clone, tmp_path / "site", ignore=shutil.ignore_patterns(".git"))
    beside = shutil.copytree(site, tmp_path / "beside")
    by_am, by_pick = (shutil.copytree(clone, tmp_path / name) for name in ("am", "pick"))
    for command in COMMANDS:
        if command in ELSEWHERE:
            continue
        where = {"git am": by_am, "git fetch": by_pick, "git cherry-pick": by_pick}.get(
            " ".join(command.split()[:2]), ROOT
        )
        line = command.replace("CLONE", str(clone)).replace("SITE", str(site))
        # With uv, and without what vLLM requires: 280 MB are enough.
        pip = ".venv/bin/uv pip install --quiet --no-deps --target"
        line = line.replace("python -m pip install .", f"{pip} {beside} .")
        line = line.replace("pip install dist", f"{pip} {tmp_path}/installed dist")
        line = line.replace("dist/", f"{ROOT}/dist/")
        line = line.replace("python -m", f"PYTHONPATH={beside} .venv/bin/python -m")
        identity = "export GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.org; "
        done = subprocess.run(
            ["bash", "-c", identity + line], cwd=where, capture_output=True, text=True, check=False
        )
        assert done.returncode == FAULTY.get(command, 0), (command, done.stdout, done.stderr)
    for path in HYBRID, TESTS:
        assert (by_am / path).read_bytes() == (by_pick / path).read_bytes()
    assert (site / HYBRID).read_bytes() == (clone / HYBRID).read_bytes()  # given back
    assert (tmp_path / "installed" / HYBRID).read_bytes() == (by_am / HYBRID).read_bytes()


def test_ci_runs_what_the_readme_tells_a_contributor_to_run() -> None:
    assert "make lint test" in (ROOT / ".ci" / "run").read_text()


def test_repository_has_the_layout_that_the_readme_gives() -> None:
    for path in ("patches", "tests/v1", "vllm", "src/mrv2_fixes", "tests"):
        assert (ROOT / path).is_dir()
    assert not (ROOT / "vllm" / "__init__.py").exists()
    assert series.root() == ROOT
