"""Let vLLM use Triton without a GPU: kernels run in Triton's interpreter (TRITON_INTERPRET=1)."""

import math
from typing import Any

from .after_import import after_import


class _Driver:
    """What vLLM and Triton ask of a driver when no kernel is ever compiled."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_benchmarker(self) -> Any:
        return lambda function, **options: [1.0, 1.0, 1.0]


class _Backend:
    compiler = None
    driver = _Driver


def _register_cpu_backend(backends: Any) -> None:
    # vLLM turns Triton on for a CPU build only when a backend of this name is registered
    backends.backends.clear()
    backends.backends["cpu"] = _Backend


def _convert_tensors_after_the_grid_function(interpreter: Any) -> None:
    # The interpreter makes pointers of tensors before it calls a kernel's grid function, and
    # causal_conv1d sets further tensors inside that function: what is one afterwards is converted.
    initialise = interpreter.GridExecutor.__init__

    def init(self: Any, fn: Any, arg_names: Any, grid: Any, *args: Any, **options: Any) -> None:
        def converting_grid(arguments: dict[str, Any]) -> Any:
            size = grid(arguments)
            for name, value in arguments.items():
                if hasattr(value, "data_ptr"):
                    arguments[name] = interpreter._implicit_cvt(value)
            return size

        initialise(
            self, fn, arg_names, converting_grid if callable(grid) else grid, *args, **options
        )

    interpreter.GridExecutor.__init__ = init


def _run_the_largest_blocks(autotuner: Any) -> None:
    # Timing every configuration means nothing here and takes most of a minute for one Mamba2
    # layer; the largest blocks make the fewest programs, each of which is interpreted.
    def run(self: Any, *args: Any, **options: Any) -> Any:
        largest = max(self.configs, key=_block_elements)
        return self.fn.run(*args, **{**largest.all_kwargs(), **options})

    autotuner.Autotuner.run = run


def _block_elements(config: Any) -> int:
    return math.prod(size for name, size in config.kwargs.items() if name.startswith("BLOCK"))


def install() -> None:
    """Register the backend, mend the interpreter and skip the tuning, each when it is imported."""
    after_import("triton.backends", _register_cpu_backend)
    after_import("triton.runtime.interpreter", _convert_tensors_after_the_grid_function)
    after_import("triton.runtime.autotuner", _run_the_largest_blocks)
