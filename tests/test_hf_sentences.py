"""Pools inside a SentenceTransformer: tiny and random here; ``make peers`` runs tests/test_peers_sentences.py, too."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import Tensor, nn

from knockout import hf
from knockout.hf import sentence_transformers
from knockout.hf.sentence_transformers import PooledTransformer
from tests.cases import run_python
from tests.hf_cases import CASES, pooled

WORDS = [f"w{i}" for i in range(80)]
TEXTS = [" ".join(WORDS[i : i + n]) for i, n in ((0, 30), (5, 3), (9, 17), (40, 38))]
close = torch.testing.assert_close


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = tmp_path_factory.mktemp("bert")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer: Any = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(made)
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**CASES["Bert"].settings)).save_pretrained(made)  # type: ignore[no-untyped-call]
    return made


def make(folder: Path, mode: str = "mean", **options: Any) -> Any:
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(32, mode, **options)], device="cpu")


def encode(model: Any, texts: list[str] = TEXTS) -> Tensor:
    found: Tensor = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
    return found


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_encode(folder: Path, mode: str) -> None:
    plain = make(folder, mode)
    model = pooled(copy.deepcopy(plain), {0: 12, 2: 6})
    assert isinstance(model[0], PooledTransformer)
    out = encode(model)
    assert not torch.allclose(out, encode(plain))
    for i, text in enumerate(TEXTS):  # together as alone: padding does not matter
        close(out[i], encode(model, [text])[0], rtol=1e-4, atol=1e-5)
    tokens = model.tokenize(TEXTS)
    hidden = model[0].model(tokens["input_ids"], tokens["attention_mask"])
    by_hand = {
        "mean": hf.mean(hidden),
        "cls": hidden.last_hidden_state[:, 0],
        "max": hidden.last_hidden_state.masked_fill(~hidden.attention_mask.bool().unsqueeze(-1), -torch.inf).amax(1),
    }
    close(out, by_hand[mode], rtol=1e-4, atol=1e-5)
    enough = pooled(copy.deepcopy(plain), {0: 64})
    close(encode(enough), encode(plain), rtol=0, atol=1e-6)
    short = [TEXTS[1]]
    close(encode(model, short), encode(plain, short), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"lengths": {0: 12}}, {"ratios": [0.5, None, None, None]}, {"unpool": True}], ids=str
)
def test_saved_and_loaded(folder: Path, options: dict[str, Any], tmp_path: Path) -> None:
    model = make(folder)
    hf.pool(model, **{"lengths": {0: 12}, **options} if "ratios" not in options else options)
    nn.init.normal_(model[0].model.pools["0"].scorer.weight)
    expected = encode(model)
    model.save(str(tmp_path))
    kind = json.loads((tmp_path / "modules.json").read_text())[0]["type"]
    assert kind == "knockout.hf.sentence_transformers.PooledTransformer"
    again = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    assert torch.equal(encode(again), expected)
    assert str(again[0].model) == str(model[0].model)
    # Not without a word: sentence-transformers wants to be told that it may import a class of another package.
    with pytest.raises(ValueError, match=r"knockout\.hf\.sentence_transformers\.PooledTransformer"):
        SentenceTransformer(str(tmp_path))


def test_loaded_in_a_new_process(folder: Path, tmp_path: Path) -> None:
    model = pooled(make(folder), {0: 12})
    model.save(str(tmp_path / "model"))
    torch.save(encode(model), tmp_path / "expected.pt")
    code = f"""
import torch
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({str(tmp_path / "model")!r}, trust_remote_code=True, device="cpu")
found = model.encode({TEXTS!r}, convert_to_tensor=True, show_progress_bar=False)
torch.testing.assert_close(found, torch.load({str(tmp_path / "expected.pt")!r}), rtol=0, atol=1e-6)
print(type(model[0]).__name__)
"""
    assert run_python(code).stdout.split() == ["PooledTransformer"]


def test_training(folder: Path) -> None:
    """As its losses call it: features of two texts in, embeddings out."""
    model = pooled(make(folder), {0: 12}).train()
    loss = MultipleNegativesRankingLoss(model)
    features = [model.tokenize(TEXTS), model.tokenize(TEXTS[::-1])]
    loss(features, None).backward()
    assert model[0].model.pools["0"].scorer.weight.grad.any()
    assert model[0].model.pools["0"].topk.unit > 0


def test_copies_and_pickles(folder: Path) -> None:
    """As workers of ``encode`` on several devices get it."""
    model = pooled(make(folder), {0: 12})
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(encode(other), encode(model))


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("lasttoken", {}, 'pooling_mode must not be "lasttoken"'),
        ("mean", {"include_prompt": False}, "include_prompt must be True"),
    ],
)
def test_what_counts_on_the_places_of_tokens_is_refused(
    folder: Path, mode: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        hf.pool(make(folder, mode, **options), {0: 12})
    model = hf.pool(make(folder, mode, **options), {0: 12}, unpool=True)
    assert encode(model).isfinite().all()


def test_other_errors(folder: Path, tmp_path: Path) -> None:
    model = pooled(make(folder), {0: 12})
    with pytest.raises(ValueError, match="pooled already"):
        hf.pool(model, {0: 12})
    with pytest.raises(ValueError, match="must have one Transformer module; got SentenceTransformer with 0"):
        hf.pool(SentenceTransformer(modules=[Pooling(32)], device="cpu"), {0: 12})
    model.save(str(tmp_path))
    with pytest.raises(ValueError, match=r'backend must be "torch" for a model with pools.*; got \'onnx\''):
        SentenceTransformer(str(tmp_path), trust_remote_code=True, backend="onnx")


def test_without_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_transformers, "BaseModel", None)
    with pytest.raises(TypeError, match=r"a transformers.PreTrainedModel, or a SentenceTransformer; got Linear"):
        hf.pool(nn.Linear(2, 2), {0: 12})
