"""What a plan is worth: the operator against blending the values round by round, and against the hard twin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import knockout
from benchmarks.timing import medians, save
from knockout.boost import Relative
from knockout.eval.grid import hard
from knockout.eval.rounds import round_by_round

CELLS = [(1, 16384, 64, 512), (4, 16384, 64, 512), (4, 16384, 2, 512), (4, 16384, 2048, 512), (16, 16384, 64, 32)]


def backward(run: Callable[[], Tensor]) -> None:
    """Forward, and backward to whatever wants a gradient."""
    run().sum().backward()


def main() -> None:
    """Check that both agree, then time them, forward, and forward with backward."""
    rows = []
    for batch, n, k, d in CELLS:
        generator = torch.Generator().manual_seed(0)
        values = torch.rand(batch, n, d, generator=generator).requires_grad_()
        scores = torch.rand(batch, n, generator=generator).requires_grad_()
        boost = Relative(4)

        def soft() -> Tensor:
            return knockout.topk(values, scores, k, boost).values  # noqa: B023

        def rounds() -> Tensor:
            return round_by_round(values, scores, k, boost)  # noqa: B023

        torch.testing.assert_close(soft(), rounds(), rtol=1e-3, atol=1e-4)
        runs: dict[str, Callable[[], Tensor]] = {
            "hard twin": partial(hard, values, scores, k),
            "knockout.topk": soft,
            "round by round": rounds,
        }
        with torch.inference_mode():
            forward = medians(runs)
        both = medians({name: partial(backward, run) for name, run in runs.items()})
        print(f"batch {batch}, n = {n}, k = {k}, d = {d}")
        for name in runs:
            print(
                f"  {name:16s} forward {forward[name] * 1e3:9.2f} ms {forward[name] / forward['hard twin']:7.1f} x"
                f"   with backward {both[name] * 1e3:9.2f} ms {both[name] / both['hard twin']:7.1f} x"
            )
        print(
            f"  round by round / knockout.topk: {forward['round by round'] / forward['knockout.topk']:.1f} forward, "
            f"{both['round by round'] / both['knockout.topk']:.1f} with backward"
        )
        rows.append({"batch": batch, "n": n, "k": k, "d": d, "forward": forward, "forward and backward": both})
    print(f"written to {save('rounds', rows)}")


if __name__ == "__main__":
    main()
