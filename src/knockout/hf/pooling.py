"""Pools inside the encoder of a transformers model, and saving and loading them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import knockout.boost
from knockout.boost import Boost
from knockout.nn import TokenPool
from knockout.nn.pyramid import PerLayer, make_pools

try:
    import transformers
    from transformers.masking_utils import create_bidirectional_mask
    from transformers.modeling_outputs import (
        BaseModelOutputWithPastAndCrossAttentions,
        BaseModelOutputWithPoolingAndCrossAttentions,
    )
except ImportError as error:
    raise ImportError("knockout.hf needs transformers 5 or later: pip install 'knockout-topk[hf]'") from error

# The attribute of each family that is its encoder: a list of layers, called one after the other with hidden states and
# a mask.
FAMILIES = {
    **dict.fromkeys(
        ("bert", "camembert", "data2vec-text", "electra", "ernie", "roberta", "xlm-roberta"),
        "encoder",
    ),
    "distilbert": "transformer",
}
# Heads with an output for each token: tokens that are pooled away would have none.
PER_TOKEN = (
    "ForCausalLM",
    "ForMaskedLM",
    "ForPreTraining",
    "ForQuestionAnswering",
    "ForTokenClassification",
    "LMHeadModel",
)


@dataclass
class PooledOutput(BaseModelOutputWithPoolingAndCrossAttentions):
    """The output of a pooled model: that of the architecture for the remaining tokens, and which tokens these are.

    ``hidden_states``, with ``output_hidden_states=True``, are those that each layer returned, before pooling; the last
    is ``last_hidden_state``. Models with a head return their own output, without the fields below.
    """

    attention_mask: Tensor | None = None  # (batch, length) int64 as a tokenizer's: 0 for an empty slot
    positions: Tensor | None = None  # (batch, length) the weighted mean position of each token in the input
    leaders: Tensor | None = None  # (batch, length) int64: which token of the input leads the slot; -1 if it is empty


def pool(
    model: transformers.PreTrainedModel,
    lengths: PerLayer | None = None,
    ratios: PerLayer | None = None,
    pool: Callable[..., nn.Module] = TokenPool,
    **options: Any,
) -> transformers.PreTrainedModel:
    """Pool tokens after some layers of a model. The model is changed in place, and returned.

    Its weights and their names stay as they are; the scorers are added to its parameters. The first token, [CLS], is
    always kept. For a batch that is shorter than ``lengths``, the output is the same as before.

    Args:
        model: one of the BERT family (BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, ERNIE, Data2Vec),
            without a head or with one that has one output per sequence, such as ``BertForSequenceClassification``. It
            must be called as ``model(...)``: libraries that call its ``forward``, such as sentence-transformers, cannot
            use it.
        lengths: how many tokens are left after which layer: ``{1: 128, 3: 64}``, or one entry a layer, None for no
            pooling. Or else
        ratios: likewise, as fractions of the tokens of each sequence.
        pool: makes the pools, called as ``pool(dim, k=length, keep=1, **options)`` or with ``ratio=``.
        options: for the pools: ``boost``, ``hard_eval``, ...; see ``knockout.nn.TokenPool``. For other scorers than the
            built-in one: ``pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)``.
    """
    if not isinstance(model, transformers.PreTrainedModel):
        raise TypeError(f"model must be a transformers.PreTrainedModel; got {type(model).__name__}")
    if "scorer" in options:
        raise ValueError(
            "scorer cannot be saved with the settings; "
            "pass pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)"
        )
    base, name = _encoder_of(model)
    encoder = getattr(base, name)
    options = {"keep": 1, **options}
    pools = make_pools(pool, base.config.hidden_size, len(encoder.layer), lengths, ratios, options)
    _copy_config(model)
    pooled = PooledEncoder(base.config, encoder.layer, pools, options["keep"])
    pooled.pools.to(base.device, base.dtype)
    setattr(base, name, pooled.train(base.training))
    base.register_forward_pre_hook(_pass_mask, with_kwargs=True)
    base.register_forward_hook(_add_token_fields, with_kwargs=True)
    # As JSON loads it: the numbers of layers are strings.
    sizes, given = ("lengths", lengths) if lengths is not None else ("ratios", ratios)
    model.config.knockout = {
        sizes: {i: given[int(i)] for i in pools},  # type: ignore[index]
        "pool": None if pool is TokenPool else getattr(pool, "__qualname__", type(pool).__name__),
        "options": {key: _to_json(value) for key, value in options.items()},
    }
    return model


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
    config, _ = transformers.PreTrainedConfig.get_config_dict(path, **options)
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
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    with_pools: Any = type(plain.__name__, (plain,), {"__init__": initialize, **names})
    model, loading = with_pools.from_pretrained(path, **options, output_loading_info=True)
    model.__class__ = plain
    if missing := [key for key in loading["missing_keys"] if ".pools." in key]:
        raise ValueError(f"{path} lacks weights of its pools, {missing}: it was saved by a model without them")
    loaded: transformers.PreTrainedModel = model
    return loaded


def mean(output: Any, attention_mask: Tensor | None = None) -> Tensor:
    """The mean over real tokens (batch, dim) of a model's output: mean pooling, as in sentence encoders.

    >>> import torch, knockout.hf
    >>> hidden, mask = torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[1, 1, 0]])
    >>> knockout.hf.mean(knockout.hf.PooledOutput(hidden, attention_mask=mask))
    tensor([[2.]])

    Args:
        output: of a pooled model, which includes its mask; or of any other model, and then
        attention_mask: (batch, n), 0 for padding, as it was passed to the model; None if there was none.
    """
    hidden: Tensor = output.last_hidden_state
    mask = getattr(output, "attention_mask", None)
    mask = attention_mask if mask is None else mask
    if mask is None:
        return hidden.mean(dim=1)
    if mask.shape != hidden.shape[:2]:
        raise ValueError(
            f"attention_mask must have shape {tuple(hidden.shape[:2])}, that of the tokens; got {tuple(mask.shape)}"
        )
    real = mask.to(hidden.device).bool().unsqueeze(-1)
    return torch.where(real, hidden, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1).to(hidden.dtype)


class PooledEncoder(nn.Module):
    """The layers of an encoder with pools in between; it replaces the encoder in its model.

    It holds no state between calls: any number of them may wait for their backward pass, and each layer may be
    checkpointed by itself.
    """

    def __init__(self, config: Any, layers: nn.ModuleList, pools: nn.ModuleDict, keep: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layers  # this name is part of the names of their weights
        self.pools = pools
        self.keep = keep

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        knockout: dict[str, Tensor] | None = None,
        use_cache: bool | None = None,  # noqa: ARG002 - for decoders
        **options: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Hidden states (batch, n, dim) and a mask in the form that the attention implementation takes.

        ``knockout`` holds the mask as it was passed to the model; the fields of ``PooledOutput`` are written into it.
        """
        if knockout is None:
            raise RuntimeError("a pooled model must be called as model(...), not by its forward method or its encoder")
        x = hidden_states
        batch, n, _ = x.shape
        real = knockout["mask"].to(x.device).bool() if "mask" in knockout else None
        positions = torch.arange(n, device=x.device, dtype=torch.float32).expand(batch, n)
        leaders = torch.arange(n, device=x.device).expand(batch, n)
        if real is not None:
            leaders = torch.where(real, leaders, -1)
        for i, layer in enumerate(self.layer):
            x = layer(x, attention_mask, **options)
            if str(i) in self.pools and x.shape[1] > self.keep:
                pooled = self.pools[str(i)](x, real, positions)
                x, positions, leaders = pooled.x, pooled.positions, pooled.origins(leaders)
                # Without padding no slot is empty, and attention without a mask is faster.
                real = None if real is None else pooled.mask
                attention_mask = create_bidirectional_mask(self.config, x, real)
                options["position_ids"] = None  # they are those of the input
        mask = torch.ones_like(leaders) if real is None else real.long()
        knockout.update(attention_mask=mask, positions=positions, leaders=leaders)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x)  # type: ignore[arg-type]


