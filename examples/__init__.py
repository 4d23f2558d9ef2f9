"""Examples, each run as ``python -m examples.NAME`` from the root of the repository. Not installed."""
