"""Token pooling: a scorer rates the tokens of a sequence, the operator passes on the best."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from knockout.boost import Boost
from knockout.checks import check_expands, check_fraction, check_tokens, check_unpool, check_whole
from knockout.counts import check_counts
from knockout.dtypes import computing_dtype, full_precision
from knockout.functional import Order
from knockout.nn.output import Output, check_output, choose_output
from knockout.nn.topk import TopK
from knockout.results import refuse_as_tensor
from knockout.selection import Selection
from knockout.torch_private import register_namedtuple
from knockout.tracing import NoTorchScript


class Pooled(NamedTuple):
    """The result of a ``TokenPool``: k tokens, in the order of their leaders."""

    x: Tensor  # (..., k, dim); 0 in an empty slot
    mask: Tensor  # (..., k) bool: False for an empty slot
    positions: Tensor  # (..., k) the weighted mean position of each slot's tokens, differentiable; 0 in an empty slot
    leaders: Tensor  # (..., k) int64: which token leads each slot; -1 in an empty slot
    scores: Tensor  # (..., k) blended scores, differentiable; 0 for tokens that are always kept
    selection: Selection  # over the tokens that are not always kept; for its weights, its perplexity, ...

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        refuse_as_tensor(cls, function)

    def origins(self, leaders: Tensor) -> Tensor:
        """The leaders (..., k) in terms of an earlier sequence, from the leaders (..., n) of the tokens pooled here."""
        return torch.where(self.mask, leaders.gather(-1, self.leaders.clamp(min=0)), -1)

    def unpool(self, y: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The way back, for outputs for every token: (..., n, dim) from y (..., k, dim), what became of the k tokens.

        x (..., n, dim) are the tokens as they were before the pool, and mask that of the pool. Each token becomes
        ``(1 - w) * x + w * y``, with its own x, the y of its slot and its weight w there. So a token that leads a slot
        has what the later layers made of it, and one that was not passed on stays as it was. If all were passed on, the
        result is y, to the last bit. Tokens that are always kept get their own y. Padding gets 0; without the mask, its
        own x. Gates are left out.

        >>> import torch, knockout
        >>> pool, layer = knockout.nn.TokenPool(64, k=32), torch.nn.Linear(64, 64)
        >>> x = torch.randn(2, 128, 64)
        >>> pooled = pool(x)
        >>> pooled.unpool(layer(pooled.x), x).shape
        torch.Size([2, 128, 64])

        The blend keeps the scale of x and y, as a sum such as ``x + w * (y - pooled.x)`` would not. With a pretrained
        encoder its results were also closer to those without a pool: see docs/layers.md.
        """
        keep = check_unpool(y, x, mask, self.mask, (self.selection.k, self.selection.n))
        x = _without_padding(x, mask)
        kept = torch.where(self.mask[..., :keep].unsqueeze(-1), y[..., :keep, :], x[..., :keep, :])
        if keep == x.shape[-2]:
            return kept
        passed = self.selection.mass().unsqueeze(-1)
        rest = (1.0 - passed).to(x.dtype) * x[..., keep:, :] + self.selection.spread(y[..., keep:, :])
        return torch.cat([kept, rest], dim=-2) if keep else rest

    def _repr_html_(self) -> str | None:
        from knockout.notebook import to_html  # only here: most programs need no HTML

        return to_html(self)


register_namedtuple(Pooled, serialized_type_name="knockout.nn.Pooled")


