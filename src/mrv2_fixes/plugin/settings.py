"""`MRV2_FIXES`: what the plugin does, and with which patches."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from mrv2_fixes import series
from mrv2_fixes.errors import WrongCall

VARIABLE = "MRV2_FIXES"


class Mode(str, enum.Enum):
    """What becomes of a process that a selected fix cannot be brought into."""

    STRICT = "strict"  # it does not start
    WARN = "warn"  # it says so and starts
    OFF = "off"  # nothing is done in it


@dataclass(frozen=True)
class Settings:
    """patches: those selected, with what they require, in order; none when off."""

    mode: Mode
    patches: tuple[series.Patch, ...]


def read(environ: Mapping[str, str]) -> Settings:
    """What `MRV2_FIXES` says: words between commas, in any case, each a mode, a group or a slug.

    Without a mode it is strict, without patches the group `core`. Raises WrongCall for a word that
    is none of these, and for two modes.
    """
    said = environ.get(VARIABLE, "").lower().split(",")
    words = [word.strip() for word in said if word.strip()]
    modes = {Mode(word) for word in words if word in set(Mode)}
    groups = {word for word in words if word in series.GROUPS}
    slugs = [word for word in words if word not in modes | groups]
    if len(modes) > 1 or len(groups) > 1 or (groups and slugs):
        raise WrongCall(
            f"{VARIABLE}={','.join(words)}: want one of strict, warn and off, and either core, all "
            "or slugs"
        )
    known = [patch.slug for patch in series.load().patches]
    unknown = [word for word in slugs if word not in known]
    if unknown:
        raise WrongCall(
            f"{VARIABLE}={','.join(words)}: unknown {', '.join(unknown)}: want strict, warn, off, "
            f"core, all or slugs: the series has {', '.join(known)}"
        )
    mode = modes.pop() if modes else Mode.STRICT
    patches = series.load().select(slugs, groups.pop() if groups else "core")
    return Settings(mode, () if mode is Mode.OFF else patches)
