"""ALBERT: few layers with weights of their own, each of which is called many times."""

from typing import Any

from knockout.hf.families.family import Family


class Albert(Family):
    """ALBERT. Pools are numbered by calls, not by weights."""

    kinds = ("albert",)
    layers = "encoder.albert_layer_groups"

    def count(self, model: Any) -> int:
        return int(model.config.num_hidden_layers)
