"""Does a scorer learn through a method with nothing tuned? ``python -m evals learning``."""
