"""How a selection shows itself in a notebook: the weights of a few slots as a heat map, in HTML of bounded size.

Without scripts, style sheets or anything from outside; in the colors of the notebook's theme, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from knockout.dtypes import computing_dtype
from knockout.plan import DensePlan, SparsePlan
from knockout.selection import Selection, _flatten, _unflatten

if TYPE_CHECKING:
    from knockout.nn.pool import Pooled

ROWS, SLOTS, CANDIDATES = 2, 16, 64  # at most so many are shown
BLUE = "#2e77cf"  # black and white text are equally readable on it
SHADES = 12
HEIGHT, TOP, GAP = 18, 20, 6  # of a row of cells, of the line above them, before the mass; in pixels


def to_html(result: Selection | Pooled) -> str | None:
    """A selection, or the one of a ``TokenPool``, as HTML; None if it cannot be shown, and then its repr is."""
    # Looking at a result must never raise, whatever is wrong with it. Under vmap and on the meta device, the first
    # number that is read does.
    try:
        if isinstance(result, Selection):
            return _to_html(result, repr(result))
        # Numbered as tokens: those that are always kept come before the slots and candidates of the selection.
        kept = result.leaders.shape[-1] - result.selection.k
        return _to_html(result.selection, f"Pooled(x={tuple(result.x.shape)}, selection={result.selection})", kept)
    except Exception:
        return None


@torch.no_grad()
def _to_html(selection: Selection, title: str, first: int = 0) -> str | None:
    plan = selection._plan
    if not isinstance(plan, (SparsePlan, DensePlan)):
        return None  # a part of a distributed selection
    batch = tuple(selection.indices.shape[:-1])
    rows = math.prod(batch)
    shown = [_unraveled(row, batch) for row in range(min(rows, ROWS))]
    parts = [_div(f"<code>{escape(title)}</code>")]
    for index in shown:
        leaves, context = _flatten(selection)
        view = _View.of(_unflatten((leaf[index] for leaf in leaves), context), first)
        name = f"Row {', '.join(map(str, index))} of the batch. " if batch else ""
        parts += [_svg(view, name), _div(name + view.caption())] if view.columns else [_div(name + view.caption())]
    if rows > len(shown):
        parts.append(_div(f"Not shown: {rows - len(shown):,} of {rows:,} rows."))
    if not rows:
        parts.append(_div("The batch has no rows."))
    return f'<div style="font-family:sans-serif">{"".join(parts)}</div>'


class _View(NamedTuple):
    """What is shown of one row, as numbers of Python."""

    first: int
    n: int
    k: int
    valid: bool
    leaders: list[int]  # of the slots that are shown; -1 for an empty slot
    perplexity: list[float]
    support: list[int]  # how many candidates have weight in each slot
    columns: list[int]  # the candidates that are shown
    weights: list[list[float]]  # of the slots; one number per column and, if there are others, their sum
    mass: list[float]  # the same for the mass; empty if it would take too long
    others: int  # how many candidates have weight in these slots, but no column

    @classmethod
    def of(cls, row: Selection, first: int) -> _View:
        """The view of a selection without batch dimensions."""
        plan, leaders = row._checked_plan(), row.indices[:SLOTS].tolist()
        if not bool(plan.valid):
            return cls(first, row.n, row.k, False, [], [], [], [], [], [], 0)
        few = _first_slots(row)
        total = torch.zeros(row.n, dtype=few.dtype, device=row.indices.device)
        support = []
        for weight in _slot_weights(few):
            total += weight
            support.append(int((weight != 0).sum()))
        total[[leader for leader in leaders if leader >= 0]] = torch.inf  # these have a column in any case
        carriers = int((total > 0).sum())
        if not carriers:
            columns = torch.arange(0)
        elif row.n <= CANDIDATES:
            columns = torch.arange(row.n, device=total.device)
        else:
            columns = total.topk(min(carriers, CANDIDATES)).indices.sort().values
        others = max(carriers - len(columns), 0)

        def cells(weight: Tensor) -> list[float]:
            rest = [float(weight.index_fill(0, columns, 0.0).sum())] if others else []
            return weight[columns].tolist() + rest

        light = not isinstance(plan, DensePlan) or row.k * row.n <= plan.CHUNK
        return cls(
            first,
            row.n,
            row.k,
            True,
            leaders,
            few.perplexity().tolist(),
            support,
            columns.tolist(),
            [cells(weight) for weight in _slot_weights(few)] if len(columns) else [],
            cells(plan.mass()) if light and len(columns) else [],
            others,
        )

    def caption(self) -> str:
        """What is shown, and what is not."""
        if not self.valid:
            return "A score is NaN or infinite: all results of this row are NaN."
        slots = f"{len(self.leaders)} of {self.k:,} slots" if len(self.leaders) < self.k else "All slots"
        if not self.columns:
            return f"{slots}: empty. No candidate is active."
        if self.n == len(self.columns):
            candidates = "all candidates"
        elif self.others:
            candidates = (
                f"{len(self.columns)} of {self.n:,} candidates, the leaders and those with most weight in these slots. "
                f"“others”: the sum of all others, {self.others:,} of which have weight in these slots"
            )
        else:
            candidates = f"{len(self.columns)} of {self.n:,} candidates, those with weight in these slots"
        mass = "" if self.mass else " The mass is not shown: it would take long."
        top = f"{self.highest():.3g}"
        return (
            f"{slots}, {candidates}. The stronger the color, the more weight, up to {top}; leaders have a frame.{mass}"
        )

    def highest(self) -> float:
        """The weight of the full color: 1, unless there are larger ones."""
        return max([1.0, *(weight for row in self.weights for weight in row)])

    def describe(self, slot: int) -> str:
        """A slot in words."""
        if self.leaders[slot] < 0:
            return f"slot {slot + self.first}: empty"
        shares = sorted(zip(self.weights[slot], self.columns, strict=False), reverse=True)[:5]
        most = ", ".join(f"{weight:.3g} of {candidate + self.first}" for weight, candidate in shares if weight)
        return f"slot {slot + self.first}: {most}; {self.support[slot]:,} candidates with weight"


def _unraveled(row: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(batch):
        row, last = divmod(row, size)
        index.append(last)
    return tuple(reversed(index))


def _first_slots(row: Selection) -> Selection:
    """The first slots of a selection, in the precision in which it is computed."""
    plan = row._plan
    if isinstance(plan, DensePlan):
        plan = replace(plan, k=min(row.k, SLOTS))
    elif isinstance(plan, SparsePlan):
        plan = _cut(plan, 0, SLOTS)
    return Selection(plan, row.indices[:SLOTS], row.mask[:SLOTS], computing_dtype(row.dtype))


def _slot_weights(row: Selection) -> Iterator[Tensor]:
    """The weights (n) of slot after slot: those of all slots may not fit in memory."""
    plan = row._plan
    for slot in range(row.k):
        if isinstance(plan, DensePlan):
            yield plan.slot_weights(slot, slot + 1)[0]
        elif isinstance(plan, SparsePlan):
            yield _cut(plan, slot, slot + 1).weights()[0]


def _cut(plan: SparsePlan, start: int, stop: int) -> SparsePlan:
    """The slots from start to stop of a plan without batch dimensions."""
    member, weight, score = (part[start:stop] for part in (plan.member, plan.weight, plan.score))
    return replace(plan, member=member, weight=weight, score=score)


def _svg(view: _View, name: str) -> str:
    count = len(view.columns) + bool(view.others)
    width = 34 if count <= 17 else 17 if count <= 33 else 10
    names = [str(candidate + view.first) for candidate in view.columns] + ["others"] * bool(view.others)
    leaders = [str(leader + view.first) if leader >= 0 else "-" for leader in view.leaders]
    at = {candidate: column for column, candidate in enumerate(view.columns)}
    framed = [(at[leader], slot) for slot, leader in enumerate(view.leaders) if leader >= 0]
    share = {slot: _short(view.weights[slot][column]) for column, slot in framed}

    leader_end = 46 + max(34, 7 * max(map(len, leaders)))
    left = leader_end + 54
    right = left + count * width
    mass = TOP + len(leaders) * HEIGHT + GAP
    foot = mass + HEIGHT if view.mass else mass - GAP
    longest = max(map(len, names))
    upright = longest * 7 <= width
    bottom = foot + (18 if upright else 10 + 6 * longest)

    heads = ((32, "slot"), (leader_end, "leader"), (left - 8, "weight"), (right + 70, "perplexity"))
    parts = [_text(x, 13, head) for x, head in heads]
    for slot, leader in enumerate(leaders):
        y = TOP + slot * HEIGHT
        spread = f"{view.perplexity[slot]:,.2f}" if slot in share else "empty"
        texts = ((32, slot + view.first), (leader_end, leader), (left - 8, share.get(slot, "")), (right + 70, spread))
        parts += [
            f"<g><title>{escape(view.describe(slot))}</title>",
            f'<rect y="{y}" width="{right + 70}" height="{HEIGHT}" fill="none" pointer-events="all"/>',
            *(_text(x, y + 13, text) for x, text in texts),
            "</g>",
        ]
    parts.append(_cells(view.weights, left, TOP, width, view.highest(), framed))
    if view.mass:
        parts += [_text(left - 8, mass + 13, "mass"), _cells([view.mass], left, mass, width, view.highest())]
    if upright:
        labels = (_text((x + 0.5) * width, 13, label) for x, label in enumerate(names))
        parts.append(f'<g transform="translate({left} {foot})" text-anchor="middle">{"".join(labels)}</g>')
    else:
        labels = (_text(-4, (x + 0.5) * width + 3, label) for x, label in enumerate(names))
        parts.append(f'<g transform="translate({left} {foot}) rotate(-90)" font-size="9">{"".join(labels)}</g>')
    shown = ", ".join(leader for leader in leaders if leader != "-")
    label = escape(
        f"{name}Weights of {len(leaders)} slots and {len(view.columns)} candidates. Leaders: {shown or 'none'}."
    )
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {right + 78} {bottom}" width="{right + 78}" '
        'style="max-width:100%;height:auto;display:block" fill="currentColor" text-anchor="end" font-size="11">'
        f"{''.join(parts)}</svg>"
    )


def _cells(
    weights: list[list[float]], left: int, top: int, width: int, highest: float, framed: Iterable[tuple[int, int]] = ()
) -> str:
    """A heat map, in a grid: a path for each shade, and numbers where they fit."""
    shades: dict[int, list[str]] = {}
    texts = []
    for y, row in enumerate(weights):
        for x, weight in enumerate(row):
            if weight == 0:
                continue
            # The square root, so that a small weight can be seen.
            shade = math.ceil(SHADES * math.sqrt(min(max(weight / highest, 0.0), 1.0)))
            shades.setdefault(max(shade, 1), []).append(f"M{x} {y}h1")
            if width >= 30:
                texts.append(_text((x + 0.5) * width, y * HEIGHT + 13, _short(weight)))
    columns, rows = len(weights[0]), len(weights)
    grid = "".join(f"M0 {y}h{columns}" for y in range(rows + 1)) + "".join(f"M{x} 0v{rows}" for x in range(columns + 1))
    frames = "".join(f"M{x} {y}h1v1h-1z" for x, y in framed)
    line = '<path fill="none" stroke="currentColor" vector-effect="non-scaling-stroke"'
    paths = "".join(
        f'<path stroke-opacity="{shade / SHADES:.2f}" d="{"".join(path)}"/>' for shade, path in sorted(shades.items())
    )
    return (
        f'<g transform="translate({left} {top})"><g transform="scale({width} {HEIGHT})">'
        f'<g transform="translate(0 .5)" stroke="{BLUE}">{paths}</g>'  # lines along the middle, as wide as a row
        f'{line} stroke-opacity=".15" d="{grid}"/>{line} stroke-width="1.5" d="{frames}"/></g>'
        f'<g text-anchor="middle" font-size="10">{"".join(texts)}</g></g>'
    )


def _short(weight: float) -> str:
    """A weight in four characters or a few more: 1 only for exactly 1."""
    return f"{weight:g}" if weight in (0, 1) else f"{weight:.2f}".removeprefix("0") if weight < 100 else f"{weight:.0e}"


def _text(x: float, y: float, text: object) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(str(text))}</text>'


def _div(content: str) -> str:
    return f'<div style="font-size:12px;margin:4px 0;max-width:64em">{content}</div>'
