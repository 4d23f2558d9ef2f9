"""A job of several ranks that ends with results still in variables, as most jobs do. For test_distributed_exit.py."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from knockout import distributed

CALLS = 60


def slow_down_other_threads() -> None:
    """Let the threads of the process group fall behind, as on a busy machine."""
    if hasattr(os, "sched_setscheduler"):
        for thread in Path("/proc/self/task").iterdir():
            if int(thread.name) != os.getpid():
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


torch.set_num_threads(1)
dist.init_process_group("gloo")
values, scores = torch.randn(50, 8, requires_grad=True), torch.randn(50, requires_grad=True)
for call in range(CALLS):
    if call == CALLS - 1:
        slow_down_other_threads()
    out = distributed.topk(values, scores, 8)
    out.values.square().mean().backward()
dist.destroy_process_group()
