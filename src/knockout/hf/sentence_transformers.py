"""Pools inside a ``SentenceTransformer``, which calls, saves and loads its encoder in its own way."""

from __future__ import annotations

from typing import Any

import transformers

from knockout.hf.model import see_fields
from knockout.hf.pooling import pool
from knockout.hf.saving import from_pretrained

try:
    from sentence_transformers.base.model import BaseModel
    from sentence_transformers.base.modules import Transformer
except ImportError:  # the rest needs only transformers
    BaseModel: Any = None  # type: ignore[no-redef]
    Transformer: Any = object  # type: ignore[no-redef]


class PooledTransformer(Transformer):
    """The ``Transformer`` of sentence-transformers, with pools in its model.

    What comes after it gets the mask of the tokens that are left. A saved model names this class: to load it,
    ``SentenceTransformer(path, trust_remote_code=True)``, as for every class of another package.
    """

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        with see_fields() as fields:
            features = super().forward(features, **options)
        features["attention_mask"] = fields["attention_mask"]
        return features

    def _load_model(
        self,
        model_name_or_path: str,
        transformer_task: str,  # noqa: ARG002 - the architecture that was saved
        config: transformers.PreTrainedConfig,
        backend: str,
        is_peft_model: bool,
        **options: Any,
    ) -> transformers.PreTrainedModel:
        if backend != "torch" or is_peft_model:
            raise ValueError(
                'backend must be "torch" for a model with pools, without PEFT adapters; '
                f"got {backend!r}{' with adapters' if is_peft_model else ''}"
            )
        return from_pretrained(model_name_or_path, config=config, **options)


def pool_transformer(model: Any, unpool: bool, **arguments: Any) -> Any:
    """``knockout.hf.pool`` of the one encoder in a ``SentenceTransformer``, or another model of that package."""
    if BaseModel is None or not isinstance(model, BaseModel):
        raise TypeError(
            f"model must be a transformers.PreTrainedModel, or a SentenceTransformer; got {type(model).__name__}"
        )
    found = [part for part in model.modules() if isinstance(part, Transformer)]
    if len(found) != 1:
        raise ValueError(f"model must have one Transformer module; got {type(model).__name__} with {len(found)}")
    (transformer,) = found
    if transformer.backend != "torch":
        raise ValueError(f'model must have the backend "torch"; got {transformer.backend!r}')
    if not unpool:
        _check_pooling(model)
    pool(transformer.model, unpool=unpool, **arguments)
    transformer.__class__ = PooledTransformer
    return model


def _check_pooling(model: Any) -> None:
    """Check that what makes an embedding of the tokens does not count on their places."""
    for part in model.modules():
        if not getattr(part, "include_prompt", True):
            raise ValueError(
                "include_prompt must be True: the tokens of the prompt are not told from others once tokens are "
                "pooled. Pass unpool=True to go back to all tokens"
            )
        mode = getattr(part, "pooling_mode", None) or ()
        if "lasttoken" in ((mode,) if isinstance(mode, str) else mode):
            raise ValueError(
                'pooling_mode must not be "lasttoken": the last token may be pooled away. Pass unpool=True to go back '
                "to all tokens"
            )
