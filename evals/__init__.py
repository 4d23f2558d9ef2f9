"""Evaluations of the library: ``python -m evals reproduce``, ``arena`` and ``learning``. Not installed with it."""
