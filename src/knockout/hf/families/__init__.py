"""The kinds of encoders that can be pooled: one file for each kind of attention, one class for each family."""

from knockout.hf.families.albert import Albert
from knockout.hf.families.bert import Bert, DistilBert
from knockout.hf.families.deberta import DebertaV2
from knockout.hf.families.family import Family, Tokens
from knockout.hf.families.modernbert import ModernBert
from knockout.hf.families.mpnet import MPNet
from knockout.hf.families.t5 import T5
from knockout.hf.families.vision import Clip, DeiT, Dinov2, Dinov3, Siglip, ViT

__all__ = ["FAMILIES", "Family", "Tokens", "register"]

FAMILIES: dict[str, Family] = {}  # by the ``model_type`` of configs


def register(family: Family) -> None:
    """Let ``knockout.hf.pool`` take another kind of encoder, or take one otherwise."""
    if not isinstance(family, Family) or not family.kinds:
        raise TypeError(
            f"family must be a knockout.hf.Family with kinds, the model types that it is for; got {family!r}"
        )
    FAMILIES.update(dict.fromkeys(family.kinds, family))


for each in (
    Albert, Bert, Clip, DebertaV2, DeiT, Dinov2, Dinov3, DistilBert, ModernBert, MPNet, Siglip, T5, ViT,
):  # fmt: skip
    register(each())
