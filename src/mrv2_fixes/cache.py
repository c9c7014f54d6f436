"""Where what is downloaded or built is kept: outside the repository, for the next time."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from mrv2_fixes.errors import Mrv2Error


def folder() -> Path:
    """`$MRV2_CACHE`, else the user's cache folder; made when it is not there.

    Raises Mrv2Error when it cannot be made.
    """
    path = Path(os.environ.get("MRV2_CACHE") or platformdirs.user_cache_path("mrv2-fixes"))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mrv2Error(f"{path}: {error.strerror}: set MRV2_CACHE to another folder") from error
    return path
