"""Run in a release's environment: what two workers answer, and what each of them runs, as JSON.

python -m tests.serving.inside.workers MODEL EXECUTOR RESULT      EXECUTOR: spawn, fork or ray
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

import mrv2_fixes
from tests.serving import traffic

SETTING = "MRV2_FIXES"


class Forking(MultiprocExecutor):
    """The CPU platform sets spawn whatever is asked for; others fork."""

    def _init_executor(self) -> None:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        super()._init_executor()


def start_ray() -> None:
    """A cluster that was up before: what is set here gets to its workers through vLLM alone."""
    import ray

    setting = os.environ.pop(SETTING)
    ray.init(num_gpus=2, include_dashboard=False)
    os.environ[SETTING] = setting


def main(model: str, executor: str, result: str) -> None:
    """Generate for all requests at once, then ask each worker."""
    if executor == "ray":
        start_ray()
    backend: Any = {"spawn": "mp", "fork": Forking, "ray": "ray"}[executor]
    llm = LLM(
        model,
        tensor_parallel_size=2,
        distributed_executor_backend=backend,
        worker_extension_cls="mrv2_fixes.plugin.WorkerExtension",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        dtype="float32",
        seed=0,
        block_size=32,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        num_gpu_blocks_override=16,
    )
    requests = traffic.mix()
    outputs = llm.generate(
        [{"prompt_token_ids": list(request.prompt)} for request in requests],
        [
            SamplingParams(
                max_tokens=request.awaited, temperature=0, detokenize=False, ignore_eos=True
            )
            for request in requests
        ],
        use_tqdm=False,
    )
    # An engine core in another process takes a name from everyone, and a function only if told to.
    asked: Any = "mrv2_report" if executor == "spawn" else mrv2_fixes.report
    seen = {
        "pid": os.getpid(),
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "reports": llm.collective_rpc(asked),
    }
    Path(result).write_text(json.dumps(seen))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
