"""Pyramid encoders: any encoder layers, with token pooling in between."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from knockout.checks import check_flag, check_fraction, check_tokens, check_whole
from knockout.nn.blocks import join_blocks, split_into_blocks
from knockout.nn.output import Output, check_output, choose_output
from knockout.nn.pool import Pooled, TokenPool, position_dtype
from knockout.results import refuse_as_tensor
from knockout.torch_private import register_namedtuple
from knockout.tracing import NoTorchScript

PerLayer = Mapping[int, Any] | Sequence[Any]  # settings by the number of the layer, or one entry a layer


class Pyramid(NamedTuple):
    """The result of a ``PyramidEncoder``: the remaining tokens, and where they come from.

    With ``unpool=True`` that are all tokens of the input, with its mask and positions.
    """

    x: Tensor  # (batch, length, dim)
    mask: Tensor | None  # (batch, length) bool, False for empty slots; None if there was no mask and no pooling
    positions: Tensor  # (batch, length) the weighted mean position of each token in the input
    leaders: Tensor  # (batch, length) int64: which token of the input leads the slot; -1 in an empty slot
    levels: tuple[Pooled, ...]  # the result of each pool

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        refuse_as_tensor(cls, function)


register_namedtuple(Pyramid, serialized_type_name="knockout.nn.Pyramid")


class PyramidEncoder(NoTorchScript):
    """Encoder layers with token pooling in between: later layers have few tokens to process.

    >>> import torch, knockout
    >>> layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)]
    >>> encoder = knockout.nn.PyramidEncoder(layers, lengths={0: 128, 1: 32}, block=64)
    >>> out = encoder(torch.randn(2, 1000, 64))
    >>> out.x.shape, out.leaders.shape
    (torch.Size([2, 32, 64]), torch.Size([2, 32]))
    >>> [level.x.shape[1] for level in out.levels]
    [128, 32]

    The result for a sequence does not depend on the padding after it (except by the dropout of the layers). A sequence
    that is shorter than ``lengths`` passes the pools unchanged.

    For an output for every token, to label tokens for example, pass ``unpool=True``:

    >>> encoder = knockout.nn.PyramidEncoder(layers, lengths={0: 128, 1: 32}, unpool=True)
    >>> encoder(torch.randn(2, 1000, 64)).x.shape
    torch.Size([2, 1000, 64])

    Args:
        layers: any encoder layers that keep the shape (batch, n, dim): ``nn.TransformerEncoderLayer`` with
            ``batch_first=True``, or modules that are called as ``layer(x, mask)`` with a bool mask (batch, n), True for
            real tokens, or None. One whose ``forward`` has a parameter ``positions`` is given those, (batch, n) float,
            for rotary or other position embeddings.
        lengths: how many tokens are left after which layer: ``{0: 512, 2: 64}``, or one entry a layer, None for no
            pooling, as in ``[512, None, 64, None]``. Where the input is shorter, nothing is pooled. Or else
        ratios: likewise, as fractions of the tokens of each sequence, rounded up.
        block: the length of blocks, split from the front, within which a longer sequence attends: time and memory then
            grow with n, not with its square. For a block length per layer, a mapping or sequence as for ``lengths``.
        dim: the dimension of the tokens; by default that of the first ``nn.TransformerEncoderLayer``.
        unpool: whether to go back to all tokens after the last layer, from pool to pool, the last one first; see
            ``Pooled.unpool``. Padding is 0 then. Without it, the tokens before a pool need not be kept for inference.
        pool: makes the pools, called as ``pool(dim, k=length, **options)`` or ``pool(dim, ratio=ratio, **options)``.
        output: what to return: None for a ``Pyramid``, "x" for the tokens alone, or a tuple of names of its fields,
            such as ("x", "mask"), for a tuple of them.
        options: for the pools: ``boost``, ``keep``, ``hard_eval``, ...; see ``TokenPool``. For other scorers than the
            built-in one: ``pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)``.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        lengths: PerLayer | None = None,
        ratios: PerLayer | None = None,
        block: int | PerLayer | None = None,
        dim: int | None = None,
        unpool: bool = False,
        pool: Callable[..., nn.Module] = TokenPool,
        output: Output = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.output = check_output(output, Pyramid._fields)
        self.layers = nn.ModuleList(layers)
        check_flag(unpool, "unpool")
        self.unpool = unpool
        self.dim = _dim(self.layers) if dim is None else check_whole(dim, "dim")
        self.pools = make_pools(pool, self.dim, len(self.layers), lengths, ratios, options)
        per_layer = dict.fromkeys(range(len(self.layers)), block) if isinstance(block, int) else block
        blocks = {} if per_layer is None else _by_layer(per_layer, "block", len(self.layers), "{0: 64}")
        self.blocks = {i: check_whole(size, "block") for i, size in blocks.items()}
        self._calls = [_call_of(layer) for layer in self.layers]

    def forward(self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Any:
        """Tokens (batch, n, dim), mask (batch, n) bool, True for real tokens, positions (batch, n) -> ``Pyramid``.

        With ``output``: what that names of it.
        """
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
        given, levels, before = (mask, positions, leaders), [], []
        for i, layer in enumerate(self.layers):
            x = self._attend(i, layer, x, mask, positions)
            if str(i) in self.pools:
                pooled = self.pools[str(i)](x, mask, positions)
                levels.append(pooled)
                if self.unpool:
                    before.append((x, mask))
                x, mask, positions, leaders = pooled.x, pooled.mask, pooled.positions, pooled.origins(leaders)
        if self.unpool:
            for pooled, tokens in zip(reversed(levels), reversed(before), strict=True):
                x = pooled.unpool(x, *tokens)
            mask, positions, leaders = given
        return choose_output(Pyramid(x, mask, positions, leaders, tuple(levels)), self.output)

    def _attend(self, i: int, layer: nn.Module, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Apply a layer to the whole sequence, or block by block."""
        batch, n, _ = x.shape
        block = self.blocks.get(i, n)
        if n <= block:
            return self._calls[i](layer, x, _attendable(mask), positions)
        block_positions, _ = split_into_blocks(positions.unsqueeze(-1), None, block)
        blocks, block_mask = split_into_blocks(x, mask, block)
        out = self._calls[i](layer, blocks, _attendable(block_mask), block_positions.squeeze(-1))
        return join_blocks(out, batch, n)

    def extra_repr(self) -> str:
        settings = [f"block={self.blocks}"] * bool(self.blocks) + ["unpool=True"] * self.unpool
        settings += [f"output={self.output!r}"] * (self.output is not None)
        return ", ".join(settings)


def _attendable(mask: Tensor | None) -> Tensor | None:
    """The mask, with all True for a sequence of padding alone: attention to nothing would be NaN. It is not used."""
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


Call = Callable[[nn.Module, Tensor, Tensor | None, Tensor], Tensor]


def _call_of(layer: nn.Module) -> Call:
    """The way to call a layer, by the signature of what is inside a wrapper of torch.compile or of checkpointing."""
    inside = getattr(layer, "_orig_mod", getattr(layer, "_checkpoint_wrapped_module", layer))
    if isinstance(inside, nn.TransformerEncoderLayer) and not inside.self_attn.batch_first:
        raise ValueError("layers: an nn.TransformerEncoderLayer must be made with batch_first=True")
    parameters = inspect.signature(inside.forward).parameters
    if "src_key_padding_mask" in parameters:
        return _call_torch
    return _call_with_positions if "positions" in parameters else _call_with_mask


def _call_torch(layer: nn.Module, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:  # noqa: ARG001
    padding = None if mask is None else ~mask  # torch says True where there is padding
    # In inference the layer would use its fused path instead of scaled_dot_product_attention. On the CPU that is two to
    # nine times slower, and holds the attention weights of all pairs of tokens. (A compiled graph cannot avoid it.)
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
    lengths: PerLayer | None,
    ratios: PerLayer | None,
    options: Mapping[str, Any],
) -> nn.ModuleDict:
    """The pools, each under the number of the layer that it follows."""
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
        sizes = {i: {"ratio": check_fraction(size, f"ratios[{i}]")} for i, size in given.items()}
    if options.get("output") is not None:
        raise ValueError(
            f"output cannot be set for pools between layers, which need all results; got {options['output']!r}"
        )
    if options.get("scorer") is not None and len(sizes) > 1:
        raise ValueError(
            "scorer cannot be shared between pools; "
            "pass pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)"
        )
    return nn.ModuleDict({str(i): pool(dim, **size, **options) for i, size in sizes.items()})


def _by_layer(given: PerLayer, name: str, layers: int, example: str) -> dict[int, Any]:
    """Settings of some layers as a dict from the number of the layer, in ascending order."""
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
