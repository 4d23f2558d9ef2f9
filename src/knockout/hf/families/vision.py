"""Vision transformers: no padding, so that layers need nothing but the patches that are left."""

from collections.abc import Iterable
from typing import Any

from knockout.hf.families.family import Family, Tokens


class ViT(Family):
    """ViT: a class token."""

    kinds = ("vit",)
    layers = "layers"


class DeiT(Family):
    """DeiT: a class token and one for distillation."""

    kinds = ("deit",)
    layers = "layers"

    def kept(self, config: Any) -> int:  # noqa: ARG002
        return 2


class Dinov2(Family):
    """DINOv2: a class token, and registers if there are any."""

    kinds = ("dinov2", "dinov2_with_registers")

    def kept(self, config: Any) -> int:
        return 1 + getattr(config, "num_register_tokens", 0)


class Dinov3(Family):
    """DINOv3: the same, with rotary positions of the patches, which stay with their leaders."""

    kinds = ("dinov3_vit",)
    layers = "model.layer"

    def kept(self, config: Any) -> int:
        return 1 + int(config.num_register_tokens)

    def check(self, model: Any, pooled: Iterable[int], keep: int) -> None:  # noqa: ARG002
        if keep < (least := self.kept(model.config)):
            raise ValueError(
                f"keep must be at least {least} for this model, whose class token and registers have no place; "
                f"got {keep}"
            )

    def inputs(self, model: Any, layer: Any, tokens: Tokens, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        prefix = self.kept(model.config)
        patches = tokens.places[:, prefix:] - prefix
        rotations = tuple(part[patches].unsqueeze(1) for part in given["position_embeddings"])
        return {"position_embeddings": rotations}


class Clip(Family):
    """The vision tower of CLIP: a class token."""

    kinds = ("clip_vision_model",)
    layers = "encoder.layers"


class Siglip(Clip):
    """The vision tower of SigLIP: no class token, but a head that attends to all patches."""

    kinds = ("siglip_vision_model",)

    def kept(self, config: Any) -> int:  # noqa: ARG002
        return 0
