"""Shared by the evaluations, benchmarks and examples of this repository: running, recording, measuring, reporting.

Not part of the installed package.
"""
