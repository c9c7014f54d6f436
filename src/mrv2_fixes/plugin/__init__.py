"""The entry point of `vllm.general_plugins`: vLLM calls `load` in each of its processes.

vLLM logs an error that comes up while an entry point is imported, and goes on without it; one that
comes up in the function stops the process. So nothing is imported here, and all else in `load`.
"""

from __future__ import annotations

import sys
from typing import Any

NAME = "mrv2_fixes"
"""Of the entry point, as `VLLM_PLUGINS` names it."""


def load() -> None:
    """Install the import hook, as `MRV2_FIXES` says; see `mrv2_fixes.plugin.start`."""
    try:
        from mrv2_fixes.plugin import start

        start.start()
    except BaseException:
        # vLLM notes that its plugins are loaded before they are, and would not call this again for
        # a second engine in this process, or in a fork of it.
        if "vllm.plugins" in sys.modules:
            sys.modules["vllm.plugins"].__dict__["plugins_loaded"] = False
        raise


class WorkerExtension:
    """For ``--worker-extension-cls mrv2_fixes.plugin.WorkerExtension``: `report` by its name.

    ``LLM.collective_rpc("mrv2_report")`` and the server's ``/collective_rpc`` take a name from
    everyone, and a function only with ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``.
    """

    def mrv2_report(self) -> dict[str, Any]:
        """What the worker's process runs; see `mrv2_fixes.report`."""
        from mrv2_fixes.plugin import running

        return running.report()
