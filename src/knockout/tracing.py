"""What may be done while PyTorch traces a call, and for whom it traces."""

from __future__ import annotations

from torch import Tensor, nn
from torch.compiler import is_compiling, is_exporting

from knockout.torch_private import is_traced_by_torchscript, is_transforming

__all__ = ["NoTorchScript", "is_exporting", "is_readable", "refuse_torchscript"]

_INSTEAD = (
    "Use torch.export.export(model, inputs), or for ONNX torch.onnx.export(model, inputs, dynamo=True). TorchScript "
    "would keep what was chosen for the example: how many candidates, rounds and slots there were"
)


def is_readable(tensor: Tensor) -> bool:
    """Whether its numbers can be looked at without waiting for a device, and without breaking a graph."""
    return tensor.is_cpu and type(tensor) is Tensor and not is_compiling() and not is_transforming()


def refuse_torchscript() -> None:
    """Raise under ``torch.jit.trace``, and so under ``torch.onnx.export(..., dynamo=False)``."""
    if not is_compiling() and is_traced_by_torchscript():
        raise RuntimeError(f"knockout cannot be traced by torch.jit.trace. {_INSTEAD}")


class NoTorchScript(nn.Module):
    """The base of modules that ``torch.jit.script`` refuses, with a word about what to use instead."""

    def __prepare_scriptable__(self) -> nn.Module:
        raise RuntimeError(f"{type(self).__name__} cannot be compiled by torch.jit.script. {_INSTEAD}")
