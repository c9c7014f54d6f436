"""What a developer of the series runs when it, or vLLM, has changed; see the Makefile."""