def _pass_mask(model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ARG001
    """Forward pre-hook: pass the mask to the encoder as it is, in a dict into which the encoder writes its fields."""
    mask = arguments[1] if len(arguments) > 1 else options.get("attention_mask")
    if mask is not None and mask.dim() != 2:
        raise ValueError(
            f"attention_mask must have shape (batch, n) for a pooled model, 0 for padding; got {tuple(mask.shape)}"
        )
    return arguments, {**options, "knockout": {} if mask is None else {"mask": mask}}


def _add_token_fields(model: Any, arguments: Any, options: dict[str, Any], output: Any) -> Any:  # noqa: ARG001
    """Forward hook: add the fields that the encoder wrote to the output. A tuple stays as it is."""
    fields = {key: value for key, value in options["knockout"].items() if key != "mask"}
    return output if isinstance(output, tuple) else PooledOutput(**output, **fields)


def _encoder_of(model: transformers.PreTrainedModel) -> tuple[Any, str]:
    """The model that holds the encoder, and the encoder's attribute; a ValueError if it cannot be pooled."""
    base: Any = model.base_model
    kind, name = base.config.model_type, type(model).__name__
    if kind not in FAMILIES or not hasattr(base, FAMILIES[kind]):
        raise ValueError(f"model must be of one of the families {', '.join(sorted(FAMILIES))}; got {name}, {kind!r}")
    if getattr(base.config, "is_decoder", False) or getattr(base.config, "add_cross_attention", False):
        raise ValueError(
            f"model must be an encoder; got {name} with is_decoder or add_cross_attention set in its config"
        )
    if name.endswith(PER_TOKEN):
        raise ValueError(
            f"model must answer once a sequence, as {type(base).__name__} itself or a classifier of sequences does; "
            f"got {name}, which answers for each token, also for those that are pooled away"
        )
    if isinstance(getattr(base, FAMILIES[kind]), PooledEncoder):
        raise ValueError(f"model is pooled already, {model.config.knockout}; load it again to pool it otherwise")
    return base, FAMILIES[kind]


def _copy_config(model: transformers.PreTrainedModel) -> None:
    """Give a model a copy of its config, which other models may share, before settings are written into it."""
    shared, own = model.config, copy.deepcopy(model.config)
    for part in model.modules():
        if getattr(part, "config", None) is shared:
            part.config = own  # type: ignore[assignment]


def _pool_by_settings(
    model: transformers.PreTrainedModel, settings: dict[str, Any], make: Callable[..., nn.Module]
) -> None:
    """Pool a model by the settings that ``pool`` has written into its config."""
    sizes = {
        name: {int(i): size for i, size in settings[name].items()} for name in ("lengths", "ratios") if name in settings
    }
    pool(model, pool=make, **sizes, **{key: _from_json(value) for key, value in settings["options"].items()})


def _to_json(option: Any) -> Any:
    """An option of a pool in a form that JSON can hold."""
    if not isinstance(option, Boost):
        return option
    return {"boost": type(option).__name__, **{name: float(number) for name, number in vars(option).items()}}


def _from_json(option: Any) -> Any:
    """The option that ``_to_json`` was given."""
    if not isinstance(option, dict):
        return option
    numbers = {key: value for key, value in option.items() if key != "boost"}
    return getattr(knockout.boost, option["boost"])(**numbers)
