"""The paper's quality, measured again: ``python -m knockout.eval.reproduce`` (what ``make reproduce`` runs)."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from knockout.eval.grid import CELLS, Quality, quality
from knockout.eval.published import Published, published
from knockout.tournament import rounds_of

QUICK = [(n, k) for n in (64, 512, 4096, 16384) for k in (2, 8, 32, 128) if k < n]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and say how many of the published figures were met."""
    parser = argparse.ArgumentParser(prog="python -m knockout.eval.reproduce", description=__doc__)
    parser.add_argument("--grid", choices=["quick", "paper"], default="quick", help="15 cells, or the paper's 85")
    parser.add_argument("--batches", type=_positive, default=16, help="batches of 16 rows in each cell (the paper: 16)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    console, theirs = Console(), published()
    table = Table(
        title="nCCS: how close the returned vectors come to the true top k (1 is perfect)",
        caption="publ.: Pietruszka, Borchmann, Graliński, AAAI 2021, arXiv 2010.15552\n"
        "* off by more than 0.02 and by more than 4 standard errors",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    for heading in ("n", "k", "rounds", "halving\npubl.", "\nhere", "iterative\npubl.", "\nhere"):
        table.add_column(heading, justify="right")
    for heading in ("Relative(4)\ndefault", "(16)\n"):
        table.add_column(heading, justify="right", style="bold")
    missed = 0
    cells = CELLS if options.grid == "paper" else QUICK
    for n, k in track(cells, "measuring", console=Console(stderr=True), transient=True):
        ours = quality(n, k, options.batches, options.seed)
        row = [str(n), str(k), str(rounds_of(n, k))]
        for method in ("halving", "iterative"):
            off = differs(theirs[method, n, k], ours[method])
            missed += off
            row += [f"{theirs[method, n, k].nccs:.3f}", f"{ours[method].mean:.3f}" + ("*" if off else "")]
        table.add_row(*row, f"{ours['Relative(4)'].mean:.3f}", f"{ours['Relative(16)'].mean:.3f}")
    console.print(table)
    console.print(
        f"{2 * len(cells) - missed} of {2 * len(cells)} published figures met, "
        f"with {options.batches} batches of 16 rows a cell."
    )
    return 0


def differs(theirs: Published, ours: Quality) -> bool:
    """Whether two means differ by more than 0.02 and by more than four standard errors of their difference."""
    error = math.hypot(theirs.standard_error, ours.standard_error)
    return abs(ours.mean - theirs.nccs) > max(0.02, 4 * error)


def _positive(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"at least 2 batches are needed for a standard error; got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
