"""A small vLLM of the real one's shape, in which one method at a time is another."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from mrv2_fixes.audit import audit

GPU = "vllm/v1/worker/gpu/"
BOUND = "seq_lens_cpu_upper_bound"
# What `prepare_attn` may give where it is right.
LONG = "self.max_model_len if for_capture else input_batch.longest"
GIVEN = f"{BOUND}=input_batch.{BOUND}"
BUILD = """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    def build_attn_metadata(
        groups,
        num_reqs,
        max_seq_len,
        seq_lens_cpu_upper_bound=None,
        positions=None,
        for_cudagraph_capture=False,
        model_specific_attn_metadata=None,
    ):
        if seq_lens_cpu_upper_bound is not None:
            seq_lens_cpu_upper_bound = seq_lens_cpu_upper_bound[:num_reqs]
        for group in groups:
            if not group:
                continue
            common = CommonAttentionMetadata(
                num_reqs=num_reqs,
                max_seq_len=max_seq_len,
                seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
                positions=positions,
            )
            group.build(common, for_cudagraph_capture)
"""
IMPORTS = """
    from dataclasses import dataclass, replace
    from functools import partial
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.worker.gpu import attn_utils
    from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
    from vllm.v1.worker.gpu.model_states.interface import ModelState

    class OneMetadata(CommonAttentionMetadata):
        more: int = 0

"""
INTERFACE = """
    from abc import ABC, abstractmethod

    class ModelState(ABC):
        def __init__(self, vllm_config):
            self.vllm_config = vllm_config
            self.groups = []
            self.max_model_len = vllm_config.model_config.max_model_len

        @abstractmethod
        def prepare_attn(self, input_batch, for_capture=False):
            pass
"""
STATE = GPU + "model_states/state.py"


def vllm(state: str, more: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The files of a small vLLM: a model state, and what it needs."""
    texts = {
        "vllm/__init__.py": "",
        GPU + "__init__.py": "",
        GPU + "attn_utils.py": BUILD,
        GPU + "model_states/interface.py": INTERFACE,
        STATE: textwrap.dedent(IMPORTS) + textwrap.dedent(state),
        **(more or {}),
    }
    return {path: textwrap.dedent(text).encode() for path, text in texts.items()}


def of_state(body: str, beside: str = "") -> dict[str, bytes]:
    """A vLLM whose one model state has this `prepare_attn`; beside: other methods."""
    method = "def prepare_attn(self, input_batch, for_capture=False):\n"
    whole = method + textwrap.indent(textwrap.dedent(body), "    ") + textwrap.dedent(beside)
    return vllm("class OneState(ModelState):\n" + textwrap.indent(whole, "    "))


def kinds(files: dict[str, bytes]) -> list[tuple[str, str, str]]:
    found = audit(files)
    assert all(one.why and "\n" not in one.why for one in found)
    return [(one.symbol, one.kind.value, one.field) for one in found]
