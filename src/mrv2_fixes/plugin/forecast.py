"""What the plugin would do in a server that is started with this Python and this environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from mrv2_fixes.plugin import NAME, settings, start
from mrv2_fixes.plugin.settings import Mode
from mrv2_fixes.targets import Target

GROUP = "vllm.general_plugins"


@dataclass(frozen=True)
class Forecast:
    """says: one line for people. served: slugs that the import hook would bring in, in order."""

    says: str
    served: tuple[str, ...] = ()


def forecast(target: Target, environ: Mapping[str, str]) -> Forecast | None:
    """None when the plugin is not installed in this Python.

    Raises WrongCall for a wrong `MRV2_FIXES`, TargetUnusable for a file that cannot be read.
    """
    if not any(point.name == NAME for point in metadata.entry_points(group=GROUP)):
        return None
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in allowed.split(","):
        return Forecast(f"starts as its files are: VLLM_PLUGINS={allowed} leaves {NAME} out")
    chosen = settings.read(environ)
    if chosen.mode is Mode.OFF:
        return Forecast(f"starts as its files are: {settings.VARIABLE}=off")
    made, left_out = start.decide(chosen, target)
    if left_out and chosen.mode is Mode.STRICT:
        without = f"{settings.VARIABLE}=warn starts without"
        return Forecast(f"does not start, since these do not fit: {', '.join(left_out)}; {without}")
    served = tuple(step.patch.slug for step in made.needed())
    hooked = (
        f"the import hook brings in {', '.join(served)}"
        if served
        else "the import hook has nothing to bring in"
    )
    without = f"; NOT in: {', '.join(left_out)}" if left_out else ""
    return Forecast(f"starts, and {hooked}{without}", served)
