"""What the tests of the layers share: tokens, masks, and layers that have learned something."""

# mypy: disable-error-code="arg-type, operator, union-attr"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from knockout.boost import DEFAULT, Adaptive
from knockout.nn import PyramidEncoder, TokenPool, TopK
from knockout.nn.calibration import MULTIPLE, OUTLIER, SHARPNESS
from tests.cases import INF, randn

DIM = 16


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, DIM, seed=seed, dtype=torch.float32)


def pool(*arguments: Any, seed: int = 1, **options: Any) -> TokenPool:
    """A pool that has learned something."""
    made = TokenPool(DIM, *arguments, **options)
    with torch.no_grad():
        made.scorer.weight.copy_(randn(1, DIM, seed=seed))
    return made


def encoder(n_layers: int = 3, seed: int = 0, **options: Any) -> PyramidEncoder:
    torch.manual_seed(seed)
    layers = [nn.TransformerEncoderLayer(DIM, 2, 32, 0.0, batch_first=True) for _ in range(n_layers)]
    made = PyramidEncoder(layers, **options)
    for each in made.pools.values():
        nn.init.normal_(each.scorer.weight)
    return made


def masked(batch: int, n: int, lengths: list[int]) -> Tensor:
    return torch.arange(n) < torch.tensor(lengths).unsqueeze(-1).expand(batch, 1)


SCORES = randn(3, 20, dtype=torch.float32)


def unit_of(scores: Tensor, mask: Tensor | None = None) -> float:
    """The unit that these scores should give, row by row."""
    spreads = []
    masks = torch.ones(()).bool().expand(scores.shape) if mask is None else mask.expand(scores.shape)
    for row, active in zip(scores.double().flatten(0, -2), masks.flatten(0, -2), strict=True):
        known = row[active & (row != -INF)]
        if len(known) > 1 and known.isfinite().all():
            distances = [abs(each - known.median().item()) for each in known.tolist()]
            most = OUTLIER * sum(distances) / len(distances)
            spreads.append(sum(min(each, most) for each in distances) / len(distances))
    return float(MULTIPLE * sum(spreads) / len(spreads))


def calibrated(scores: Tensor = SCORES, mask: Tensor | None = None) -> TopK:
    layer = TopK(4)
    layer.select(scores, mask)
    return layer


def unmeasured() -> Adaptive:
    """The boost of a layer that has measured nothing."""
    return Adaptive(SHARPNESS, DEFAULT.unit)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "pool": lambda: pool(k=8),
    "pool by ratio": lambda: pool(ratio=0.3, boost=1.0),
    "pool with kept": lambda: pool(k=8, keep=1, hard=True),
    "pyramid": lambda: encoder(lengths={0: 12, 1: 5}),
    "pyramid by ratio, blocks": lambda: encoder(ratios={0: 0.4}, block=8),
}


def loss_of(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    out = model(x, mask)
    loss: Tensor = out.x.float().square().sum() + out.positions.sum()
    return loss
