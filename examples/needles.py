"""Needles in long sequences: which few of up to 8192 tokens decide, learned by a pyramid encoder.

A token has one of 64 kinds and one of 8 classes. The 16 tokens of kind 0, the needles, decide: one class occurs 6 times
among them, no other more than twice, and the network is to name that class. All other tokens have other kinds and
random classes: a mean over the sequence says next to nothing, and tokens at equal distances miss nearly all needles.

The first layer attends within blocks and sees all tokens; 256 go on to the second layer, 64 to the others.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples import baselines, common
from harness.command import run_command
from harness.journal import Rows
from harness.memory import peak_resident, reset_peak_resident
from knockout.nn import PyramidEncoder, Sharpen, TokenPool, evaluate_hard

KINDS, CLASSES, NEEDLES, MOST = 64, 8, 16, 6
DIM, HEADS, LAYERS = 32, 2, 4
LENGTHS = {0: 256, 1: 64}
BLOCK = 64
BATCH = 16
RATE = 3e-3
NO_POOLING = "no pooling"
POOLS = baselines.pools()


def draw(count: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences: tokens (count, n), each kind * CLASSES + class, and the class to be named (count,)."""
    kind = torch.randint(1, KINDS, (count, n), generator=generator)
    of = torch.randint(CLASSES, (count, n), generator=generator)
    label = torch.randint(CLASSES, (count,), generator=generator)
    # Each other class twice, in random order: from these, the remaining needles.
    others = (label[:, None] + 1 + torch.arange(CLASSES - 1)).repeat(1, 2) % CLASSES
    chosen = torch.rand(others.shape, generator=generator).argsort(dim=1)[:, : NEEDLES - MOST]
    classes = torch.cat([label[:, None].expand(-1, MOST), others.gather(1, chosen)], dim=1)
    place = torch.rand(count, n, generator=generator).topk(NEEDLES, dim=1).indices
    return kind.scatter(1, place, 0) * CLASSES + of.scatter(1, place, classes), label


class NeedleNet(nn.Module):
    """Tokens (batch, n) to logits (batch, CLASSES)."""

    def __init__(self, pool: Callable[..., TokenPool] | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(KINDS * CLASSES, DIM)
        layers = common.encoder_layers(DIM, HEADS, LAYERS)
        lengths = {} if pool is None else LENGTHS
        self.encoder = PyramidEncoder(layers, lengths, block={0: BLOCK}, pool=pool or TokenPool)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.encoder(self.embedding(tokens)).x)

    def logits(self, x: Tensor) -> Tensor:
        """Classify by the tokens that are left, (batch, length, DIM)."""
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def make(kind: str, seed: int) -> NeedleNet:
    """Make a network, with the same initial weights for every kind of pooling."""
    torch.manual_seed(seed)
    return NeedleNet(POOLS.get(kind))


