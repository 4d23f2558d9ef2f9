"""A call of a pooled model: its own code calls its layers, and pools come between them.

The list of layers gives out, while its model is called, stand-ins for its layers. They hand each call of a layer to the
``Call``, which pools what the layer gets, and changes the other arguments to those for the tokens that are left. So
the code of the model stays as it is, and nothing is held between calls: any number of them may wait for their backward
pass, and each layer may be checkpointed by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor, nn

from knockout.hf.families import Family, Tokens
from knockout.nn import Pooled


class Call:
    """What became of the tokens so far, in one call of a model."""

    def __init__(self, model: Any, family: Family, keep: int, unpool: bool, mask: Tensor | None) -> None:
        self.model, self.family, self.keep, self.unpool = model, family, keep, unpool
        self.mask = mask  # (batch, n), as it was passed to the model: 0 for padding
        self.layers = family.count(model)
        self.layer = 0  # the number of the layer that is called next
        self.given: Tokens  # the tokens of the input
        self.tokens: Tokens  # those that are left
        self.inputs: dict[Any, dict[str, Any]] = {}  # what layers get after the last pool, by their kind
        self.undo: list[tuple[Pooled, Tensor, Tensor | None]] = []  # pools, with what they got

    def run(self, layer: nn.Module, x: Tensor, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a layer. What the one before it returned is pooled only now: the model may have changed it since."""
        number, self.layer = self.layer, self.layer + 1
        if number == 0:
            self._start(x)
        else:
            x = self._pool(number - 1, x)
        if not self._as_given():
            args, options = self._changed(layer, args, options)
        out = layer(x, *args, **options)
        if self.layer < self.layers:
            return out
        x = self._pool(number, out[0] if isinstance(out, tuple) else out)
        if self.unpool:
            for pooled, before, real in reversed(self.undo):
                x = pooled.unpool(x, before, real)
            self.tokens = self.given
        return (x, *out[1:]) if isinstance(out, tuple) else x

    def fields(self) -> dict[str, Tensor]:
        """Which tokens are left at the end, as fields of the output."""
        if self.layer != self.layers:
            raise RuntimeError(
                f"a pooled model must call its {self.layers} layers in turn; got {self.layer} calls. Was it changed?"
            )
        tokens = self.tokens
        mask = torch.ones_like(tokens.leaders) if tokens.real is None else tokens.real.long()
        return {"attention_mask": mask, "positions": tokens.positions, "leaders": tokens.leaders}

    def _start(self, x: Tensor) -> None:
        batch, n, _ = x.shape
        real = None if self.mask is None else _checked(self.mask, batch, n, self.keep).to(x.device).bool()
        leaders = torch.arange(n, device=x.device).expand(batch, n)
        positions = leaders.float()
        if real is not None:
            leaders = torch.where(real, leaders, -1)
        self.given = self.tokens = Tokens(x, real, positions, leaders)

    def _pool(self, number: int, x: Tensor) -> Tensor:
        """Pool what the layer of this number returned, if a pool comes after it."""
        if str(number) not in self.model.pools or x.shape[1] <= self.keep:
            return x
        before = self.tokens
        pooled = self.model.pools[str(number)](x, before.real, before.positions)
        if self.unpool:
            self.undo.append((pooled, x, before.real))
        # Without padding no slot is empty, and attention without a mask is faster.
        real = None if before.real is None else pooled.mask
        self.tokens = Tokens(pooled.x, real, pooled.positions, pooled.origins(before.leaders))
        self.inputs = {}
        left: Tensor = pooled.x
        return left

    def _as_given(self) -> bool:
        """Whether all tokens are left where they were. Then layers get what they would get without pools."""
        leaders, given = self.tokens.leaders, self.given.leaders
        if leaders is given:
            return True
        # With padding or another order of the slots, tokens may have moved. A graph cannot look at that.
        return leaders.shape == given.shape and not torch.compiler.is_compiling() and torch.equal(leaders, given)

    def _changed(
        self, layer: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = self.model.layer_parameters[: len(args)]
        given = {**dict(zip(names, args, strict=True)), **options}
        kind = self.family.kind_of(layer)
        if kind not in self.inputs:
            self.inputs[kind] = self.family.inputs(self.model, layer, self.tokens, given)
        inputs = self.inputs[kind]
        # Those that were passed by their places stay so: checkpoints of old kind have gradients for these only.
        args = tuple([inputs.get(name, arg) for name, arg in zip(names, args, strict=True)])
        more = {name: value for name, value in inputs.items() if name not in names}
        return args, {**options, **{name: x for name, x in more.items() if name in options or x is not None}}


def _checked(mask: Tensor, batch: int, n: int, keep: int) -> Tensor:
    if mask.shape != (batch, n):
        raise ValueError(f"attention_mask must have shape {(batch, n)}, that of the tokens; got {tuple(mask.shape)}")
    if keep and not torch.compiler.is_compiling() and ((mask[:, 0] == 0) & mask.any(dim=-1)).any():
        raise ValueError(
            f"attention_mask must be 1 for the first token, since the first {keep} are always kept; got padding in "
            "front. Pad at the end (of a tokenizer: padding_side='right'), or pass keep=0 to knockout.hf.pool"
        )
    return mask


class CurrentCall:
    """The call that runs now, in this thread. (``torch.compile`` cannot trace a ContextVar.)"""

    def __init__(self) -> None:
        self._call: ContextVar[Call | None] = ContextVar("knockout.hf call", default=None)
        self._traced: Call | None = None

    def get(self) -> Call | None:
        return self._traced if torch.compiler.is_compiling() else self._call.get()

    def set(self, call: Call) -> Token[Call | None] | None:
        if torch.compiler.is_compiling():
            self._traced = call
            return None
        return self._call.set(call)

    def reset(self, token: Token[Call | None] | None) -> None:
        if token is None:
            self._traced = None
        else:
            self._call.reset(token)


current = CurrentCall()


class PooledLayers(nn.ModuleList):
    """The layers of a pooled model, or those that it calls in turn. While it is called, it gets stand-ins for them."""

    def __iter__(self) -> Iterator[Any]:
        layers, call = super().__iter__(), current.get()
        return layers if call is None else iter([_StandIn(layer, call) for layer in layers])

    def __getitem__(self, which: Any) -> Any:
        found, call = super().__getitem__(which), current.get()
        return found if call is None or isinstance(which, slice) else _StandIn(found, call)


class _StandIn:
    """A layer, as its model calls it."""

    def __init__(self, layer: Any, call: Call) -> None:
        self._layer, self._call = layer, call

    def __call__(self, x: Tensor, *args: Any, **options: Any) -> Any:
        return self._call.run(self._layer, x, args, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def parameters_after_x(layer: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of a layer, but for the first, the hidden states."""
    return tuple(inspect.signature(layer.forward).parameters)[1:]
