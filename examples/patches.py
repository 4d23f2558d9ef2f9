"""Which patches of an image to look at: a small vision transformer on Fashion-MNIST that keeps 49 or 12 of 196 tokens.

A token stands for 2 x 2 pixels, and covers one more on each side. After the first of six encoder layers the tokens are
pooled, in one of several ways; the other layers see the tokens that are left. Everything else is the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from examples import baselines, common
from harness import fashion_mnist
from harness.command import UsageError, run_command
from harness.journal import Rows
from knockout.nn import PyramidEncoder, Sharpen, TokenPool, evaluate_hard

SIDE = 14
TOKENS = SIDE * SIDE
DIM, HEADS, LAYERS = 48, 4, 6
BATCH = 32
RATE = 1e-3
NO_POOLING = "no pooling"


def cells(k: int) -> Tensor:
    """Compute the weights (k, 196) of the means over k cells of the image, as square as possible."""
    height = max(side for side in range(1, math.isqrt(k) + 1) if k % side == 0)
    each = torch.eye(TOKENS).view(TOKENS, SIDE, SIDE)
    return adaptive_avg_pool2d(each, (height, k // height)).flatten(1).T


POOLS = baselines.pools(cells)


class PatchNet(nn.Module):
    """Images (batch, 28, 28) to logits (batch, 10), with a pool that leaves k tokens; without one for k = 196."""

    def __init__(self, pool: Callable[..., TokenPool], k: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, DIM, 4, stride=2, padding=1)
        self.position = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        layers = common.encoder_layers(DIM, HEADS, LAYERS)
        self.encoder = PyramidEncoder(layers, {0: k} if k < TOKENS else {}, pool=pool)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 10)

    def tokens(self, images: Tensor) -> Tensor:
        """Compute the input of the encoder (batch, 196, DIM)."""
        made: Tensor = self.stem(images.unsqueeze(1))
        return made.flatten(2).transpose(1, 2) + self.position

    def forward(self, images: Tensor) -> Tensor:
        left = self.encoder(self.tokens(images)).x
        logits: Tensor = self.head(self.norm(left).mean(dim=1))
        return logits


def make(kind: str, k: int, seed: int) -> PatchNet:
    """Make a network, with the same initial weights for every kind of pooling."""
    torch.manual_seed(seed)
    return PatchNet(POOLS.get(kind, TokenPool), k)


def train(kind: str, k: int, seed: int, images: int, tested: int, data: Path, keep: Path) -> Rows:
    """Train one network on so many images, and test it."""
    training, test = fashion_mnist.load(data)
    test = fashion_mnist.Split(test.images[:tested], test.labels[:tested])
    model = make(kind, k, seed)
    steps = max(1, images // BATCH)
    optimizer, rate = common.optimizer_for(model, RATE, steps)
    # Sharp after half of the steps: the selection is settled while the learning rate is still high enough to use it.
    boost = Sharpen(model, max(1, steps // 2)) if kind == "knockout" else None
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat(
        [torch.randperm(len(training.images), generator=generator) for _ in range(1 + images // len(training.images))]
    )
    for step in range(steps):
        batch = order[step * BATCH : (step + 1) * BATCH]
        common.training_step(
            cross_entropy(model(training.images[batch]), training.labels[batch]), optimizer, rate, boost
        )
    if kind == "knockout":
        torch.save(model.state_dict(), keep / f"{kind} {k} {seed}.pt")
    row: dict[str, Any] = {"kind": kind, "k": k, "seed": seed, "accuracy": accuracy(model, test)}
    if kind == "knockout":
        with evaluate_hard(model):
            row["hard"] = accuracy(model, test)
    return [row]


@torch.no_grad()
def accuracy(model: PatchNet, split: fashion_mnist.Split) -> float:
    """Measure the share of images that are classified correctly."""
    model.eval()
    right = 0
    for images, labels in zip(split.images.split(250), split.labels.split(250), strict=True):
        right += int((model(images).argmax(dim=-1) == labels).sum())
    return right / len(split.images)


def draw_kept_patches(path: Path, models: dict[int, PatchNet], split: fashion_mnist.Split, count: int = 10) -> None:
    """Draw what is kept of some test images, one of each class: the mass of each patch."""
    from matplotlib.figure import Figure

    chosen = torch.stack(
        [(split.labels == label).nonzero()[0, 0] for label in range(10) if (split.labels == label).any()]
    )[:count]
    images = split.images[chosen]
    figure = Figure(figsize=(1.3 * len(chosen), 1.4 * (1 + len(models))), layout="constrained")
    axes = figure.subplots(1 + len(models), len(chosen), squeeze=False)
    rows: list[tuple[str, Tensor | None]] = [("image", None)]
    for k, model in models.items():
        with torch.no_grad():
            (level,) = model.eval().encoder(model.tokens(images)).levels
        rows.append((f"{k} of {TOKENS}", level.selection.mass().view(-1, SIDE, SIDE)))
    for line, (title, mass) in zip(axes, rows, strict=True):
        for column, axis in enumerate(line):
            axis.imshow(images[column], cmap="gray", extent=(0, SIDE, SIDE, 0))
            if mass is not None:
                cover = torch.ones(SIDE, SIDE, 4) * torch.tensor([1.0, 0.85, 0.6, 0.0])
                cover[..., 3] = 0.85 * (1.0 - mass[column].clamp(0.0, 1.0))
                axis.imshow(cover.numpy(), extent=(0, SIDE, SIDE, 0), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(title)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train and time all networks, show the results."""
    options = common.training_parser("patches", __doc__)
    options.add_argument(
        "--data", type=Path, default=fashion_mnist.DEBIAN, metavar="DIR", help="folder of Fashion-MNIST's four files"
    )
    options.add_argument("--images", type=int, default=40000, help="training images of each network (%(default)s)")
    chosen = options.parse_args()
    try:
        _, test = fashion_mnist.load(chosen.data)  # fail before anything is written
    except (OSError, ValueError) as error:
        raise UsageError(f"--data: {error}") from None
    images, tested, seeds, seconds = chosen.images, len(test.images), chosen.seeds, 20.0
    lengths = [49, 12]
    if chosen.quick:
        images, tested, seeds, seconds, lengths = BATCH, 50, 1, 0.1, [12]
    kinds = [(NO_POOLING, TOKENS), *((kind, k) for k in lengths for kind in POOLS)]
    arguments = {
        f"train {kind} {k} {seed}": {
            "kind": kind, "k": k, "seed": seed, "images": images, "tested": tested,
            "data": chosen.data, "keep": chosen.out,
        }
        for seed in range(seeds)
        for kind, k in kinds
    }  # fmt: skip
    settings = {"example": "patches", "images": images, "rate": RATE}
    journal = common.measure_all(train, arguments, chosen.out, settings, chosen.workers)
    rows = journal.of("train")
    batch = torch.randn(BATCH, 28, 28), torch.randint(10, (BATCH,))
    taken = common.milliseconds({f"{kind} {k}": make(kind, k, 0) for kind, k in kinds}, *batch, seconds)
    _, unpooled = taken[f"{NO_POOLING} {TOKENS}"]
    table = []
    for kind, k in kinds:
        runs = [row for row in rows if (row["kind"], row["k"]) == (kind, k)]
        hard = [row["hard"] for row in runs if "hard" in row]
        learning, inference = taken[f"{kind} {k}"]
        table.append([
            kind, str(k), common.spread([row["accuracy"] for row in runs], 2), common.spread(hard, 2) if hard else "",
            f"{learning:.2f}", f"{inference:.2f}", f"{unpooled / inference:.1f}",
        ])  # fmt: skip
    columns = [
        "pooling",
        "tokens",
        "test accuracy, %",
        "hard selection, %",
        "training, ms per image",
        "inference, ms per image",
        "faster",
    ]
    common.show_table(f"Fashion-MNIST, {images} images, {seeds} seeds", columns, table, chosen.out)
    models = {}
    for k in lengths:
        models[k] = make("knockout", k, 0)
        models[k].load_state_dict(torch.load(chosen.out / f"knockout {k} 0.pt", weights_only=True))
    draw_kept_patches(chosen.out / "patches.png", models, test)
    common.screen.print(f"the patches that were kept: {chosen.out / 'patches.png'}")


if __name__ == "__main__":
    sys.exit(run_command("examples.patches", main))
