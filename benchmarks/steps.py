"""What each step of a distributed selection takes, in nanoseconds and bytes a candidate: the constants of the model of
cost in docs/distributed.md. One process and one thread, which has all candidates and sends them to itself."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.timing import peak, save
from knockout.boost import Relative
from knockout.distributed.call import Call, Settings
from knockout.distributed.owner import RowOwner
from knockout.distributed.ranks import Ranks
from knockout.distributed.routing import find_routing
from knockout.quota import Quota

K = 64
SIZES = (2**20, 2**22, 2**24)
FIELDS: dict[str, Callable[[int], Tensor]] = {"uniform": torch.rand, "normal": torch.randn}

Made = TypeVar("Made")


def taken(run: Callable[[], Made], times: int = 3) -> tuple[float, Made]:
    """The least of some times, and what came out."""
    out, least = run(), float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        out = run()
        least = min(least, time.perf_counter() - begin)
    return least, out


def measure(kind: str, n: int, c: float) -> dict[str, Any]:
    """Of one row."""
    scores = FIELDS[kind](n).unsqueeze(0)
    active = torch.ones_like(scores, dtype=torch.bool)
    settings = Settings(K, Relative(c), "score", hard=False, slots="replicated", reduction="mean")
    call = Call(Ranks(None), 1, settings, [n], Quota(K), needs_grad=False)
    look, routing = taken(lambda: find_routing(scores, active, call))
    pack, received = taken(lambda: routing.to_owners(scores.flatten()[routing.sent_index]))
    fill, owner = taken(lambda: RowOwner(received, routing, call))
    play, _ = taken(owner.play)
    owner = RowOwner(received, routing, call._replace(needs_grad=True))
    before = peak(anew=True)
    record, plan = taken(owner.play, 1)
    back, _ = taken(lambda: owner.backward(torch.ones_like(plan.weight), torch.ones_like(plan.score)), 1)
    memory = (peak() - before) * 2**20
    steps = {"look": look, "pack": pack, "fill": fill, "play": play, "play, to learn": record, "backward": back}
    return {
        "scores": kind, "n": n, "boost": c, "travel": len(routing.sent_index) / n, "bytes": memory / n,
        **{f"ns to {name}": 1e9 * each / n for name, each in steps.items()},
    }  # fmt: skip


def main() -> None:
    """A line each."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/meeting", world_size=1, rank=0)
        rows = []
        for kind in FIELDS:
            for n in SIZES:
                for c in (4.0, 16.0):
                    rows.append(measure(kind, n, c))
                    shown = (
                        f"{key} {value:.2f}" if isinstance(value, float) else value for key, value in rows[-1].items()
                    )
                    print(*shown, sep=", ", flush=True)
        print(save("steps", rows))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
