"""The floating dtypes that are accepted, and the precision in which each is computed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half types, else the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off, which would run matrix products in half precision."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
