"""What the plugin would do in a server that is started with this Python and this environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from mrv2_fixes import plan
from mrv2_fixes.plan import State
from mrv2_fixes.plugin import NAME, settings, start
from mrv2_fixes.plugin.settings import Mode
from mrv2_fixes.targets import Target

GROUP = "vllm.general_plugins"


@dataclass(frozen=True)
class Forecast:
    """says: one line for people. served: slugs that the import hook would bring in."""

    says: str
    served: frozenset[str] = frozenset()


def forecast(target: Target, environ: Mapping[str, str]) -> Forecast | None:
    """None when the plugin is not installed in this Python.

    Raises WrongCall for a wrong `MRV2_FIXES`.
    """
    if not any(point.name == NAME for point in metadata.entry_points(group=GROUP)):
        return None
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in allowed.split(","):
        return Forecast(f"starts as its files are: VLLM_PLUGINS={allowed} leaves {NAME} out")
    chosen = settings.read(environ)
    if chosen.mode is Mode.OFF:
        return Forecast(f"starts as its files are: {settings.VARIABLE}=off")
    made = plan.quick(chosen.patches, target.files, version=target.version, record=target.record())
    found = start.problems(made)
    if found and chosen.mode is Mode.STRICT:
        return Forecast(f"does not start: {', '.join(found)}: neither in nor unnecessary")
    served = frozenset(
        step.patch.slug
        for step in made.steps
        if step.state is State.NEEDED
        and not found.keys() & {step.patch.slug, *step.patch.header.requires}
    )
    hooked = f"the import hook brings in {', '.join(sorted(served))}" if served else "nothing to do"
    without = f"; NOT in: {', '.join(found)}" if found else ""
    return Forecast(f"starts, and {hooked}{without}", served)
