"""Shapes of arguments: whether they fit, in one way only, and if they do not, what to pass."""

from __future__ import annotations

from collections.abc import Sequence

# How many dimensions follow the batch dimensions of an argument; of all others, one.
_OWN = {"k": 0, "values": 2, "x": 2, "y": 2, "true": 2, "approx": 2}


def check_broadcast(shape: Sequence[int], name: str, batch: Sequence[int], other: str = "scores") -> None:
    """Check that batch dimensions broadcast with those of another argument.

    They do so by their last dimensions. If one argument has fewer, and they would fit the first dimensions of the other
    as well, the caller may have meant these: scores (B, queries, n) with values (B, n, d), where B happens to be the
    number of queries. That is an error.
    """
    if shape == batch:
        return
    fits = all(_fit(*sizes) for sizes in zip(reversed(shape), reversed(batch), strict=False))
    (few, fewer), (many, more) = sorted([(shape, name), (batch, other)], key=lambda sized: len(sized[0]))
    fits_first = (
        len(few) < len(many)
        and any(size != 1 for size in few)
        and all(size == 1 or size == first for size, first in zip(few, many, strict=False))
    )
    if fits and not fits_first:
        return
    own, missing = _OWN.get(fewer, 1), len(many) - len(few)
    for_first = f"{fewer}{f'.unsqueeze({-1 - own})' * missing}"
    if not fits:
        raise ValueError(
            f"the batch dimensions of {name} must broadcast with those of {other}, {tuple(batch)}; got {tuple(shape)}"
            + (f". Pass {for_first}" if fits_first and fewer.isidentifier() else "")
        )
    advice = f". Pass {for_first} for the first, {fewer}{'.unsqueeze(0)' * missing} for the last"
    if len(few) == 1 and all(size == 1 for size in many[1:]):
        advice += f"; or drop the dimensions of size 1: {more}.flatten(0, {-1 - _OWN.get(more, 1)})"
    raise ValueError(
        f"the batch dimensions of {name}, {tuple(shape)}, must broadcast with those of {other}, {tuple(batch)}, in one "
        f"way; those of {fewer} fit the first ones of {more} as well as the last ones"
        + (advice if fewer.isidentifier() else "")
    )


def check_values_shape(shape: Sequence[int], batch: Sequence[int], n: int) -> None:
    """Check the shape (..., n, d) of values, for scores (*batch, n); their batch dimensions are not compared.

    Values (*batch, n, ...) with more than one dimension for each candidate are an error even if they could be taken for
    values with more batch dimensions, as images (n, 3, n, width). Values (n, n, d) are taken for a batch of n, though:
    scores that a whole batch shares must not fail for a batch of one size.
    """
    fits = len(shape) >= 2 and shape[-2] == n
    after = len(shape) - len(batch) - 1  # dimensions after those of scores
    if fits and (after < 2 or (not batch and after == 2)):
        return
    first = tuple(shape[: len(batch) + 1])
    if after >= 2 and first == (*batch, n):
        hint = (
            f". To pass on more than a vector per candidate pass values.flatten({len(batch) + 1}), and unflatten the "
            f"result: .unflatten(-1, {tuple(shape[len(batch) + 1 :])})"
        )
        if fits:
            hint += ". If these are values with more batch dimensions than the scores, expand the scores"
    elif fits:
        return
    elif n == 1 and batch and first[:-1] == tuple(batch):
        hint = f". If there are {batch[-1]} candidates pass scores.squeeze(-1)"
    elif tuple(shape) == tuple(batch):
        hint = ". If values and scores are swapped: values come first"
    elif shape[-1:] == (n,) and after == 1:
        hint = ". If their last dimension is n pass values.mT"
    elif shape[-1:] == (n,):
        hint = ". For a number per candidate pass values.unsqueeze(-1)"
    else:
        hint = ""
    raise ValueError(
        f"values must have shape (..., n, d) with n = {n}, the number of scores; got shape {tuple(shape)}{hint}"
    )


def _fit(size: int, other: int) -> bool:
    return size == other or size == 1 or other == 1
