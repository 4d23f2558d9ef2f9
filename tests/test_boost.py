"""Boosts as values, and the scale of a round."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from knockout.boost import Fixed, Pairs, Relative
from tests.cases import randn, same_bits


def test_boosts_read_well_and_compare() -> None:
    c = torch.tensor(0.5)
    assert repr(Relative(c)) == "Relative(c=0.5, unit=1.0, alpha=1.5)"
    assert repr(Fixed(c)) == "Fixed(c=0.5, alpha=1.0)"
    assert repr(Fixed(c.to("meta"))) == "Fixed(c=<a tensor on meta>, alpha=1.0)"
    assert repr(Relative(4)) == "Relative(c=4, unit=1.0, alpha=1.5)"
    assert Relative(4) == Relative(4.0) != Relative(5)
    assert len({Relative(4), Relative(4), Fixed(4)}) == 2
    assert Relative(c) == Relative(c)


def test_the_scale_of_a_round_does_not_depend_on_the_padding_around_its_pairs() -> None:
    # So many pairs, and one so much larger than the others, that the last bits of a sum are at stake.
    better, worse = (randn(2**19, seed=seed).abs().sort(descending=True).values for seed in (1, 2))
    better[0] = better.sum()
    results = []
    for padding in (0, 7 * 2**19):
        top, low = (pad(x, (padding, 0)).requires_grad_() for x in (better, -worse))
        real = pad(torch.ones_like(better, dtype=torch.bool), (padding, 0))
        boost = Relative(1e-6, unit=1e-3)
        share, scale = boost.share(Pairs(top, low, top - low, real), boost.start(top))
        (gradient,) = torch.autograd.grad(share.sum(), top)
        results.append((scale, gradient[padding:]))
    for one, other in zip(*results, strict=True):
        same_bits(one, other)
