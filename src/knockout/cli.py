"""The command ``knockout``: what is installed here, and how fast it is.

Other command lines of this repository share its habits: see ``run``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import knockout
from knockout import backends
from knockout.boost import Relative
from knockout.timing import gradients, hard_topk, passes, threads

EXAMPLES = """\
examples:
  knockout info                 versions, and whether the kernels are used
  knockout bench                time of knockout.topk beside torch.topk + gather, in less than a minute
  knockout bench --device cpu --threads 1 --json
"""

# Commands of earlier versions, and where they are now.
MOVED = {name: f"python -m evals {name}, in a checkout of the repository" for name in ("reproduce", "arena")}


class UsageError(Exception):
    """A mistake in the call of a command, reported without a traceback; exit code 2."""


class CommandError(Exception):
    """A command that could not do its work, reported without a traceback; exit code 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``knockout``; see ``run``."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in MOVED:
        return _failed("knockout", f"{given[0]!r} is no longer a command of knockout; it is {MOVED[given[0]]}", 2)
    return run("knockout", parser(), given)


def run(prog: str, parser: argparse.ArgumentParser, arguments: Sequence[str] | None, hint: str = "") -> int:
    """Call the function ``run`` that the parsed arguments name, and return the exit code of the process.

    0 if all went well, 1 if the command failed, 2 for a mistake in the call, 130 if it was interrupted. Errors are one
    line on stderr. ``hint`` says how to go on after an interrupt. argparse itself exits, with 2, or 0 after --help.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        options = parser.parse_args(arguments)
        code = int(options.run(options))
        sys.stdout.flush()  # here, where a closed pipe is still handled
        return code
    except KeyboardInterrupt:
        progress("")
        print(f"{prog}: interrupted" + (f"; {hint}" if hint else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone, as in `knockout info | head -1`. Python flushes stdout once more when it exits.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        return _failed(prog, error, 2)
    except (CommandError, OSError) as error:
        return _failed(prog, error, 1)


def _failed(prog: str, error: Exception | str, code: int) -> int:
    progress("")
    print(f"{prog}: error: {error}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The commands of ``knockout`` and their options."""
    top = argparse.ArgumentParser(
        prog="knockout", description="Differentiable top-k for PyTorch.", epilog=EXAMPLES, formatter_class=HelpFormatter
    )
    top.add_argument("--version", action="version", version=f"knockout {knockout.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, call, text in (
        ("info", info, "versions, backends and devices; whether the kernels are used"),
        ("bench", bench, "time of knockout.topk as a ratio to torch.topk + gather, on this machine"),
    ):
        command = commands.add_parser(name, help=text, description=f"{text}.", formatter_class=HelpFormatter)
        command.set_defaults(run=call)
        command.add_argument("--json", action="store_true", help="JSON instead of tables")
    command.add_argument("--device", help="cpu, cuda, mps, ... (every device of this machine)")
    command.add_argument("--threads", type=number(1, 4096), help="of the CPU (as many as PyTorch uses)")
    command.add_argument("--quick", action="store_true", help="one small cell, to see that it runs")
    return top


# --- info -----------------------------------------------------------------------------------------

OPTIONAL = ("numpy", "matplotlib", "transformers", "pyarrow", "safetensors")


def info(options: argparse.Namespace) -> int:
    """``knockout info``."""
    found = environment()
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(style(_verdict(found["devices"]), "1"))
    print()
    versions = {"knockout": found["knockout"], "torch": found["torch"], "python": found["python"]}
    machine = {name: found[name] for name in ("system", "processor", "threads")}
    missing = {name: version or "not installed (optional)" for name, version in found["optional"].items()}
    print(table(None, [[name, str(value)] for name, value in {**versions, **machine, **missing}.items()]))
    print()
    rows = [[name, "no" if reason else "yes", reason] for name, reason in found["backends"].items()]
    print(table(["backend", "usable", "why not"], rows))
    print()
    print(table(["device", "backend used"], [[name, backend] for name, backend in found["devices"].items()]))
    forced = found["KNOCKOUT_BACKEND"]
    if forced is not None:
        print(f"\nThe environment variable KNOCKOUT_BACKEND is set to {forced!r}.")
    return 0


def environment() -> dict[str, Any]:
    """What is installed on which machine, ready for JSON."""
    return {
        "knockout": knockout.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "optional": {name: _version(name) for name in OPTIONAL},
        "backends": {name: backends.why_not(name) for name in backends.NAMES},
        "devices": {str(each): backends.chosen_for(each) for each in devices()},
        "KNOCKOUT_BACKEND": os.environ.get("KNOCKOUT_BACKEND"),
    }


