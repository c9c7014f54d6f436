"""Run vLLM's V2 model runner without a GPU: the real engine, with the device stood in for.

Nothing of torch, Triton or vLLM is imported here. Each module says what it changes and registers it
for the moment when the module that it changes has been imported.
"""

from . import (
    cpu_platform,
    defaults,
    device,
    distribution,
    inspection,
    refusal,
    rotary,
    triton_on_cpu,
    weights,
)


def boot() -> None:
    """Register every change; cheap and without effect in a process that never imports vLLM."""
    defaults.install()
    distribution.install()
    triton_on_cpu.install()
    rotary.install()
    weights.install()
    inspection.install()
    cpu_platform.install()
    device.install()
    refusal.install()
