"""All methods for a differentiable top-k on shared tasks: ``python -m evals arena``."""
