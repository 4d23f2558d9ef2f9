"""Plots of a selection from a few candidates: the tournament as a bracket, the weights as a matrix, both on a web page.

``bracket`` and ``weights`` need matplotlib, ``pip install 'knockout-topk[plot]'``. They draw into ``ax`` or a new
figure, and return the axes:

>>> import torch, knockout
>>> picked = knockout.select(torch.tensor([0.1, 0.9, 0.7, 0.3, 0.8]), k=2)
>>> knockout.plot.bracket(picked, names="abcde").figure.savefig("bracket.png")  # doctest: +SKIP
>>> knockout.plot.weights(picked, names="abcde").get_ylabel()
'slots'

``explore`` needs nothing. It writes a page where the scores can be dragged:

>>> knockout.plot.explore(picked, "explorer.html", names="abcde")  # doctest: +SKIP
PosixPath('explorer.html')
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

from torch import Tensor

from knockout.boost import Boost
from knockout.candidates import candidates
from knockout.explorer import MOST_ON_PAGE, page, state_of
from knockout.ops.reference.tournament import enter, play, played_rounds
from knockout.quota import Quota
from knockout.selection import Selection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bracket", "explore", "weights"]

MOST = 64  # candidates that a plot has room for
INK, PALE = "#16325c", "#c3c8d1"

Row = SupportsIndex | tuple[SupportsIndex, ...]  # the index of a row in the batch


def bracket(selection: Selection, row: Row = 0, names: Sequence[object] | None = None, ax: Axes | None = None) -> Axes:
    """Plot the tournament, from the candidates on the left to the slots on the right.

    Two lines meet where two candidates are paired; the width of each is its share in the blend, which is written beside
    it unless it is 0 or 1. On the right are the candidates blended in each slot, with their weights.

    Args:
        selection: made by ``knockout.select`` from at most 64 candidates.
        row: the row of the batch, an index or a tuple of indices.
        names: of the candidates; by default their indices.
        ax: axes to draw into; by default those of a new figure.
    """
    labels = _labels(_checked_names(selection, names))
    scores, mask, boost = _origin(selection, "a bracket")
    row = _index(row, selection)
    scores, mask = scores[row], None if mask is None else mask[row]
    shown = _weights(selection, row)
    seeds, levels = _levels(scores, mask, int(selection.mask[row].sum()), boost)
    # The last field is in the order of scores, the slots perhaps in that of positions: a slot is found by its leader.
    last = {seeds[next(_leaves(levels, len(levels) - 1, node.place))]: node.place for node in levels[-1]}
    leaders = [leader for leader in selection.indices[row].tolist() if leader >= 0]
    if set(leaders) != set(last):
        raise ValueError("selection must be of scores that have not changed since it was made: select again")
    slots = [last[leader] for leader in leaders]

    ax = ax or _new_axes(width=2.2 + 1.4 * len(levels), height=0.8 + 0.24 * len(seeds))
    heights: dict[tuple[int, int], float] = {}
    for slot, place in enumerate(slots):
        for leaf in _leaves(levels, len(levels) - 1, place):
            heights[0, leaf] = len(heights) + slot * 0.7
            text = f"{labels[seeds[leaf]]}  {float(scores[seeds[leaf]]):.3g}"
            ax.text(-0.08, heights[0, leaf], text, ha="right", va="center", fontsize=8)
    for level in range(1, len(levels)):
        for node in levels[level]:
            _draw_pair(ax, level, node, heights)
    for slot, place in enumerate(slots):
        members = [(float(weight), label) for weight, label in zip(shown[slot], labels, strict=True) if weight > 0]
        text = " + ".join(f"{weight:.2f} {label}" for weight, label in sorted(members, key=lambda m: -m[0])[:4])
        text = " " + members[0][1] if len(members) == 1 else " " + text + (" + …" if len(members) > 4 else "")
        ax.text(len(levels) - 1 + 0.02, heights[len(levels) - 1, place], text, ha="left", va="center", fontsize=8)
    ax.set_xticks(range(len(levels)), ["candidates", *(f"round {r}" for r in range(1, len(levels)))], fontsize=8)
    ax.set_xlim(-0.7, len(levels) + 0.4)
    ax.set_yticks([])
    ax.set_ylim(max(heights.values(), default=0.0) + 0.9, -0.7)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    return ax


def weights(selection: Selection, row: Row = 0, names: Sequence[object] | None = None, ax: Axes | None = None) -> Axes:
    """Plot the weights as a matrix, with a row for each slot and a column for each candidate; darker is more.

    The arguments are those of ``bracket``; the selection may come from any method.
    """
    labels = _labels(_checked_names(selection, names))
    row = _index(row, selection)
    shown = _weights(selection, row)
    k, n = shown.shape
    ax = ax or _new_axes(width=1.5 + 0.34 * n, height=1.0 + 0.34 * k)
    ax.imshow(shown.cpu().numpy(), cmap="Blues", vmin=0, vmax=1.15, aspect="auto")
    for slot in range(k):
        for candidate in range(n):
            weight = float(shown[slot, candidate])
            if weight > 0:
                text, color = "1" if weight == 1 else f"{weight:.2f}".lstrip("0"), "white" if weight > 0.6 else INK
                ax.text(candidate, slot, text, ha="center", va="center", fontsize=6, color=color)
    ax.set_xticks(range(n), labels, fontsize=7, rotation=90 if max(map(len, labels)) > 3 else 0)
    ax.set_yticks(range(k), [str(slot) for slot in range(k)], fontsize=7)
    ax.set_xticks([x - 0.5 for x in range(n + 1)], minor=True)
    ax.set_yticks([y - 0.5 for y in range(k + 1)], minor=True)
    ax.grid(which="minor", color="white", linewidth=1)
    ax.tick_params(which="both", length=0)
    ax.set_xlabel("candidates", fontsize=8)
    ax.set_ylabel("slots", fontsize=8)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def explore(
    selection: Selection,
    path: str | PathLike[str] = "explorer.html",
    row: Row = 0,
    names: Sequence[object] | None = None,
) -> Path:
    """Write a web page to play with the tournament: drag its scores, change k and the boost, see weights and gradients.

    The page opens with the scores, mask, k, boost, order and ``hard`` of the selection. It is one file, which needs
    neither a server nor a network. It computes in float64, from the shortest decimals that are the scores in their
    dtype.

    Args:
        selection: made by ``knockout.select`` from at most 32 candidates.
        path: of the file; one that is there is replaced.
        row, names: as of ``bracket``.

    Returns:
        The path; ``webbrowser.open(path.absolute().as_uri())`` opens it.
    """
    labels = _checked_names(selection, names, MOST_ON_PAGE)
    scores, mask, boost = _origin(selection, "the page")
    row = _index(row, selection)
    _weights(selection, row)  # refuses invalid rows
    state = state_of(
        scores[row],
        None if mask is None else mask[row],
        boost,
        selection[row] if row else selection,
        None if names is None else labels,
    )
    path = Path(path)
    path.write_text(page(state), encoding="utf-8")
    return path


class Node(NamedTuple):
    """A place in the field after a round, and the pair that it comes from."""

    place: int
    better: int  # the place of the better candidate before the round
    worse: int | None  # that of the worse one; None for a bye
    share: float  # of the better one in the blend


Levels = list[list[Node]]


def _levels(scores: Tensor, mask: Tensor | None, k: int, boost: Boost) -> tuple[list[int], Levels]:
    """The candidate at each place of the first field, and the nodes after every round; active candidates only."""
    active = candidates(scores, mask).active.nonzero().flatten()
    quota, n = Quota(k), len(active)
    field = enter(candidates(scores[active], None), quota)
    folds, _ = play(
        field, boost.start(field.score, field.active, played_rounds(field.active, quota)), quota.rounds(n), boost
    )
    seeds = active[field.leader[:n]].tolist()
    levels: Levels = [[Node(place, place, None, 1.0) for place in range(n)]]
    for fold in folds:
        half = len(fold.share)
        occupied = {node.place for node in levels[-1]}
        ranking = list(range(half)) if fold.ranking is None else fold.ranking.tolist()
        levels.append(
            [
                Node(
                    place,
                    better=pair,
                    worse=2 * half - 1 - pair if 2 * half - 1 - pair in occupied else None,
                    share=float(fold.share[pair]),
                )
                for place, pair in enumerate(ranking)
                if pair in occupied
            ]
        )
    return seeds, levels


def _leaves(levels: Levels, level: int, place: int) -> Iterator[int]:
    """The places in the first field that lead to a place of a later one, in the order of the bracket."""
    if level == 0:
        yield place
        return
    node = next(node for node in levels[level] if node.place == place)
    yield from _leaves(levels, level - 1, node.better)
    if node.worse is not None:
        yield from _leaves(levels, level - 1, node.worse)


def _draw_pair(ax: Axes, level: int, node: Node, heights: dict[tuple[int, int], float]) -> None:
    top = heights[level - 1, node.better]
    bottom = top if node.worse is None else heights[level - 1, node.worse]
    middle = (top + bottom) / 2
    heights[level, node.place] = middle
    for at, share in ((top, node.share), (bottom, 1 - node.share)):
        if node.worse is None and share == 0:
            continue
        ax.plot(
            [level - 1, level - 0.5, level - 0.5, level],
            [at, at, middle, middle],
            color=INK if share > 0 else PALE,
            linewidth=0.6 + 2.4 * share,
            linestyle="-" if share > 0 else ":",
            solid_capstyle="butt",
            zorder=1 + share,
        )
        if 0 < share < 1:
            ax.text(level - 0.54, at - 0.05, f"{share:.2f}".lstrip("0"), ha="right", va="bottom", fontsize=6, color=INK)


def _weights(selection: Selection, row: tuple[int, ...]) -> Tensor:
    """The weights (k, n) of one row."""
    shown = selection.weights()[row].detach().float()
    if not bool(selection._plan.valid[row].all()):
        raise ValueError(f"row must be one with finite scores: row {row} has a NaN or +inf among them")
    return shown


def _checked_names(selection: Selection, names: Sequence[object] | None, most: int = MOST) -> list[str]:
    """Check the selection and the names of its candidates, and return these as texts."""
    if not isinstance(selection, Selection):
        raise TypeError(f"selection must be a knockout.Selection; got {type(selection).__name__}")
    if selection.n > most:
        raise ValueError(f"selection must be from at most {most} candidates, for a picture; got n = {selection.n}")
    names = range(selection.n) if names is None else names
    if len(names) != selection.n:
        raise ValueError(f"names must be as many as candidates, n = {selection.n}; got {len(names)}")
    return [str(name) for name in names]


def _labels(names: list[str]) -> list[str]:
    return [name.replace("$", r"\$") for name in names]  # matplotlib would read $...$ as a formula


def _origin(selection: Selection, what: str) -> tuple[Tensor, Tensor | None, Boost]:
    """The scores and the mask that were selected from, for all rows, and the boost."""
    origin = selection._origin
    if origin is None:
        raise ValueError(
            f"selection must come straight from knockout.select: {what} is played again from its scores, which other "
            "methods, torch.func and torch.compile do not keep"
        )
    batch = selection.indices.shape[:-1]
    scores = origin.scores.detach().expand(*batch, -1)
    return scores, None if origin.mask is None else origin.mask.expand(*batch, -1), origin.boost


def _index(row: Row, selection: Selection) -> tuple[int, ...]:
    batch = selection.indices.shape[:-1]
    if not batch and row == 0:
        return ()
    try:
        index = tuple(map(operator.index, row)) if isinstance(row, Sequence) else (operator.index(row),)
    except TypeError:
        raise TypeError(
            f"row must be an index into the batch {tuple(batch)}, or a tuple of them; got {row!r}"
        ) from None
    if len(index) != len(batch) or not all(-size <= i < size for i, size in zip(index, batch, strict=True)):
        raise ValueError(f"row must be an index into the batch {tuple(batch)}; got {row!r}")
    return index


def _new_axes(width: float, height: float) -> Axes:
    try:
        # Imported only here: with axes passed in, neither a display nor the choice of a backend is needed.
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("knockout.plot needs matplotlib: pip install 'knockout-topk[plot]'") from error
    return plt.figure(figsize=(width, height), layout="constrained").add_subplot()
