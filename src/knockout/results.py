"""What the NamedTuples that are returned have in common."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse_as_tensor(result: Any, function: Any) -> NoReturn:
    """For ``__torch_function__``, which PyTorch calls when a result is passed to a function in place of a tensor."""
    called, first = getattr(function, "__name__", function), result._fields[0]
    raise TypeError(
        f"{called} got a {result.__name__} in place of a tensor: take result.{first}, or make the layer of "
        f'knockout.nn with output="{first}", so that it returns the tensor alone, as in nn.Sequential'
    )
