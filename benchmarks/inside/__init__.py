"""What runs in a release's environment, on vLLM's own code, with and without the series."""
