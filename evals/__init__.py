"""Evaluations of the library: ``python -m evals reproduce`` and ``python -m evals arena``. Not installed with it."""
