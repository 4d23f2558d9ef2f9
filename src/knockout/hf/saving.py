"""Pooled models in files: their settings in the config, and loading them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import transformers
from torch import Tensor, nn

import knockout.boost
from knockout.boost import Boost
from knockout.hf.model import PooledModel
from knockout.nn import TokenPool
from knockout.nn.pyramid import PerLayer

# Where a model is, for which from_pretrained and the reading of its config both have to know it.
_PLACE = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")


def settings_of(
    pools: nn.ModuleDict,
    lengths: PerLayer | None,
    ratios: PerLayer | None,
    pool: Callable[..., nn.Module],
    unpool: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The arguments of ``knockout.hf.pool`` as JSON can hold them."""
    sizes, given = ("lengths", lengths) if lengths is not None else ("ratios", ratios)
    return {
        sizes: {i: given[int(i)] for i in pools},  # type: ignore[index]
        "pool": None if pool is TokenPool else getattr(pool, "__qualname__", type(pool).__name__),
        "unpool": unpool,
        "options": {key: _to_json(value) for key, value in options.items()},
    }


def from_pretrained(
    path: str | os.PathLike[str],
    architecture: type[transformers.PreTrainedModel] | None = None,
    pool: Callable[..., nn.Module] | None = None,
    **options: Any,
) -> transformers.PreTrainedModel:
    """Load a pooled model that ``model.save_pretrained(path)`` has saved, in evaluation mode.

    ``transformers.AutoModel.from_pretrained`` loads the same model without its pools.

    Args:
        path: a folder, or the name of a model on the hub.
        architecture: the class of the model; by default the one that was saved. For another head, say,
            ``transformers.BertForSequenceClassification``.
        pool: makes the pools; the same as passed to ``knockout.hf.pool``, if any was.
        options: for ``from_pretrained`` of the architecture.
    """
    place = {name: options[name] for name in _PLACE if name in options}
    config, _ = transformers.PreTrainedConfig.get_config_dict(path, **place)
    settings = config.get("knockout")
    if settings is None:
        raise ValueError(
            f"path must hold a model that was pooled when it was saved; {path} is a plain {config.get('model_type')}. "
            "Load it with transformers, then call knockout.hf.pool"
        )
    if (settings["pool"] is None) != (pool is None):
        raise ValueError(f"pool must be what the model was pooled with, {settings['pool']}; got {pool!r}")
    plain = architecture or getattr(transformers, config["architectures"][0])

    def initialize(self: Any, *arguments: Any, **keywords: Any) -> None:
        plain.__init__(self, *arguments, **keywords)
        _pool_by_settings(self, settings, pool or TokenPool)

    # A subclass that makes the pools in its constructor, before the weights are read, so that theirs are read too. Its
    # names are those of the architecture, by which transformers looks things up.
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "_architecture": plain}
    with_pools: Any = type(plain.__name__, (plain,), {"__init__": initialize, **names})
    model, loading = with_pools.from_pretrained(path, **options, output_loading_info=True)
    if not isinstance(model, PooledModel):  # but a model inside of it
        model.__class__ = plain
    if missing := [key for key in loading["missing_keys"] if "pools." in key]:
        raise ValueError(f"{path} lacks weights of its pools, {missing}: it was saved by a model without them")
    loaded: transformers.PreTrainedModel = model
    return loaded


def _pool_by_settings(
    model: transformers.PreTrainedModel, settings: dict[str, Any], make: Callable[..., nn.Module]
) -> None:
    """Pool a model by the settings that ``pool`` has written into its config."""
    from knockout.hf.pooling import pool  # not above: it imports this module

    sizes = {
        name: {int(i): size for i, size in settings[name].items()} for name in ("lengths", "ratios") if name in settings
    }
    options = {key: _from_json(value) for key, value in settings["options"].items()}
    pool(model, pool=make, unpool=settings["unpool"], **sizes, **options)


def _to_json(option: Any) -> Any:
    """An option of a pool in a form that JSON can hold."""
    if isinstance(option, Tensor):
        return option.item()
    if not isinstance(option, Boost):
        return option
    return {"boost": type(option).__name__, **{name: float(number) for name, number in vars(option).items()}}


def _from_json(option: Any) -> Any:
    """The option that ``_to_json`` was given."""
    if not isinstance(option, dict):
        return option
    numbers = {key: value for key, value in option.items() if key != "boost"}
    return getattr(knockout.boost, option["boost"])(**numbers)
