"""The cheapest relaxation there is, in as few lines of PyTorch as it takes, beside ours: what is an interface worth?

The threshold sigmoid of DFTopK without checks, masks or spoiled rows, which is what one would write for one model; and
the same behind the library's interface, ``knockout.methods.threshold``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import knockout
from benchmarks.timing import medians, save

BATCH, D = 16, 32
CELLS = [(n, k) for n in (1024, 4096, 16384) for k in (8, 64, 512)]


def bare(values: Tensor, scores: Tensor, k: int) -> Tensor:
    """Rows (batch, k, d), each scaled by its sigmoid."""
    best, index = scores.topk(k + 1)
    middle = (best[:, k - 1 : k] + best[:, k:]) / 2
    gate = torch.sigmoid((best[:, :k] - middle) / 0.1)
    return gate.unsqueeze(-1) * values.gather(1, index[:, :k, None].expand(-1, -1, values.shape[-1]))


METHODS = {
    "knockout": lambda values, scores, k: knockout.topk(values, scores, k).values,
    "threshold": lambda values, scores, k: knockout.methods.threshold(scores, k).apply(values),
    "threshold, bare": bare,
}


def main() -> None:
    """Milliseconds forward, and forward and backward."""
    rows = []
    for n, k in CELLS:
        values, scores = torch.rand(BATCH, n, D).requires_grad_(), torch.rand(BATCH, n).requires_grad_()

        def forward(name: str, values: Tensor = values, scores: Tensor = scores, k: int = k) -> Tensor:
            with torch.no_grad():
                return METHODS[name](values, scores, k)

        def both(name: str, values: Tensor = values, scores: Tensor = scores, k: int = k) -> None:
            values.grad = scores.grad = None
            METHODS[name](values, scores, k).sum().backward()

        alone, whole = (medians({name: partial(use, name) for name in METHODS}, seconds=1.0) for use in (forward, both))
        row = {name: (round(1e3 * alone[name], 3), round(1e3 * whole[name], 3)) for name in METHODS}
        rows.append({"n": n, "k": k, **row})
        print(f"n = {n:5d}, k = {k:3d}: " + ", ".join(f"{name} {a} ({b})" for name, (a, b) in row.items()), flush=True)
    print(save("bare", rows))


if __name__ == "__main__":
    main()
