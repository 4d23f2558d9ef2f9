"""The report: what kernels use of each GPU, how many are launched, and the model of what a call costs."""

from __future__ import annotations

from collections.abc import Iterable

from evals.gpu.calls import CELLS, launches_of_reference, recorded
from evals.gpu.model import BANDWIDTH, CYCLES, LATENCY, LAUNCH, hard_twin, ours
from harness.documents import Block, Heading, Table, Text, markdown, provenance_table
from harness.journal import Journal, Rows
from knockout.boost import DEFAULT, Relative

FITS = 4096  # up to so many candidates, registers must do


def report(results: Journal) -> str:
    """Write the report, in Markdown."""
    return markdown("The Triton kernels, compiled without a GPU", blocks(results))


def blocks(results: Journal) -> list[Block]:
    """Write the parts of the report."""
    rows = results.of("compile")
    return [
        *[Text(line) for line in findings(results)],
        Heading("Launches"),
        Text(
            "Kernels that a call launches, those of PyTorch's own operations included, for n candidates and k slots: "
            "by the reference backend, which is plain PyTorch, and by the Triton kernels."
        ),
        launches_table(),
        Heading("First calls"),
        Text(
            "Seconds to compile all kernels of a call, one after the other, forward and with backward. Triton keeps "
            "them on disk: only the first call of its kind on a machine takes that long. The largest over targets, on "
            "one core of this machine."
        ),
        _first_calls_table(rows),
        Heading("A model, not a measurement"),
        Text(
            f"On paper, for an A100 (40 GB), 16 rows of d = 32, float32, the default boost: {1e6 * LAUNCH:g} "
            f"microseconds a launch, all bytes of the arguments at {BANDWIDTH / 1e9:g} GB/s, and for each step of a "
            f"sorting network {CYCLES} cycles an element and {LATENCY} beside. Nothing of this was measured on a GPU."
        ),
        model_table(),
        Heading("Kernels"),
        Text(
            "The most that any specialization of a kernel uses: registers of a thread, bytes of stack (0 unless "
            "registers did not do), bytes of shared memory of a program, and seconds to compile."
        ),
        kernels_table(rows),
        Heading("Kernels with a stack"),
        _stacks_table(rows),
        Heading("How it was made"),
        provenance_table({**results.header, "settings": {"targets": ", ".join(results.header["settings"]["targets"])}}),
    ]


def findings(results: Journal) -> list[str]:
    """Say how many kernels were compiled, and whether registers did."""
    rows = results.of("compile")
    fitting = [row for row in rows if _candidates(row) <= FITS]
    spilled = [row for row in fitting if row["stack"]]
    targets = {row["target"] for row in rows}
    return [
        f"{len({_key(row) for row in rows})} specializations compile for {len(targets)} targets: "
        f"{', '.join(dict.fromkeys(row['target'] for row in rows))}.",
        f"Up to n = {FITS}, {len(spilled)} of {len(fitting)} compiled kernels need a stack.",
        f"{sum(row['inexact'] > 0 for row in rows)} of {len(rows)} compiled kernels have a fused multiply-add, an "
        "approximate instruction or an atomic one.",
    ]


def launches_table() -> Table:
    """Launches by cell, before and after."""
    rows = []
    for name, call in CELLS.items():
        passes = recorded(call)
        forward = len(passes.forward) + len(passes.torch_forward)
        backward = len(passes.backward) + len(passes.torch_backward)
        before = []
        for boost in (Relative(4.0), DEFAULT):
            counts = launches_of_reference(call._replace(boost=boost))
            before += [str(counts[0]), str(sum(counts))]
        rows.append([name, *before, str(forward), str(forward + backward)])
    header = ["n, k", "reference, boost 4", "with backward", "reference, default", "with backward", "Triton"]
    return Table([*header, "with backward"], rows, left=1)


def model_table() -> Table:
    """The model of each cell."""
    rows = []
    for name, call in CELLS.items():
        mine, hard = ours(call), hard_twin(call)
        for what, of_mine, of_hard in (("forward", mine[0], hard[0]), ("both", mine[0] + mine[1], hard[0] + hard[1])):
            rows.append(
                [
                    name, what, str(of_mine.launches), f"{of_mine.bytes / 1e6:.1f}", f"{1e6 * of_mine.sorting:.0f}",
                    f"{1e6 * of_mine.seconds:.0f}", str(of_hard.launches), f"{of_hard.bytes / 1e6:.1f}",
                    f"{1e6 * of_hard.seconds:.0f}", f"{of_mine.seconds / of_hard.seconds:.1f}",
                ]
            )  # fmt: skip
    header = ["n, k", "passes", "launches", "MB", "sorting, us", "model, us"]
    return Table([*header, "hard twin: launches", "MB", "model, us", "ratio"], rows, left=2)


def kernels_table(rows: Rows) -> Table:
    """The most that each kernel uses, by target and by whether n is above FITS."""
    groups: dict[tuple[str, str, str], Rows] = {}
    for row in rows:
        size = f"n <= {FITS}" if _candidates(row) <= FITS else "longer rows"
        groups.setdefault((row["kernel"], size, row["target"]), []).append(row)
    order = list(dict.fromkeys(row["target"] for row in rows))
    return Table(
        ["kernel", "of", "target", "specializations", "registers", "stack", "shared", "seconds"],
        [
            [*key, str(len({_key(row) for row in group})), *(str(_most(group, each)) for each in _USED),
             f"{_most(group, 'seconds'):.1f}"]
            for key, group in sorted(groups.items(), key=lambda item: (*item[0][:2], order.index(item[0][2])))
        ],
        left=3,
    )  # fmt: skip


_USED = ("registers", "stack", "shared")


def _stacks_table(rows: Rows) -> Table:
    seen: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row["stack"]:
            key = (row["target"], row["kernel"], row["settings"])
            seen.setdefault(key, [*key, row["call"], *(str(row[each]) for each in ("warps", "registers", "stack"))])
    return Table(["target", "kernel", "settings", "first in", "warps", "registers", "stack"], [*seen.values()], left=4)


def _first_calls_table(rows: Rows) -> Table:
    calls: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        of_target = calls.setdefault(row["call"], {}).setdefault(row["target"], [0.0, 0.0])
        of_target[1] += row["seconds"]
        of_target[0] += row["seconds"] if row["pass"] == "forward" else 0.0
    return Table(
        ["call", "forward", "with backward"],
        [
            [name, *(f"{max(each[i] for each in by_target.values()):.1f}" for i in (0, 1))]
            for name, by_target in calls.items()
        ],
        left=1,
    )  # fmt: skip


def _key(row: dict[str, object]) -> tuple[object, ...]:
    return row["kernel"], row["settings"]


def _most(rows: Iterable[dict[str, float]], name: str) -> float:
    return max(row[name] for row in rows)


def _candidates(row: dict[str, str]) -> int:
    return int(row["call"].split(",")[0])
