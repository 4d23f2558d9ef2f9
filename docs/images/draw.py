"""Draw the figures of the README, with ``python -m docs.images.draw`` from the root of the repository."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

import knockout
from evals.reproduce.claims import by_cell
from evals.reproduce.grid import CELLS
from evals.reproduce.published import published
from harness.journal import Journal
from knockout.notebook import to_html
from knockout.ops.reference.tournament import rounds_of

INK, BLUE, ORANGE, GREY = "#1b1b2f", "#1f5fbf", "#d9622b", "#8a8f98"


def weights(axes: list[Axes]) -> None:
    """Draw the weights of 24 candidates in 4 slots, for three boosts."""
    scores = torch.rand(24, generator=torch.Generator().manual_seed(3))
    axes[0].bar(range(24), scores, color=GREY, width=0.8)
    best = torch.topk(scores, 4).indices
    axes[0].bar(best, scores[best], color=BLUE, width=0.8)
    axes[0].set_ylabel("score", rotation=0, ha="right", va="center")
    axes[0].set_title("24 candidates, 4 slots: the weight of each candidate in each slot", loc="left")
    for axis, boost in zip(axes[1:], (0.5, 4, 16), strict=True):
        picked = knockout.select(scores, 4, boost, order="position")
        axis.imshow(picked.weights(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axis.set_ylabel(f"boost {boost}", rotation=0, ha="right", va="center")
        axis.set_xticks([x - 0.5 for x in range(24)], minor=True)
        axis.set_yticks([y - 0.5 for y in range(4)], minor=True)
        axis.grid(which="minor", color="white", linewidth=1)
        axis.tick_params(which="minor", length=0)
    for axis in axes:
        axis.set_xlim(-0.5, 23.5)
        axis.set_xticks([])
        axis.set_yticks([])
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    axes[-1].set_xlabel("candidates")


def rounds(axis: Axes) -> None:
    """Draw nCCS at k = 2 over n, published and ours."""
    theirs, k = published(), 2
    sizes = [n for n, size in CELLS if size == k]
    cells = Journal.read(Path(__file__).parent.parent / "reproduction" / "results.jsonl").of("cell")
    sharp, default = (by_cell(cells, method, "nccs") for method in ("Relative(16)", "Relative(4)"))
    x = [rounds_of(n, k) for n in sizes]
    lines = [
        ("here, Relative(16)", [sharp[n, k] for n in sizes], BLUE, "-", "s"),
        ("here, Relative(4)", [default[n, k] for n in sizes], BLUE, "-", "o"),
        ("published: halving, Power(20)", [theirs["halving", n, k].nccs for n in sizes], ORANGE, "--", "^"),
        ("published: iterative softmax", [theirs["iterative", n, k].nccs for n in sizes], GREY, ":", "x"),
    ]
    for label, y, color, style, marker in lines:
        axis.plot(x, y, style, color=color, marker=marker, markersize=5, label=label)
    axis.set_ylim(0, 1.03)
    axis.set_xticks(x, [f"{rounds_of(n, k)}\n{n}" if i % 2 == 0 else "" for i, n in enumerate(sizes)])
    axis.set_xlabel("rounds, and n, at k = 2")
    axis.set_title("nCCS: likeness to the true top k", loc="left")
    axis.legend(frameon=False, loc=(0.03, 0.36))
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def bracket() -> None:
    """Draw the bracket of a tournament of 16 candidates for 4 slots."""
    scores = torch.rand(16, generator=torch.Generator().manual_seed(4))
    axes = knockout.plot.bracket(knockout.select(scores, k=4, boost=1.0), names="ABCDEFGHIJKLMNOP")
    axes.figure.savefig(Path(__file__).parent / "bracket.png", dpi=110)  # type: ignore[union-attr]


def notebook() -> None:
    """Save what a notebook shows of a selection of 4 of 24 candidates, on white."""
    html = to_html(knockout.select(torch.rand(24, generator=torch.Generator().manual_seed(3)), k=4))
    assert html is not None
    picture = html[html.index("<svg ") : html.index("</svg>")] + "</svg>\n"
    # By itself, a picture needs its namespace, a font and a background.
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" style="background:white;'
    (Path(__file__).parent / "notebook.svg").write_text(picture.replace('style="', style, 1))


def main() -> None:
    """Draw and save all figures."""
    bracket()
    notebook()
    plt.rcParams.update({"font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.titlesize": 10})
    figure = plt.figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.15, 1])  # type: ignore[misc]
    weights(list(left.subplots(4, 1, height_ratios=[1.2, 1, 1, 1])))
    rounds(right.subplots())
    figure.savefig(Path(__file__).parent / "knockout.png", dpi=160)


if __name__ == "__main__":
    main()
