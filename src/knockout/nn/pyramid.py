"""Encoders that narrow: any encoder layers, with token pooling in between."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from knockout.checks import check_share, check_tokens, check_whole
from knockout.nn.blocks import cut, joined
from knockout.nn.pool import Pooled, TokenPool, position_dtype

After = Mapping[int, Any] | Sequence[Any]  # what happens after which layer


class Pyramid(NamedTuple):
    """What a ``PyramidEncoder`` returns: the tokens that are left, and where they come from."""

    x: Tensor  # (batch, length, dim)
    mask: Tensor | None  # (batch, length) bool, False for empty slots; None if there was no mask and no pooling
    positions: Tensor  # (batch, length) the weighted mean position of each token in the input
    leaders: Tensor  # (batch, length) int64: which token of the input leads; -1 in an empty slot
    levels: tuple[Pooled, ...]  # what each pool passed on


class PyramidEncoder(nn.Module):
    """Encoder layers with token pooling in between: most layers see a few tokens only.

    >>> import torch, knockout
    >>> layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)]
    >>> encoder = knockout.nn.PyramidEncoder(layers, lengths={0: 128, 1: 32}, block=64)
    >>> out = encoder(torch.randn(2, 1000, 64))
    >>> out.x.shape, out.leaders.shape
    (torch.Size([2, 32, 64]), torch.Size([2, 32]))
    >>> [level.x.shape[1] for level in out.levels]
    [128, 32]

    What a sequence gives does not depend on the padding behind it, in training without dropout and in evaluation; a
    sequence that is short already passes the pools unchanged.

    Args:
        layers: any encoder layers that keep the shape (batch, n, dim): ``nn.TransformerEncoderLayer`` with
            ``batch_first=True``, or modules that are called as ``layer(x, mask)`` with a bool mask (batch, n), True for
            real tokens, or None. One whose ``forward`` has a parameter ``positions`` is given those, (batch, n) float,
            for rotary or other position embeddings.
        lengths: how many tokens are left after which layer: ``{0: 512, 2: 64}``, or one entry a layer, None for no
            pooling, as in ``[512, None, 64, None]``. Longer than the input: nothing is pooled there. Or else
        ratios: likewise, as fractions of the tokens of each sequence, rounded up.
        block: attention only within blocks of so many tokens, cut from the front, as long as the sequence is longer:
            time and memory then grow with n, not with its square. For one block size a layer: a mapping or sequence.
        dim: of the tokens; by default that of the first ``nn.TransformerEncoderLayer``.
        pool: what makes the pools, called as ``pool(dim, k=length, **options)`` or ``pool(dim, ratio=ratio, ...)``.
        options: for the pools: ``boost``, ``keep``, ``hard_eval``, ...; see ``TokenPool``. For a scorer of your own in
            each: ``pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)``.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        lengths: After | None = None,
        ratios: After | None = None,
        block: int | After | None = None,
        dim: int | None = None,
        pool: Callable[..., nn.Module] = TokenPool,
        **options: Any,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dim = _dim(self.layers) if dim is None else check_whole(dim, "dim")
        self.pools = make_pools(pool, self.dim, len(self.layers), lengths, ratios, options)
        every = dict.fromkeys(range(len(self.layers)), block) if isinstance(block, int) else block
        blocks = {} if every is None else _by_layer(every, "block", len(self.layers), "{0: 64}")
        self.blocks = {i: check_whole(size, "block") for i, size in blocks.items()}
        self._calls = [_call_of(layer) for layer in self.layers]

    def forward(self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Pyramid:
        """Tokens (batch, n, dim), mask (batch, n) bool, True for real tokens, positions (batch, n) -> ``Pyramid``."""
        check_tokens(x, mask, positions, self.dim)
        if x.dim() != 3:
            raise ValueError(f"x must have shape (batch, n, {self.dim}); got shape {tuple(x.shape)}")
        batch, n, _ = x.shape
        leaders = torch.arange(n, device=x.device).expand(batch, n)
        positions = leaders if positions is None else positions.expand(batch, n)
        positions = positions.to(position_dtype(x, positions))
        if mask is not None:
            mask = mask.expand(batch, n)
            leaders = torch.where(mask, leaders, -1)
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)  # padding may hold anything, NaN too
        levels = []
        for i, layer in enumerate(self.layers):
            x = self._attend(i, layer, x, mask, positions)
            if str(i) in self.pools:
                pooled = self.pools[str(i)](x, mask, positions)
                levels.append(pooled)
                x, mask, positions, leaders = pooled.x, pooled.mask, pooled.positions, pooled.origins(leaders)
        return Pyramid(x, mask, positions, leaders, tuple(levels))

    def _attend(self, i: int, layer: nn.Module, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """A layer, on the whole sequence or block by block."""
        batch, n, _ = x.shape
        block = self.blocks.get(i, n)
        if n <= block:
            return self._calls[i](layer, x, _attendable(mask), positions)
        where, _ = cut(positions.unsqueeze(-1), None, block)
        blocks, block_mask = cut(x, mask, block)
        return joined(self._calls[i](layer, blocks, _attendable(block_mask), where.squeeze(-1)), batch, n)

    def extra_repr(self) -> str:
        return f"block={self.blocks}" if self.blocks else ""


def _attendable(mask: Tensor | None) -> Tensor | None:
    """A row without a real token attends to all of itself: to nothing would give NaN. Nobody looks at what it gives."""
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


Call = Callable[[nn.Module, Tensor, Tensor | None, Tensor], Tensor]


def _call_of(layer: nn.Module) -> Call:
    """How to call a layer, or what a wrapper of torch.compile or of activation checkpointing has inside."""
    inside = getattr(layer, "_orig_mod", getattr(layer, "_checkpoint_wrapped_module", layer))
    if isinstance(inside, nn.TransformerEncoderLayer) and not inside.self_attn.batch_first:
        raise ValueError("layers: an nn.TransformerEncoderLayer must be made with batch_first=True")
    parameters = inspect.signature(inside.forward).parameters
    if "src_key_padding_mask" in parameters:
        return _call_torch
    return _call_with_positions if "positions" in parameters else _call_with_mask


def _call_torch(layer: nn.Module, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:  # noqa: ARG001
    padding = None if mask is None else ~mask  # torch says True where there is padding
    # In inference the layer would leave scaled_dot_product_attention for a fused path of its own, which on the CPU is
    # two to nine times slower and holds the weights of all pairs of tokens. (A compiled graph cannot be kept from it.)
    fused = torch.backends.mha.get_fastpath_enabled()
    if not fused or torch.compiler.is_compiling():
        out: Tensor = layer(x, src_key_padding_mask=padding)
        return out
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        out = layer(x, src_key_padding_mask=padding)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return out


def _call_with_mask(layer: nn.Module, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:  # noqa: ARG001
    out: Tensor = layer(x, mask)
    return out


def _call_with_positions(layer: nn.Module, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    out: Tensor = layer(x, mask, positions=positions)
    return out


def _dim(layers: nn.ModuleList) -> int:
    for layer in layers:
        if isinstance(layer, nn.TransformerEncoderLayer):
            return int(layer.self_attn.embed_dim)
    raise ValueError(
        "dim must be passed unless the layers are nn.TransformerEncoderLayers: the dimension of the tokens"
    )


def make_pools(
    pool: Callable[..., nn.Module],
    dim: int,
    layers: int,
    lengths: After | None,
    ratios: After | None,
    options: Mapping[str, Any],
) -> nn.ModuleDict:
    """A pool for each of the layers that are named, by the number of the layer before it."""
    if (lengths is None) == (ratios is None):
        raise ValueError(
            f"pass either lengths, such as {{0: 512}}, or ratios, such as {{0: 0.25}}; got {lengths=}, {ratios=}"
        )
    sizes: dict[int, dict[str, float]]
    if lengths is not None:
        given = _by_layer(lengths, "lengths", layers, "{0: 512}")
        sizes = {i: {"k": check_whole(size, f"lengths[{i}]")} for i, size in given.items()}
    else:
        assert ratios is not None
        given = _by_layer(ratios, "ratios", layers, "{0: 0.25}")
        sizes = {i: {"ratio": check_share(size, f"ratios[{i}]")} for i, size in given.items()}
    if options.get("scorer") is not None and len(sizes) > 1:
        raise ValueError(
            "scorer cannot be shared between pools; "
            "pass pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)"
        )
    return nn.ModuleDict({str(i): pool(dim, **size, **options) for i, size in sizes.items()})


def _by_layer(given: After, name: str, layers: int, example: str) -> dict[int, Any]:
    """What is given for some layers, by their number, in their order."""
    if isinstance(given, Mapping):
        entries = dict(given)
    elif isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != layers:
            raise ValueError(
                f"{name} as a sequence must have an entry for each of the {layers} layers, None for nothing; "
                f"got {len(given)}"
            )
        entries = dict(enumerate(given))
    else:
        raise TypeError(f"{name} must be a mapping from layers, such as {example}, or a sequence; got {given!r}")
    for layer in entries:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < layers:
            raise ValueError(f"{name} must name layers from 0 to {layers - 1}; got {layer!r}")
    return {layer: entries[layer] for layer in sorted(entries) if entries[layer] is not None}
