"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), read from its four idx files."""

from __future__ import annotations

import gzip
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts the files
HOW_TO_GET = (
    "Debian and Ubuntu have the files: apt-get install dataset-fashion-mnist; elsewhere download them from "
    "github.com/zalandoresearch/fashion-mnist, and pass their folder with --data"
)


class Split(NamedTuple):
    """Images with their classes."""

    images: Tensor  # (count, 28, 28) float, standardized
    labels: Tensor  # (count,) int64, 0 to 9


@cache  # a process that trains many networks reads the files once
def load(folder: Path) -> tuple[Split, Split]:
    """Read the training and the test images."""
    train, test = (_split(folder, name) for name in ("train", "t10k"))
    mean, deviation = train.images.mean(), train.images.std()
    return tuple(Split((each.images - mean) / deviation, each.labels) for each in (train, test))  # type: ignore[return-value]


def _split(folder: Path, name: str) -> Split:
    images = _read(folder, f"{name}-images-idx3-ubyte", dims=3)
    labels = _read(folder, f"{name}-labels-idx1-ubyte", dims=1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28) or labels.max() > 9:
        raise ValueError(
            f"{folder}: {name} has images of shape {tuple(images.shape)} and {len(labels)} labels up to "
            f"{int(labels.max())}; Fashion-MNIST has images of 28 x 28, a label from 0 to 9 each. {HOW_TO_GET}"
        )
    return Split(images.float() / 255.0, labels.long())


def _read(folder: Path, name: str, dims: int) -> Tensor:
    """Read an idx file of bytes, compressed or not: 0, 0, type 8, dimensions, their sizes in four bytes each, data."""
    for path in (folder / f"{name}.gz", folder / name, folder / name.replace("-idx", ".idx")):
        if path.exists():
            break
    else:
        raise FileNotFoundError(f"{folder} has no {name}, nor {name}.gz. {HOW_TO_GET}")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}). {HOW_TO_GET}") from None
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    if data[:4] != bytes([0, 0, 8, dims]) or len(data) != 4 + 4 * dims + math.prod(shape):
        raise ValueError(f"{path} is not a complete idx file of bytes with {dims} dimensions. {HOW_TO_GET}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[4 + 4 * dims :].view(shape)
