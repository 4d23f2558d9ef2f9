"""The encoder of T5: a bias of attention for each distance, and no class token."""

from typing import Any

from knockout.hf.families.family import Family, Tokens, bucketed_bias


class T5(Family):
    """T5 and mT5. Distances are those between leaders."""

    kinds = ("t5", "mt5")
    layers = "block"

    def dim(self, config: Any) -> int:
        return int(config.d_model)

    def kept(self, config: Any) -> int:  # noqa: ARG002
        return 0

    def inputs(self, model: Any, layer: Any, tokens: Tokens, given: dict[str, Any]) -> dict[str, Any]:
        first = model.block[0].layer[0].SelfAttention  # it has the bias of all layers
        buckets = first._relative_position_bucket(
            tokens.distances,
            num_buckets=first.relative_attention_num_buckets,
            max_distance=first.relative_attention_max_distance,
        )
        bias = bucketed_bias(buckets, first.relative_attention_bias)
        return {**super().inputs(model, layer, tokens, given), "position_bias": bias}
