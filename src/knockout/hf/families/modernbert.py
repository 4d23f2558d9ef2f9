"""ModernBERT: rotary positions; most layers see only tokens nearby."""

from collections.abc import Iterable
from typing import Any

from knockout.hf.families.family import Family, Tokens, additive


class ModernBert(Family):
    """ModernBERT. A token stands where its leader stood: it is rotated so, and is nearby whoever was nearby there."""

    kinds = ("modernbert",)
    layers = "layers"

    def check(self, model: Any, pooled: Iterable[int], keep: int) -> None:  # noqa: ARG002
        _check_attention(model.config)

    def kind_of(self, layer: Any) -> Any:
        return layer.attention_type

    def inputs(self, model: Any, layer: Any, tokens: Tokens, given: dict[str, Any]) -> dict[str, Any]:
        config = model.config
        _check_attention(config)  # it may have been set since
        inputs = super().inputs(model, layer, tokens, given)
        inputs["position_embeddings"] = tuple(tokens.at_places(part) for part in given["position_embeddings"])
        if layer.attention_type == "sliding_attention":
            near = (tokens.distances.abs() <= config.sliding_window).unsqueeze(1)
            if tokens.real is not None:
                near = near & tokens.real[:, None, None, :]
            inputs["attention_mask"] = near if config._attn_implementation == "sdpa" else additive(near, tokens.x.dtype)
        return inputs


def _check_attention(config: Any) -> None:
    if config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(
            'attn_implementation must be "sdpa" or "eager" for a pooled ModernBERT, which needs a mask of the tokens '
            f"that stood near each other; got {config._attn_implementation!r}"
        )
