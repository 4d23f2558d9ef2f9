"""Tiny models of each family that ``knockout.hf`` pools, made from their configs, and inputs for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from knockout import hf
from knockout.hf.families import FAMILIES as FAMILIES_OF_HF
from knockout.nn import TokenPool

N = 40  # tokens of the longest text
LENGTHS = {0: 24, 2: 12}

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 100, "max_position_embeddings": N + 8, "pad_token_id": 0, **SIZES}
IMAGE = {"image_size": 24, "patch_size": 4, **SIZES}  # 36 patches
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Case:
    """How to make a model of a family."""

    config: str
    model: str
    settings: dict[str, Any]
    kept: int = 1  # tokens that are always kept
    sdpa: bool = True  # transformers has no other attention than eager for some
    checkpoints: bool = True  # nor gradient checkpointing
    image: bool = False
    no_dropout: dict[str, Any] = field(default_factory=lambda: NO_DROPOUT)


def _text(name: str, **more: Any) -> Case:
    settings = {**TEXT, **more.pop("settings", {})}
    return Case(f"{name}Config", f"{name}Model", settings, **more)


def _image(name: str, config: str | None = None, **more: Any) -> Case:
    settings = {**IMAGE, **more.pop("settings", {})}
    return Case(config or f"{name}Config", f"{name}Model", settings, image=True, **more)


DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}
VISION_DROPOUT: dict[str, Any] = {"attention_dropout": 0.0}

CASES = {
    "Bert": _text("Bert"),
    "Camembert": _text("Camembert"),
    "Data2VecText": _text("Data2VecText"),
    "DistilBert": Case(
        "DistilBertConfig",
        "DistilBertModel",
        {"vocab_size": 100, "max_position_embeddings": N + 8, "dim": 32, "n_layers": 4, "n_heads": 2, "hidden_dim": 64},
        no_dropout={"dropout": 0.0, "attention_dropout": 0.0},
    ),
    "Electra": _text("Electra"),
    "Ernie": _text("Ernie"),
    "Roberta": _text("Roberta"),
    "XLMRoberta": _text("XLMRoberta"),
    "Albert": _text("Albert", settings={"embedding_size": 16, "num_hidden_groups": 2}, checkpoints=False),
    "MPNet": _text("MPNet", sdpa=False, checkpoints=False),
    "DebertaV2": _text("DebertaV2", settings=DEBERTA, sdpa=False),
    "DebertaV2 with a convolution": _text(
        "DebertaV2", settings={**DEBERTA, "share_att_key": False, "conv_kernel_size": 3}, sdpa=False
    ),
    "ModernBert": _text(
        "ModernBert",
        settings={
            "global_attn_every_n_layers": 2,
            "local_attention": 16,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        no_dropout={"attention_dropout": 0.0},
    ),
    "T5Encoder": Case(
        "T5Config",
        "T5EncoderModel",
        {"vocab_size": 100, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 4, "num_heads": 2},
        kept=0,
        no_dropout={"dropout_rate": 0.0},
    ),
    "MT5Encoder": Case(
        "MT5Config",
        "MT5EncoderModel",
        {"vocab_size": 100, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 4, "num_heads": 2},
        kept=0,
        no_dropout={"dropout_rate": 0.0},
    ),
    "ViT": _image("ViT"),
    "DeiT": _image("DeiT", kept=2),
    "Dinov2": _image("Dinov2"),
    "Dinov2WithRegisters": _image("Dinov2WithRegisters", kept=5, settings={"num_register_tokens": 4}),
    "DINOv3ViT": _image(
        "DINOv3ViT",
        kept=5,
        settings={"num_register_tokens": 4},
        no_dropout={**VISION_DROPOUT, "pos_embed_rescale": None, "pos_embed_shift": None, "pos_embed_jitter": None},
    ),
    "CLIPVision": _image("CLIPVision", no_dropout=VISION_DROPOUT),
    "SiglipVision": _image("SiglipVision", kept=0, no_dropout=VISION_DROPOUT),
}
FAMILIES = list(CASES)
TEXTS = [name for name, case in CASES.items() if not case.image]


def config_of(family: str, **settings: Any) -> Any:
    case = CASES[family]
    return getattr(transformers, case.config)(**{**case.settings, **settings})


def make(family: str = "Bert", head: str = "Model", **settings: Any) -> Any:
    """A model in evaluation mode, without pools."""
    torch.manual_seed(0)
    name = CASES[family].model
    if head != "Model":
        name = name.removesuffix("Model").removesuffix("Encoder") + head
    return getattr(transformers, name)(config_of(family, **settings)).eval()


def pooled(model: Any, lengths: dict[int, int] | None = None, **options: Any) -> Any:
    """The model, with pools whose scorers have an opinion."""
    hf.pool(model, LENGTHS if lengths is None else lengths, **options)
    torch.manual_seed(1)
    for part in model.modules():
        if isinstance(part, TokenPool) and isinstance(part.scorer, nn.Linear):
            nn.init.normal_(part.scorer.weight)
    return model


def batch(family: str = "Bert", padding: bool = True) -> dict[str, Tensor]:
    """Sequences of 40, 25 and 7 tokens; or three images of 36 patches."""
    torch.manual_seed(2)
    if CASES[family].image:
        return {"pixel_values": torch.randn(3, 3, 24, 24)}
    mask = torch.ones(3, N, dtype=torch.int64)
    if padding:
        mask[1, 25:], mask[2, 7:] = 0, 0
    return {"input_ids": torch.randint(5, 100, (3, N)), "attention_mask": mask}


def owner(model: Any) -> Any:
    """The model that holds the layers."""
    (found,) = (
        part
        for part in model.modules()
        if isinstance(part, transformers.PreTrainedModel)
        and (family := FAMILIES_OF_HF.get(part.config.model_type)) is not None
        and family.owns(part)
    )
    return found
