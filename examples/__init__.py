"""Worked examples on real data; each runs as ``python -m examples.NAME`` from the project's root."""
