"""``knockout.hf.pool``: pools inside the encoder of a transformers model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from knockout.checks import check_flag
from knockout.hf.families import FAMILIES, Family
from knockout.hf.model import PooledModel, insert_pools
from knockout.hf.saving import settings_of
from knockout.nn import TokenPool
from knockout.nn.pyramid import PerLayer, make_pools

# Heads with an output for each token of the input.
PER_TOKEN = (
    "ForCausalLM",
    "ForMaskedImageModeling",
    "ForMaskedLM",
    "ForPreTraining",
    "ForQuestionAnswering",
    "ForTokenClassification",
    "LMHeadModel",
)


def pool(
    model: Any,
    lengths: PerLayer | None = None,
    ratios: PerLayer | None = None,
    pool: Callable[..., nn.Module] = TokenPool,
    unpool: bool = False,
    **options: Any,
) -> Any:
    """Pool tokens after some layers of a model. The model is changed in place, and returned.

    Its code, its weights and their names stay as they are; the pools are added to its modules. Class tokens and
    registers, at the front, are always kept. For a batch that is shorter than ``lengths``, the output is as before.

    Args:
        model: one of the families in docs/pretrained.md, or a ``SentenceTransformer`` (itself: with the model inside of
            it pooled, it would count padding). A model with a head, or with other encoders beside this one, as CLIP
            has, is taken too.
        lengths: how many tokens are left after which layer: ``{1: 128, 3: 64}``, or one entry a layer, None for no
            pooling. Or else
        ratios: likewise, as fractions of the tokens of each sequence.
        pool: makes the pools, called as ``pool(dim, k=length, keep=keep, **options)`` or with ``ratio=``.
        unpool: whether to go back to all tokens after the last layer, as ``Pooled.unpool`` does: for heads with an
            output for each token, and for decoders.
        options: for the pools: ``boost``, ``hard_eval``, ...; see ``knockout.nn.TokenPool``. ``keep`` is by default the
            number of class tokens and registers. For other scorers than the built-in one:
            ``pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)``.
    """
    if not isinstance(model, transformers.PreTrainedModel):
        from knockout.hf import sentence_transformers  # not above: it imports this module

        return sentence_transformers.pool_transformer(
            model, unpool, lengths=lengths, ratios=ratios, pool=pool, **options
        )
    check_flag(unpool, "unpool")
    if "scorer" in options:
        raise ValueError(
            "scorer cannot be saved with the settings; "
            "pass pool=lambda dim, **options: TokenPool(dim, scorer=..., **options)"
        )
    owner, family = _owner_of(model)
    _check_head(model, owner, unpool)
    options = {"keep": family.kept(owner.config), **options}
    pools = make_pools(pool, family.dim(owner.config), family.count(owner), lengths, ratios, options)
    family.check(owner, [int(i) for i in pools], options["keep"])
    _copy_config(model)
    pools.to(owner.device, owner.dtype).train(owner.training)
    insert_pools(owner, family, pools, options["keep"], unpool)
    model.config.knockout = settings_of(pools, lengths, ratios, pool, unpool, options)
    return model


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


def _owner_of(model: transformers.PreTrainedModel) -> tuple[Any, Family]:
    """The model that holds the layers, which may be inside of this one, and its family."""
    name, found = type(model).__name__, []
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            family = FAMILIES.get(part.config.model_type)
            if family is not None and family.owns(part):
                found.append((part, family))
    if any(isinstance(part, PooledModel) for part, _ in found):
        raise ValueError(f"model is pooled already, {model.config.knockout}; load it again to pool it otherwise")
    encoders = [each for each in found if not _is_decoder(each[0])]
    if found and not encoders:
        raise ValueError(
            f"model must be an encoder; got {name} with is_decoder or add_cross_attention set in its config"
        )
    if not encoders:
        raise ValueError(
            f"model must be of one of the families {', '.join(sorted(FAMILIES))}; got {name}, "
            f"{model.config.model_type!r}. Put its layers into a knockout.nn.PyramidEncoder, or describe them to "
            "knockout.hf.register: docs/pretrained.md"
        )
    if len(encoders) > 1:
        raise ValueError(
            f"model must have one encoder that can be pooled; got {name} with {len(encoders)}. Pool one of them by "
            "itself, and save it by itself: " + ", ".join(type(part).__name__ for part, _ in encoders)
        )
    return encoders[0]


def _is_decoder(model: transformers.PreTrainedModel) -> bool:
    config: Any = model.config
    return bool(getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False))


def _check_head(model: transformers.PreTrainedModel, owner: Any, unpool: bool) -> None:
    """Check that what comes after the encoder can do with fewer tokens."""
    name, config = type(model).__name__, model.config
    if name.endswith("Backbone") or hasattr(config, "vision_feature_layer"):
        raise ValueError(
            f"model must use the last hidden states of its encoder; got {name}, which takes those of layers"
        )
    if unpool:
        return
    if getattr(config, "classifier_pooling", None) == "mean" and model is not owner:
        raise ValueError(
            f'classifier_pooling must be "cls" for a pooled {name}, whose mean is over all tokens; got "mean". Pass '
            "unpool=True to go back to all tokens"
        )
    if name.endswith(PER_TOKEN):
        raise ValueError(
            f"model must answer once a sequence, as {type(owner).__name__} itself or a classifier of sequences does; "
            f"got {name}, which answers for each token, also for those that are pooled away. Pass unpool=True to go "
            "back to all tokens"
        )
    others = (part for part in model.modules() if isinstance(part, transformers.PreTrainedModel) and part is not owner)
    if any(_is_decoder(part) for part in others):
        raise ValueError(
            f"model must be an encoder; got {name}, whose decoder attends to all tokens of the encoder. Pass "
            "unpool=True to go back to all of them"
        )


def _copy_config(model: transformers.PreTrainedModel) -> None:
    """Give a model a copy of its config, which other models may share, before settings are written into it."""
    shared, own = model.config, copy.deepcopy(model.config)
    for part in model.modules():
        if getattr(part, "config", None) is shared:
            part.config = own  # type: ignore[assignment]