def train(kind: str, lengths: Sequence[int], seed: int, steps: int, count: int) -> Rows:
    """Train one network on sequences of each length in turn, shortest first; test it on ``count`` of each length.

    Most steps are on the shortest sequences, where finding the needles is learned, a sixteenth as many on each other.
    """
    model = make(kind, seed)
    stages = [(n, steps if i == 0 else max(1, steps // 16)) for i, n in enumerate(lengths)]
    optimizer, rate = common.optimizer_for(model, RATE, sum(length for _, length in stages))
    boost = Sharpen(model, steps) if kind == "knockout" else None
    generator = torch.Generator().manual_seed(1000 + seed)
    rows: Rows = []
    for n, length in stages:
        model.train()
        for _ in range(length):
            tokens, label = draw(BATCH, n, generator)
            common.training_step(cross_entropy(model(tokens), label), optimizer, rate, boost)
        row: dict[str, Any] = {"kind": kind, "n": n, "seed": seed, **evaluate(model, n, count)}
        if kind == "knockout":
            with evaluate_hard(model):
                row["hard"] = evaluate(model, n, count)["accuracy"]
        rows.append(row)
    return rows


@torch.no_grad()
def evaluate(model: NeedleNet, n: int, count: int) -> dict[str, float]:
    """Measure the accuracy, and the share of the needles that are leaders after the last pool."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    right, found = 0, 0
    for _ in range(count // BATCH):
        tokens, label = draw(BATCH, n, generator)
        out = model.encoder(model.embedding(tokens))
        right += int((model.logits(out.x).argmax(dim=-1) == label).sum())
        leader = torch.where(out.leaders >= 0, tokens.gather(1, out.leaders.clamp(min=0)), -1)
        found += int((leader // CLASSES == 0).sum())
    return {"accuracy": right / count, "needles": found / (count * NEEDLES)}


def cost(kinds: Sequence[str], n: int, seconds: float) -> Rows:
    """Measure time and memory of each kind of network at one length."""
    taken = common.milliseconds(
        {kind: make(kind, 0) for kind in kinds}, *draw(4, n, torch.Generator().manual_seed(0)), seconds
    )
    used = memories(kinds, n)
    return [
        {"kind": kind, "n": n, "training": taken[kind][0], "inference": taken[kind][1], "memory": used[kind]}
        for kind in kinds
    ]


def memory(kind: str, n: int) -> float:
    """Measure the MiB that a training step on one sequence adds; must be called in a new process."""
    model = make(kind, 0)
    tokens, label = draw(1, NEEDLES, torch.Generator())
    cross_entropy(model(tokens), label).backward()  # one-time setup
    before = reset_peak_resident()
    tokens, label = draw(1, n, torch.Generator())
    cross_entropy(model(tokens), label).backward()
    return (peak_resident() - before) / 2**20


def memories(kinds: Sequence[str], n: int) -> dict[str, float]:
    """Measure the memory of each kind, each in a new process."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for kind in kinds:
        with ProcessPoolExecutor(1, context) as process:
            found[kind] = process.submit(memory, kind, n).result()
    return found


def draw_costs(path: Path, costs: Rows) -> None:
    """Draw time and memory over n."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    titles = {
        "training": "training, ms per sequence",
        "inference": "inference, ms per sequence",
        "memory": "memory, MiB",
    }
    for axis, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for kind in dict.fromkeys(row["kind"] for row in costs):
            rows = [row for row in costs if row["kind"] == kind]
            axis.plot([row["n"] for row in rows], [row[name] for row in rows], marker=".", label=kind)
        axis.set(yscale="log", xlabel="n", title=title)
        axis.set_xscale("log", base=2)
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train and time all networks, show the results."""
    options = common.training_parser("needles", __doc__)
    options.add_argument(
        "--steps",
        type=int,
        default=800,
        help="training steps on the shortest sequences; a sixteenth as many on each longer length (%(default)s)",
    )
    chosen = options.parse_args()
    steps, seeds, count, seconds, lengths = chosen.steps, chosen.seeds, 256, 10.0, [512, 1024, 2048, 4096, 8192]
    trained = lengths[::2]
    longest = 2048  # for training without pooling: with more, that would take longer than all the others
    if chosen.quick:
        steps, seeds, count, seconds, lengths, trained = 2, 1, BATCH, 0.1, [512], [300, 512]
    kinds = [NO_POOLING, *POOLS]
    arguments = {
        f"train {kind} {seed}": {
            "kind": kind, "seed": seed, "steps": steps, "count": count,
            "lengths": [n for n in trained if n <= longest] if kind == NO_POOLING else trained,
        }
        for seed in range(seeds)
        for kind in kinds
    }  # fmt: skip
    journal = common.measure_all(
        train, arguments, chosen.out, {"example": "needles", "steps": steps, "rate": RATE}, chosen.workers
    )
    rows = journal.of("train")
    table = []
    for n in trained:
        for kind in kinds:
            runs = [row for row in rows if (row["kind"], row["n"]) == (kind, n)]
            if runs:
                hard = [row["hard"] for row in runs if "hard" in row]
                found = [row["needles"] for row in runs] if kind != NO_POOLING else []
                accuracy = common.spread([row["accuracy"] for row in runs])
                table.append(
                    [str(n), kind, accuracy, common.spread(hard) if hard else "", common.spread(found) if found else ""]
                )
    columns = ["n", "pooling", "accuracy, %", "hard selection, %", "needles left, %"]
    common.show_table(f"Needles, {seeds} seeds; chance is 12.5 %", columns, table, chosen.out)
    compared = [NO_POOLING, "knockout"]
    costs = [row for n in lengths for row in cost(compared, n, seconds)]
    lines = [
        [str(row["n"]), row["kind"], *(f"{row[name]:.1f}" for name in ("training", "inference", "memory"))]
        for row in costs
    ]
    columns = [
        "n",
        "pooling",
        "training, ms per sequence",
        "inference, ms per sequence",
        "memory of a training step, MiB",
    ]
    common.show_table("Time and memory over n", columns, lines, chosen.out)
    draw_costs(chosen.out / "needles.png", costs)
    common.screen.print(f"time and memory over n: {chosen.out / 'needles.png'}")


if __name__ == "__main__":
    sys.exit(run_command("examples.needles", main))
