"""Boot the engine in every Python process that has this folder on its path and asks for it."""

import os

if os.environ.get("MRV2_ENGINE") == "cpu":
    import mrv2_engine

    mrv2_engine.boot()
