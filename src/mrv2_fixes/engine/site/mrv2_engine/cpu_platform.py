"""Keep engine and worker in one process when VLLM_ENABLE_V1_MULTIPROCESSING=0 asks for it.

0.23.0 and newer do; before, the CPU platform turned the executor "uni" into "mp" all the same.
"""

import os
from typing import Any

from .after_import import after_import


def _keep_one_process(cpu: Any) -> None:
    check = cpu.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        parallel_config = vllm_config.parallel_config
        asked_for = parallel_config.distributed_executor_backend
        check(cls, vllm_config)
        if asked_for == "uni" and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
            parallel_config.distributed_executor_backend = "uni"

    cpu.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _let_ray_place_workers(cpu: Any) -> None:
    cpu.CpuPlatform.ray_device_key = "GPU"


def install() -> None:
    """Keep the executor that the configuration chose, and let Ray be one."""
    after_import("vllm.platforms.cpu", _keep_one_process)
    after_import("vllm.platforms.cpu", _let_ray_place_workers)
