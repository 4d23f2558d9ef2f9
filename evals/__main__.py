"""The command ``python -m evals``."""

import sys

from evals.command import main

if __name__ == "__main__":  # and not in the worker processes, which import this module again
    sys.exit(main())