class TokenPool(NoTorchScript):
    """Pass on the k most relevant tokens of a sequence, by a scorer and the operator.

    >>> import torch, knockout
    >>> pool = knockout.nn.TokenPool(64, k=32)
    >>> x, mask = torch.randn(2, 128, 64), torch.ones(2, 128, dtype=torch.bool)
    >>> mask[1, 20:] = False  # the second sequence has 20 tokens only
    >>> pooled = pool(x, mask)
    >>> pooled.x.shape, pooled.mask.sum(dim=-1)
    (torch.Size([2, 32, 64]), tensor([32, 20]))
    >>> pool
    TokenPool(
      64, k=32
      (scorer): Scorer(64)
      (topk): TopK(k=32, boost=Adaptive(c=..., unit=..., alpha=1.5), order='position')
    )

    The hard equivalent is to gather ``torch.topk(scorer(x), k).indices`` from x; its scorer gets no gradient.

    The result for a sequence does not depend on its padding, which may hold anything. Without gates, a sequence of k
    tokens or fewer passes unchanged.

    Args:
        dim: the dimension of the tokens.
        k: how many tokens to pass on at most, those always kept included. Or else
        ratio: a fraction of the tokens of each sequence, rounded up; tokens always kept are not counted.
        scorer: a module that takes x (..., n, dim) to scores (..., n) or (..., n, 1); by default a linear one.
        boost: how decisively the better candidate of a pair wins. None: the pool calibrates itself, as ``TopK`` does;
            choices start soft, and sharpen as the scores spread.
        order: the order of the slots: "position", that of the sequence, or "score".
        keep: how many tokens at the front are always kept, unchanged: 1 for a class token.
        hard: straight-through in training: hard choices forward, soft gradients backward.
        hard_eval: whether choices are hard in evaluation mode; None: as in training. They are then the true top k, as
            of ``torch.topk``, and the scores get no gradient. Training may pass on other tokens.
        gate: whether to multiply the tokens by ``Selection.gates``: the next layer then sees how sure the choice was.
        output: what to return: None for a ``Pooled``, "x" for the tokens alone, as ``nn.Sequential`` needs them, or a
            tuple of names of its fields, such as ("x", "mask"), for a tuple of them.
    """

    def __init__(
        self,
        dim: int,
        k: int | None = None,
        ratio: float | None = None,
        scorer: nn.Module | None = None,
        boost: float | Tensor | Boost | None = None,
        order: Order = "position",
        keep: int = 0,
        hard: bool = False,
        hard_eval: bool | None = None,
        gate: bool = False,
        output: Output = None,
    ) -> None:
        super().__init__()
        self.output = check_output(output, Pooled._fields)
        self.dim = check_whole(dim, "dim")
        self.keep = check_whole(keep, "keep", least=0)
        if (k is None) == (ratio is None):
            raise ValueError(
                f"pass either k, the most tokens to pass on, or ratio, a fraction of them; got {k=}, {ratio=}"
            )
        if k is not None:
            count: int | float = check_whole(k, "k") - self.keep
            if count < 1:
                raise ValueError(f"k must be above keep, the tokens that pass anyway; got {k=}, {keep=}")
        else:
            assert ratio is not None
            count = check_fraction(ratio, "ratio")
        if scorer is not None and not isinstance(scorer, nn.Module):
            raise TypeError(f"scorer must be an nn.Module that takes x to scores; got {scorer!r}")
        self.scorer = Scorer(self.dim) if scorer is None else scorer
        self.topk = TopK(count, boost, order, hard, hard_eval, gate)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, k: Tensor | None = None
    ) -> Any:
        """Tokens (..., n, dim), mask (..., n) bool, True for real tokens, positions (..., n) -> ``Pooled``.

        With ``output``: what that names of it. Positions are by default 0, 1, ..., n - 1. For a sequence that was
        pooled before, pass those of the ``Pooled``. ``k``: an integer tensor (...,), how many tokens of each sequence
        to pass on in this call: at most the k of the pool, and like it, those always kept included.
        """
        check_tokens(x, mask, positions, self.dim)
        k = None if k is None else self._counts(k, x)
        n = x.shape[-2]
        if positions is None:
            positions = torch.arange(n, device=x.device)
        positions = positions.to(position_dtype(x, positions))
        if n <= self.keep:
            # All tokens are kept: add padding for the selection, which needs a candidate. One more than there are
            # tokens tells ``Pooled.unpool`` that none of them is a token.
            mask = x.new_ones(n, dtype=torch.bool) if mask is None else mask
            padding = (0, self.keep + 1)
            x, mask, positions = pad(x, (0, 0, *padding)), pad(mask, padding), pad(positions, padding)
        rest = self._pool(
            x[..., self.keep :, :], None if mask is None else mask[..., self.keep :], positions[..., self.keep :], k
        )
        if not self.keep:
            return choose_output(rest, self.output)
        pooled = self._with_kept(rest, x, mask, positions)
        return choose_output(pooled if n > self.keep else _first(n, pooled), self.output)

    @property
    def boost(self) -> Boost:
        """The current boost; it can be set by hand or by a schedule."""
        return self.topk.boost

    @boost.setter
    def boost(self, boost: float | Tensor | Boost | None) -> None:
        self.topk.boost = boost

    def calibrate(self, x: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Measure the unit of the boost now, from the scores of these tokens, as of ``forward``.

        Without tokens: forget the unit, so that the next batch in training mode measures it.
        """
        if x is None:
            self.topk.calibrate()
            return
        check_tokens(x, mask, None, self.dim)
        x, mask = x[..., self.keep :, :], None if mask is None else mask[..., self.keep :]
        with torch.no_grad():
            self.topk.calibrate(self._scores(_without_padding(x, mask)), mask)

    def select(self, scores: Tensor, mask: Tensor | None, k: Tensor | None = None) -> Selection:
        """The selection by scores (..., n). Override this for another way to select.

        ``k`` is passed only if the pool was called with it; tokens that are always kept are not counted.
        """
        return self.topk.select(scores, mask, k)

    def _counts(self, k: Tensor, x: Tensor) -> Tensor:
        """Counts (...,) of a call, without the tokens that are always kept."""
        if not isinstance(self.topk.k, int):
            raise TypeError(
                f"k must be None for a pool with a ratio, {self.topk.k}; got {type(k).__name__}. Make the pool with k, "
                "the most tokens to pass on"
            )
        check_counts(k, self.topk.k + self.keep, "the k of the pool")
        check_expands(k.unsqueeze(-1), "k", x)
        return (k.long() - self.keep).clamp(min=0)

    def _pool(self, x: Tensor, mask: Tensor | None, positions: Tensor, k: Tensor | None) -> Pooled:
        """Pool all tokens, none of which is kept."""
        if not self._ignores_padding():
            x = _without_padding(x, mask)
        scores = self._scores(x)
        selection = self.select(scores, mask) if k is None else self.select(scores, mask, k)
        pooled_positions = selection.apply(positions.unsqueeze(-1)).squeeze(-1)
        return Pooled(
            self.topk.pick(selection, x),
            selection.mask,
            pooled_positions,
            selection.indices,
            selection.scores,
            selection,
        )

    def _ignores_padding(self) -> bool:
        """Whether what padding holds cannot matter: each token has a score by itself, and scores get no gradient."""
        return type(self.scorer) is Scorer and type(self).select is TokenPool.select and self.topk._takes_true_top_k()

    def _scores(self, x: Tensor) -> Tensor:
        scores = self.scorer(x)
        if isinstance(scores, Tensor) and scores.shape == (*x.shape[:-1], 1):
            scores = scores.squeeze(-1)
        if not isinstance(scores, Tensor) or scores.shape != x.shape[:-1] or not scores.is_floating_point():
            got = f"{scores.dtype} of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"{scores!r}"
            raise ValueError(
                f"scorer must take x of shape {tuple(x.shape)} to floating scores of shape {tuple(x.shape[:-1])}, one "
                f"per token; got {got}"
            )
        return scores

    def _with_kept(self, rest: Pooled, x: Tensor, mask: Tensor | None, positions: Tensor) -> Pooled:
        """Put the tokens that are always kept, unchanged, before the pooled ones."""
        shape = (*rest.mask.shape[:-1], self.keep)
        real = x.new_ones(shape, dtype=torch.bool) if mask is None else mask[..., : self.keep].expand(shape)
        first = torch.arange(self.keep, device=x.device)
        return Pooled(
            torch.cat([torch.where(real.unsqueeze(-1), x[..., : self.keep, :], 0.0), rest.x], dim=-2),
            torch.cat([real, rest.mask], dim=-1),
            torch.cat([torch.where(real, positions[..., : self.keep], 0.0), rest.positions], dim=-1),
            torch.cat([torch.where(real, first, -1), torch.where(rest.mask, rest.leaders + self.keep, -1)], dim=-1),
            torch.cat([rest.scores.new_zeros(shape), rest.scores], dim=-1),
            rest.selection,
        )

    def extra_repr(self) -> str:
        size = f"k={self.topk.k + self.keep}" if isinstance(self.topk.k, int) else f"ratio={self.topk.k}"
        return f"{self.dim}, {size}" + (f", keep={self.keep}" if self.keep else "") + _repr(self.output)


def _repr(output: Output) -> str:
    return "" if output is None else f", output={output!r}"


def _without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x with zeros for padding, which may hold anything: a NaN would reach the gradient of the scorer, as 0 * NaN."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)


def position_dtype(x: Tensor, positions: Tensor) -> torch.dtype:
    """The dtype of positions: full precision, because past 256 half types cannot tell neighbors apart."""
    wide = computing_dtype(x.dtype)
    return torch.promote_types(wide, computing_dtype(positions.dtype)) if positions.is_floating_point() else wide


def _first(n: int, pooled: Pooled) -> Pooled:
    """The first n slots."""
    x, mask, positions, leaders, scores, selection = pooled
    return Pooled(x[..., :n, :], mask[..., :n], positions[..., :n], leaders[..., :n], scores[..., :n], selection)


class Scorer(nn.Linear):
    """The built-in scorer: linear, x (..., dim) -> (...).

    It has no bias: a selection depends on differences only. It computes in full precision, under autocast too: in half
    precision, scores that should differ would tie.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        dtype = computing_dtype(self.weight.dtype)
        with full_precision(x.device):
            return linear(x.to(dtype), self.weight.to(dtype)).squeeze(-1)

    def extra_repr(self) -> str:
        return f"{self.in_features}"
