"""Stand-ins for the device, for releases whose V2 model runner has no CPU class of its own.

Releases that have one (the folder vllm/v1/worker/cpu) bring the same stand-ins with them.
"""

import inspect
import os
from pathlib import Path
from typing import Any

from .after_import import after_import


class _Event:
    """Everything is done when it is asked for: nothing to record, nothing to wait for."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class _Stream:
    """The one stream there is."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


def _nothing(*args: Any, **options: Any) -> None: ...


def _stand_in_for_torch_devices() -> None:
    import torch

    cuda: Any = torch.cuda
    cuda.Event = _Event
    cuda.Stream = _Stream
    cuda.current_stream = _Stream
    cuda.set_stream = _nothing
    accelerator: Any = torch.accelerator
    accelerator.synchronize = accelerator.empty_cache = _nothing


def _copy_without_pinned_memory(torch_utils: Any) -> None:
    import torch

    # newer releases ask the platform, and have no such parameter
    original = getattr(torch_utils, "async_tensor_h2d", None)
    if original is None or "pin_memory" not in inspect.signature(original).parameters:
        return

    def async_tensor_h2d(
        data: Any, dtype: Any = None, device: Any = None, pin_memory: bool = False
    ) -> Any:
        return torch.tensor(data, dtype=dtype, device=device)

    torch_utils.async_tensor_h2d = async_tensor_h2d


def _buffers_on_ordinary_memory(buffer_utils: Any) -> None:
    import torch

    class UvaBuffer:
        def __init__(self, size: Any, dtype: Any) -> None:
            self.cpu = self.uva = torch.zeros(size, dtype=dtype, device="cpu")
            self.np = self.cpu.numpy()

    buffer_utils.UvaBuffer = UvaBuffer


def _warm_up_by_a_profile_run(model_runner: Any) -> None:
    # the name under which the CPU worker asks for it
    model_runner.GPUModelRunner.warming_up_model = model_runner.GPUModelRunner.profile_run


def _build_the_v2_runner(cpu_worker: Any) -> None:
    v1_runner = cpu_worker.CPUModelRunner

    def runner(vllm_config: Any, device: Any) -> Any:
        # the oldest of these releases decide by the variable alone
        asked_for = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
        if not getattr(vllm_config, "use_v2_model_runner", asked_for):
            return v1_runner(vllm_config, device)
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        return GPUModelRunner(vllm_config, device)

    cpu_worker.CPUModelRunner = runner


def _stand_in(cpu: Any) -> None:
    if (Path(cpu.__file__).parents[1] / "v1" / "worker" / "cpu").is_dir():
        return
    _stand_in_for_torch_devices()
    cpu.CpuPlatform.get_current_memory_usage = classmethod(lambda cls, device=None: 0)
    after_import("vllm.v1.worker.gpu.buffer_utils", _buffers_on_ordinary_memory)
    after_import("vllm.v1.worker.gpu.model_runner", _warm_up_by_a_profile_run)
    after_import("vllm.v1.worker.cpu_worker", _build_the_v2_runner)


def install() -> None:
    """Copy without pinned memory everywhere; for the rest wait until vLLM chooses its platform."""
    # also where vLLM brings its own: a test may import a user of it before
    after_import("vllm.utils.torch_utils", _copy_without_pinned_memory)
    after_import("vllm.platforms.cpu", _stand_in)
