"""The one way to time: calls that take turns, medians, the ratio to the hard twin ``torch.topk`` + gather.

The code is in the package, because the installed command ``knockout bench`` measures the same way.
"""

from knockout.cli.timing import (
    Passes,
    gradients,
    hard_topk,
    interleaved,
    median,
    medians,
    passes,
    synchronize,
    threads,
    timed,
)

__all__ = [
    "Passes",
    "gradients",
    "hard_topk",
    "interleaved",
    "median",
    "medians",
    "passes",
    "synchronize",
    "threads",
    "timed",
]
