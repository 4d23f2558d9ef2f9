"""Which way of gathering and weighing rows is the fastest? Seconds, and their ratio to the hard twin's gather."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import knockout
from benchmarks.timing import medians, save
from knockout.gather import blend
from knockout.plan import Bracket

CELLS = [(16, 16384, 2, 32), (16, 16384, 64, 32), (16, 16384, 2048, 32), (16, 1024, 64, 32), (4, 16384, 64, 512)]


def contestants(batch: int, n: int, k: int, d: int) -> dict[str, Callable[[], Tensor]]:
    """The same blend, five ways, and the gather of the leaders alone."""
    generator = torch.Generator().manual_seed(0)
    values, scores = torch.rand(batch, n, d, generator=generator), torch.rand(batch, n, generator=generator)
    selection = knockout.select(scores, k)
    plan = selection._plan
    assert isinstance(plan, Bracket)
    member, weight = plan.member, plan.weight
    m = member.shape[-1]
    offset = torch.arange(batch)[:, None, None]
    slot = torch.arange(k).repeat_interleave(m).expand(batch, -1)
    slot = torch.empty(batch, n, dtype=torch.int64).scatter(1, member.flatten(1), slot)
    mass = selection.mass()
    leader = selection.indices.unsqueeze(-1).expand(-1, -1, d)

    def gather_einsum() -> Tensor:
        return torch.einsum("bkm,bkmd->bkd", weight, values.flatten(0, 1)[member + offset * n])

    def scatter_add() -> Tensor:
        index = slot.unsqueeze(-1).expand(-1, -1, d)
        return torch.zeros(batch, k, d).scatter_add(1, index, values * mass.unsqueeze(-1))

    def index_add() -> Tensor:
        rows = (values * mass.unsqueeze(-1)).flatten(0, 1)
        return torch.zeros(batch * k, d).index_add(0, (slot + offset[..., 0] * k).flatten(), rows).view(batch, k, d)

    def bag_of_all_rows() -> Tensor:
        bags = (member + offset * n).flatten(0, 1)
        table, weights = values.flatten(0, 1), weight.flatten(0, 1)
        return torch.nn.functional.embedding_bag(bags, table, mode="sum", per_sample_weights=weights).view(batch, k, d)

    return {
        "leaders only": lambda: values.gather(1, leader),
        "ours: bag of rows with weight": lambda: blend(values, weight, member),
        "bag of all rows": bag_of_all_rows,
        "gather + einsum": gather_einsum,
        "scatter_add": scatter_add,
        "index_add": index_add,
    }


def main() -> None:
    """Check that all agree, then time them."""
    rows = []
    for cell in CELLS:
        runs = contestants(*cell)
        expected = runs["gather + einsum"]()
        for name, run in runs.items():
            if name != "leaders only":
                torch.testing.assert_close(run(), expected, rtol=1e-4, atol=1e-4, msg=f"{name} is wrong")
        seconds = medians(runs)
        print("batch {}, n = {}, k = {}, d = {}".format(*cell))
        for name, time in seconds.items():
            print(f"  {name:32s} {time * 1e3:9.3f} ms {time / seconds['leaders only']:8.1f} x")
        rows.append({"batch": cell[0], "n": cell[1], "k": cell[2], "d": cell[3], "seconds": seconds})
    print(f"written to {save('gather', rows)}")


if __name__ == "__main__":
    main()
