"""Evaluation: the paper's experiments, measured again."""
