"""What one process of vLLM sees of the hook, printed as JSON; run in an environment of vLLM."""

from __future__ import annotations

import inspect
import json
import traceback
from types import SimpleNamespace

import numpy
from vllm.plugins import load_general_plugins

import mrv2_fixes

load_general_plugins()
load_general_plugins()

from vllm.v1.worker.gpu.model_states import mamba_hybrid  # noqa: E402

prepare_attn = mamba_hybrid.MambaHybridModelState.prepare_attn
numbers = numpy.ones(2, dtype=numpy.int32)
batch = SimpleNamespace(
    num_reqs=2,
    num_tokens=2,
    query_start_loc_np=numbers,
    num_scheduled_tokens=numbers,
    seq_lens_cpu_upper_bound=numbers,
    is_prefilling_np=numbers > 1,
)


def fail() -> None:
    """Call the method with a model state that has nothing but what the unpatched lines ask for."""
    prepare_attn(SimpleNamespace(), batch, None, (), None, [], None)


try:
    fail()
except AttributeError:
    said = traceback.format_exc()
seen = {
    "report": mrv2_fixes.report(),
    "file": mamba_hybrid.__file__,
    "source": inspect.getsource(prepare_attn),
    "traceback": said,
}
print(json.dumps(seen), flush=True)
fail()
