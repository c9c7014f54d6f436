"""Fixes for vLLM's Model Runner V2 as a patch series; see README.md."""
