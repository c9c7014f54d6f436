"""The hook in a process of vLLM's: what is loaded, and what a traceback shows of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mrv2_fixes import engine, known, plan, series
from mrv2_fixes.targets import folder

from .conftest import RELEASE

pytestmark = pytest.mark.engine

HYBRID = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
MODULE = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
# The line that fails is one that only the planned text has.
LINE = "if not for_capture and self.vllm_config.num_speculative_tokens > 0:"


def test_what_a_process_loads_and_what_its_tracebacks_show(plugin: engine.Environment) -> None:
    done = subprocess.run(
        [plugin.python, Path(__file__).parent / "inside" / "hooked.py"],
        env=engine.variables(plugin) | {"VLLM_PLUGINS": "mrv2_fixes"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    files = folder.read(plugin.site_packages).files
    after = plan.make(series.load().core, files, version=RELEASE).after
    module = seen["report"]["modules"][MODULE]
    assert module == {"loaded": "import hook", "sha256": known.digest(after[HYBRID])}
    assert seen["file"] == str(plugin.site_packages / HYBRID)
    assert LINE in seen["source"]
    number = after[HYBRID].decode().splitlines().index(f"        {LINE}") + 1
    shown = f'File "<mrv2-fixes>/{HYBRID}", line {number}, in prepare_attn\n    {LINE}\n'
    assert shown in seen["traceback"]
    # The same of an exception that ends the process, which C code prints before Python 3.13.
    assert done.returncode == 1
    assert shown in done.stderr
