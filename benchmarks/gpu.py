"""On a GPU: a draft's decode and whole requests by `max_model_len`, without the series and with it.

    .venv/bin/python -m benchmarks.gpu [RELEASE]

For FlashAttention, FlashInfer and Triton MLA one layer's decode of a draft step, timed by the
device, with the bytes that it takes at most; then `vllm bench latency` of a tiny model with an
EAGLE draft, in eager mode, since a captured graph keeps its arguments. The official wheel of the
release is installed into `.venv-gpu-RELEASE`, which takes some GB. It has not been run on a GPU
yet; without one it says so and measures nothing.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure, real_vllm
from mrv2_fixes import cache, engine
from mrv2_fixes.engine.environments import RUNNING
from mrv2_fixes.engine.run import FOREIGN
from mrv2_fixes.engine.uv import uv

BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_MLA")
LENGTHS = tuple(1 << power for power in range(10, 21, 2))
RUNS = 50
PROCESSES = 3
"""Runs of `vllm bench latency` per side and length; of each the median of its own iterations."""
TIMEOUT = 600.0
SMALL = ("--input-len", "128", "--output-len", "64", "--batch-size", "8")


def gpus() -> list[str]:
    """What the driver calls the GPUs of this machine; none where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(ask, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def environment(release: str) -> engine.Environment:
    """An environment with the official wheel; made the first time."""
    made = engine.Environment(release, real_vllm.ROOT / f".venv-gpu-{release}", RUNNING)
    if not made.vllm.is_dir():
        about = f"no environment with vLLM {release} for a GPU was made"
        uv("venv", "--quiet", "--clear", "--python", RUNNING, str(made.folder), about=about)
        wanted = (f"vllm=={release}", "pytest", "transformers<5.13")
        uv("pip", "install", "--quiet", "--python", str(made.python), *wanted, about=about)
    return made


def variables(*folders: Path) -> dict[str, str]:
    """Variables of a process on the GPU, which looks for modules in `folders` first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_PLUGINS": "",
    }


def latency(
    python: Path,
    variables: Mapping[str, str],
    models: Path,
    max_model_len: int,
    arguments: Sequence[str] = SMALL,
) -> float:
    """Seconds of `vllm bench latency` for one batch, the median of its iterations.

    models: what `benchmarks.inside.long_models` wrote.
    Raises EngineError, with the end of the output, when it does not come to its end.
    """
    drafts = {"method": "eagle", "model": str(models / "draft"), "num_speculative_tokens": 3}
    with tempfile.TemporaryDirectory() as temporary:
        result, output = Path(temporary) / "result.json", Path(temporary) / "output"
        command = [
            *(str(python), "-m", "vllm.entrypoints.cli.main", "bench", "latency"),
            *("--model", str(models / "target"), "--speculative-config", json.dumps(drafts)),
            *("--max-model-len", str(max_model_len), "--load-format", "dummy", "--enforce-eager"),
            *("--skip-tokenizer-init", "--disable-detokenize", "--output-json", str(result)),
            *("--num-iters-warmup", "2", "--num-iters", "10", *arguments),
        ]
        status = engine.run_command(command, real_vllm.ROOT, variables, output, TIMEOUT)
        if status != 0:
            end = "\n".join(output.read_text(errors="replace").splitlines()[-30:])
            raise engine.EngineError(f"vllm bench latency ended with {status}\n{end}")
        latencies: list[float] = json.loads(result.read_text())["latencies"]
        return statistics.median(latencies)


def end_to_end(of: engine.Environment) -> list[dict[str, Any]]:
    """The latency of each side by `max_model_len`, in processes that take turns."""
    tree = engine.patched_tree(of, real_vllm.planned(of).after, cache.folder())
    sides = {"without": variables(), "with": variables(tree)}
    with tempfile.TemporaryDirectory() as models:
        subprocess.run(
            [str(of.python), "-m", "benchmarks.inside.long_models", models],
            cwd=real_vllm.ROOT,
            env=variables(),
            check=True,
        )
        answer = []
        for length in LENGTHS:
            samples = {
                side: functools.partial(latency, of.python, env, Path(models), length)
                for side, env in sides.items()
            }
            taken = measure.compared(measure.sampled(samples, PROCESSES), "without")
            answer.append({"max_model_len": length, "sides": taken})
        return answer


def main(release: str = "0.22.1") -> None:
    """Measure one release, and keep what was seen."""
    found = gpus()
    if not found:
        print("no GPU was found (nvidia-smi names none): nothing was measured on one")
        return
    made = environment(release)
    figures = {
        "gpus": found,
        "decode": real_vllm.run(
            release,
            "decode_time",
            *(RUNS, ",".join(BACKENDS), *LENGTHS),
            environment=made,
            variables=variables(),
        ),
        "end to end": end_to_end(made),
    }
    measure.write("gpu", figures, real_vllm.measured(Path(__file__)), {"vllm": release})


if __name__ == "__main__":
    main(*sys.argv[1:])
