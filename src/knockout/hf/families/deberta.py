"""DeBERTa-v2 and v3: attention to distances, as well as to contents."""

from collections.abc import Iterable
from typing import Any

import torch

from knockout.hf.families.family import Family, Tokens


class DebertaV2(Family):
    """DeBERTa-v2 and v3. Distances are those between leaders."""

    kinds = ("deberta-v2",)

    def check(self, model: Any, pooled: Iterable[int], keep: int) -> None:  # noqa: ARG002
        if 0 in pooled and self.count(model) == 1 and model.encoder.conv is not None:
            raise ValueError("the only layer of this model cannot be pooled: its convolution needs all tokens")

    def inputs(self, model: Any, layer: Any, tokens: Tokens, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position  # not above: it is slow

        encoder, heads = model.encoder, model.config.num_attention_heads
        real = torch.ones_like(tokens.leaders) if tokens.real is None else tokens.real.long()
        inputs = {"attention_mask": encoder.get_attention_mask(real)}
        if encoder.relative_attention:
            distances = -tokens.distances
            if encoder.position_buckets > 0 and encoder.max_relative_positions > 0:
                distances = make_log_bucket_position(
                    distances, encoder.position_buckets, encoder.max_relative_positions
                ).long()
            # A row for each head, in four dimensions: the layer takes one row for all sequences, or this.
            inputs["relative_pos"] = distances.repeat_interleave(heads, dim=0).unsqueeze(0)
        return inputs
