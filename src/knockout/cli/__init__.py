"""The command ``knockout``: what is installed here, and how fast it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import knockout
from knockout.cli import bench, info
from knockout.cli.habits import HelpFormatter, failed, number, run

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  knockout info                 versions, and whether the kernels are used
  knockout bench                time of knockout.topk beside torch.topk + gather, in less than a minute
  knockout bench --device cuda  the same on a GPU, with a block to paste into an issue
  knockout bench --device cpu --threads 1 --json
"""

# Commands of earlier versions, and where they are now.
MOVED = {name: f"python -m evals {name}, in a checkout of the repository" for name in ("reproduce", "arena")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``knockout``; see ``run``."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in MOVED:
        return failed("knockout", f"{given[0]!r} is no longer a command of knockout; it is {MOVED[given[0]]}", 2)
    return run("knockout", parser(), given)


def parser() -> argparse.ArgumentParser:
    """The commands of ``knockout`` and their options."""
    top = argparse.ArgumentParser(
        prog="knockout", description="Differentiable top-k for PyTorch.", epilog=EXAMPLES, formatter_class=HelpFormatter
    )
    top.add_argument("--version", action="version", version=f"knockout {knockout.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, call, text in (
        ("info", info.run, "versions, backends and devices; whether the kernels are used"),
        ("bench", bench.run, "time of knockout.topk as a ratio to torch.topk + gather, on this machine"),
    ):
        command = commands.add_parser(name, help=text, description=f"{text}.", formatter_class=HelpFormatter)
        command.set_defaults(run=call)
        command.add_argument("--json", action="store_true", help="JSON instead of tables")
    command.add_argument("--device", help="cpu, cuda, mps, ... (every device of this machine)")
    command.add_argument("--threads", type=number(1, 4096), help="of the CPU (as many as PyTorch uses)")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="one small cell, to see that it runs")
    what.add_argument("--paper", action="store_true", help="the 85 cells of the paper: some minutes")
    what.add_argument("--check", action="store_true", help="only compare results with the reference, no times")
    return top