def _verdict(chosen: dict[str, str]) -> str:
    """One line that says on which devices kernels are used."""
    on = [f"{name} ({backend})" for name, backend in chosen.items() if backend != "reference"]
    off = [name for name, backend in chosen.items() if backend == "reference"]
    parts = [f"on for {', '.join(on)}"] if on else []
    parts += [f"off for {', '.join(off)}, which runs plain PyTorch"] if off else []
    return "kernels: " + "; ".join(parts)


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def devices() -> list[torch.device]:
    """The CPU and every accelerator of this machine."""
    found = [torch.device("cpu")]
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None:
        found += [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# --- bench ----------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """Sizes of one measurement."""

    batch: int
    n: int
    k: int
    d: int


CELLS = (Cell(16, 1024, 16, 32), Cell(16, 4096, 64, 32), Cell(16, 16384, 512, 32), Cell(4, 4096, 64, 512))
SMALL = Cell(2, 300, 7, 8)
BOOSTS = (1.0, 4.0, 16.0)
HARD = "torch.topk + gather"


def bench(options: argparse.Namespace) -> int:
    """``knockout bench``."""
    used = devices() if options.device is None else [torch.device(device(options.device))]
    with threads(options.threads):
        _bench(used, options)
    return 0


def _bench(used: Sequence[torch.device], options: argparse.Namespace) -> None:
    cells, rounds, seconds = ((SMALL,), 3, 0.0) if options.quick else (CELLS, 7, 0.5)
    rows = []
    try:
        for each in used:
            check(each)
        for done, (each, cell) in enumerate(itertools.product(used, cells), 1):
            progress(f"measuring: {done} of {len(used) * len(cells)}")
            rows += measure(each, cell, rounds, seconds)
    except RuntimeError as error:  # of the device: out of memory, lost, without some operator
        raise CommandError(f"on {each}: {_first_line(error)}") from error
    progress("")
    if options.json:
        print(json.dumps({"environment": environment(), "rows": rows}, indent=2))
        return
    print(f"Median milliseconds of knockout.topk, and their ratio to {HARD}. Normal scores, float32.")
    print("Results and gradients agree with the reference backend.")
    print(f"processor: {processor()}; threads: {torch.get_num_threads()}\n")
    header = ["device", "backend", "batch", "n", "k", "d", "boost", "forward", "ratio", "with backward", "ratio"]
    print(table(header, [_cells(row) for row in rows]))


def measure(place: torch.device, cell: Cell, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Time every boost and the hard twin, in turn, on one cell: a row per boost."""
    values, scores = _inputs(place, cell)
    boosts = {f"{c:g}": partial(_soft, k=cell.k, c=c) for c in BOOSTS}
    taken = passes({HARD: partial(hard_topk, k=cell.k), **boosts}, values, scores, rounds, seconds)
    hard = taken[HARD]
    return [
        {
            "device": str(place), "backend": backends.chosen_for(place), **cell._asdict(), "boost": float(name),
            "seconds": taken[name].forward, "ratio": taken[name].forward / hard.forward,
            "seconds_with_backward": taken[name].both, "ratio_with_backward": taken[name].both / hard.both,
        }
        for name in boosts
    ]  # fmt: skip


def check(place: torch.device) -> None:
    """Compare results and gradients on a device with those of the reference backend on the CPU.

    Raises CommandError where they differ.
    """
    for c in BOOSTS:
        operator = partial(_soft, k=SMALL.k, c=c)
        found = _result_and_gradients(operator, place)
        with backends.force("reference"):
            expected = _result_and_gradients(operator, torch.device("cpu"))
        for what, one, other in zip(
            ("values", "gradients of values", "gradients of scores"), found, expected, strict=True
        ):
            if not torch.allclose(one.cpu(), other, rtol=1e-4, atol=1e-5):
                raise CommandError(
                    f"on {place} the backend {backends.chosen_for(place)!r} is wrong: its {what} with a boost of {c:g} "
                    "differ from those of the reference backend; no times are reported"
                )


def _result_and_gradients(operator: Callable[[Tensor, Tensor], Tensor], place: torch.device) -> tuple[Tensor, ...]:
    values, scores = (each.requires_grad_() for each in _inputs(place, SMALL))
    result = operator(values, scores).detach()
    return result, *gradients(operator, values, scores, torch.ones_like(result))


def _inputs(place: torch.device, cell: Cell) -> tuple[Tensor, Tensor]:
    """Values and scores, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(cell.batch, cell.n, cell.d, generator=generator)
    return values.to(place), torch.randn(cell.batch, cell.n, generator=generator).to(place)


def _soft(values: Tensor, scores: Tensor, k: int, c: float) -> Tensor:
    return knockout.topk(values, scores, k, Relative(c)).values


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [str(row[name]) for name in ("device", "backend", "batch", "n", "k", "d")]
    times = [f"{1e3 * row['seconds']:.3f}", f"{row['ratio']:.2f}"]
    both = [f"{1e3 * row['seconds_with_backward']:.3f}", f"{row['ratio_with_backward']:.2f}"]
    return [*sizes, f"{row['boost']:g}", *times, *both]


# --- shared by command lines ----------------------------------------------------------------------


def device(name: str) -> str:
    """Check the value of ``--device``: the name of a device that works here."""
    try:
        found = torch.device(name)
        if found.type == "meta":
            raise RuntimeError("it has no numbers")
        torch.zeros(1, device=found).add(1).item()
    except Exception as error:  # every PyTorch backend has its own way to say that it is missing
        raise UsageError(f"--device: {name!r} cannot be used here ({_first_line(error)}); cpu always can") from None
    return str(found)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def number(least: int, most: int) -> Callable[[str], int]:
    """Make an argparse type: a whole number from ``least`` to ``most``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}; got {text!r}")
        return value

    return convert


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with line breaks as written."""

    def __init__(self, prog: str, **_: Any) -> None:
        super().__init__(prog, max_help_position=22)


NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?|nan|-?inf|-")  # "-" where there is none


def table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; those of numbers are aligned right.

    >>> print(table(["name", "seconds"], [["first", "0.25"], ["second", "10"]]))
    name    seconds
    first      0.25
    second       10
    """
    lines = [*([header] if header else []), *rows]
    columns = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        numbers = all(NUMBER.fullmatch(cell) for cell in column[len(lines) - len(rows) :])
        columns.append([cell.rjust(width) if numbers else cell.ljust(width) for cell in column])
    texts = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    if header:
        texts[0] = style(texts[0], "1")
    return "\n".join(texts)


def progress(text: str) -> None:
    """Replace the last line of a terminal on stderr; do nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def style(text: str, code: str) -> str:
    """Text in a style of ANSI terminals ("1" is bold), if stdout is one and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


if __name__ == "__main__":
    sys.exit(main())
