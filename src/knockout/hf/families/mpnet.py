"""MPNet: a bias of attention for each distance, the same in all layers."""

from typing import Any

from knockout.hf.families.family import Family, Tokens, bucketed_bias


class MPNet(Family):
    """MPNet. Distances are those between leaders."""

    kinds = ("mpnet",)

    def inputs(self, model: Any, layer: Any, tokens: Tokens, given: dict[str, Any]) -> dict[str, Any]:
        buckets = model.encoder.relative_position_bucket(tokens.distances)
        bias = bucketed_bias(buckets, model.encoder.relative_attention_bias)
        return {**super().inputs(model, layer, tokens, given), "position_bias": bias}
