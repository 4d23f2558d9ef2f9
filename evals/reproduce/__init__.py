"""The paper's evaluation, measured again: ``python -m evals reproduce``."""
