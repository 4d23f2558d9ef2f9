"""Pooling inside Hugging Face encoders: tiny ones, made from their configs. Nothing is downloaded."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from knockout import hf
from knockout.boost import Adaptive, Power, Relative
from knockout.nn import Sharpen, TokenPool
from tests.cases import same_bits
from tests.hf_cases import LENGTHS, NO_DROPOUT, N, batch, make, pooled

close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
FORMS = ["Bert", "DistilBert", "ModernBert"]  # whose lists of layers are in different places


def gradients(model: Any, calls: int) -> dict[str, Tensor]:
    """Of a loss over several calls, all of which wait for one backward pass."""
    model.train().zero_grad()
    whole = batch()
    torch.stack(
        [hf.mean(model(whole["input_ids"].roll(i, 0), whole["attention_mask"])).square().sum() for i in range(calls)]
    ).sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def test_models_may_share_a_config(tmp_path: Path) -> None:
    first = make(head="ForSequenceClassification")
    second: Any = type(make())(first.config).eval()
    pooled(first, {0: 8})
    hf.pool(second, lengths={1: 20}, boost=Relative(torch.tensor(2.0)))
    for name, model in (("first", first), ("second", second)):
        model.save_pretrained(tmp_path / name)
        again: Any = hf.from_pretrained(tmp_path / name)(**batch())
        for one, other in zip(again.to_tuple(), model(**batch()).to_tuple(), strict=True):
            assert torch.equal(one, other)
    assert not hasattr(make().config, "knockout")


def test_padding_does_not_matter_to_ratios(tmp_path: Path) -> None:
    model: Any = hf.pool(make(), ratios={0: 0.5, 2: 0.3})
    for each in model.pools.values():
        nn.init.normal_(each.scorer.weight)
    whole = batch()
    out = model(**whole)
    # Besides [CLS], half of the others, rounded up, and then three tenths.
    assert out.attention_mask.sum(dim=-1).tolist() == [7, 5, 2]
    for i, n in enumerate(whole["attention_mask"].sum(dim=-1).tolist()):
        alone = model(whole["input_ids"][i : i + 1, :n])
        k = alone.last_hidden_state.shape[1]
        close(out.last_hidden_state[i, :k], alone.last_hidden_state[0])
        assert out.leaders[i].tolist() == alone.leaders[0].tolist() + [-1] * (7 - k)
    model.save_pretrained(tmp_path)
    again = hf.from_pretrained(tmp_path)(**whole)
    assert torch.equal(again.last_hidden_state, out.last_hidden_state)


def test_pools_where_it_says() -> None:
    """The layers and pools, called by hand."""
    model = pooled(make())
    encoder = model.encoder
    whole = batch(padding=False)
    out = model(**whole, output_hidden_states=True)
    assert [each.shape[1] for each in out.hidden_states] == [N, N, 24, 24, 12]
    x, positions = out.hidden_states[0], None
    leaders = torch.arange(N).expand(3, N)
    for i, layer in enumerate(encoder.layer):
        x = layer(x)
        if i in LENGTHS:
            level = model.pools[str(i)](x, None, positions)
            x, positions, leaders = level.x, level.positions, leaders.gather(1, level.leaders)
    close(out.last_hidden_state, x)
    close(out.positions, positions)
    assert torch.equal(out.leaders, leaders)
    assert (out.leaders[:, 0] == 0).all()


@pytest.mark.parametrize("n", [1, 2, 12])
def test_short_batches_pass_unchanged(n: int) -> None:
    plain = make()
    model = pooled(copy.deepcopy(plain))
    short = {key: each[:, :n] for key, each in batch().items()}
    out, expected = model(**short), plain(**short)
    real = short["attention_mask"].bool()
    same_bits(out.last_hidden_state[real], expected.last_hidden_state[real])
    assert torch.equal(out.attention_mask, short["attention_mask"])
    close(out.pooler_output, expected.pooler_output)
    close(hf.mean(out), hf.mean(expected, short["attention_mask"]))


def test_no_pools() -> None:
    model = hf.pool(make(), {})
    out = model(**batch())
    same_bits(out.last_hidden_state, make()(**batch()).last_hidden_state)
    assert torch.equal(out.leaders >= 0, out.attention_mask.bool())
    assert torch.equal(out.positions, torch.arange(float(N)).expand(3, N))


def test_position_ids_are_those_of_the_input() -> None:
    """Attention in flash form would look at them."""
    model, seen = pooled(make()), []
    for layer in model.encoder.layer:
        layer.register_forward_pre_hook(lambda *given: seen.append(given[2]["position_ids"]), with_kwargs=True)
    where = torch.arange(N).flip(0).unsqueeze(0)
    out = model(**batch(), position_ids=where)
    assert not torch.allclose(out.last_hidden_state, model(**batch()).last_hidden_state)
    assert seen[:4] == [where, None, None, None]


def test_first_token_is_what_the_pooler_sees() -> None:
    model = pooled(make(), {3: 8})  # after the last layer: nothing but the tokens is gone
    whole = batch()
    close(model(**whole).pooler_output, make()(**whole).pooler_output)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_heads(head: str) -> None:
    plain = make(head=head)
    model = pooled(copy.deepcopy(plain))
    ids = batch(padding=False)["input_ids"]
    ids = ids.unsqueeze(0) if head == "ForMultipleChoice" else ids  # a question, three answers
    out = model(ids, labels=torch.zeros(len(ids), dtype=torch.int64))
    assert out.logits.shape == plain(ids).logits.shape
    assert not torch.allclose(out.logits, plain(ids).logits)
    close(model(ids[..., :12]).logits, plain(ids[..., :12]).logits)
    out.loss.backward()
    assert all(pool.scorer.weight.grad.any() for pool in model.base_model.pools.values())


def test_outputs_in_all_forms() -> None:
    model = pooled(make(attn_implementation="eager"))
    whole = batch()
    out = model(**whole, output_attentions=True)
    assert type(out).__name__ == "PooledOutput"
    assert [tuple(each.shape[2:]) for each in out.attentions] == [(N, N), (24, 24), (24, 24), (12, 12)]
    row = model(whole["input_ids"], whole["attention_mask"], return_dict=False)
    assert isinstance(row, tuple)
    assert len(row) == 2  # the architecture's own
    same_bits(row[0], out.last_hidden_state)
    flat, form = torch.utils._pytree.tree_flatten(out)
    assert torch.equal(torch.utils._pytree.tree_unflatten(flat, form).leaders, out.leaders)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(calls: int, reentrant: bool) -> None:
    model = pooled(make(**NO_DROPOUT))
    expected = gradients(copy.deepcopy(model), calls)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    found = gradients(model, calls)
    assert found.keys() == expected.keys() >= {"pools.0.scorer.weight", "pools.2.scorer.weight"}
    for name in expected:
        close(found[name], expected[name])


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_saved_and_loaded(family: str, head: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = make(family, head)
    model = pooled(copy.deepcopy(plain), boost=Relative(3, unit=0.5), hard_eval=False)
    Sharpen(model, steps=10, start=0.25)
    model.save_pretrained(tmp_path)
    capfd.readouterr()
    again = hf.from_pretrained(tmp_path)
    assert "MISSING" not in (printed := "".join(capfd.readouterr()))
    assert "UNEXPECTED" not in printed
    assert type(again) is type(model)
    assert not again.training
    assert again.config.knockout == model.config.knockout
    assert str(again) == str(model)  # the boost as it had become, and all other settings
    same_bits(again(**batch())[0], model(**batch())[0])
    unpooled = type(model).from_pretrained(tmp_path)
    same_bits(unpooled(**batch())[0], plain(**batch())[0])
    again.save_pretrained(tmp_path / "again")
    same_bits(hf.from_pretrained(tmp_path / "again")(**batch())[0], model(**batch())[0])


def test_pools_calibrate_themselves_once(tmp_path: Path) -> None:
    model = pooled(make())
    model(**batch())
    layers = [each.topk for each in model.pools.values()]
    assert [layer.unit.item() for layer in layers] == [0, 0]  # in evaluation nothing is measured
    model.train()(**batch())
    units = [layer.unit.item() for layer in layers]
    assert min(units) > 0
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.float16):
        again: Any = hf.from_pretrained(tmp_path, dtype=dtype).train()
        again(input_ids=batch()["input_ids"].flip(0))
        assert [each.topk.unit.item() for each in again.pools.values()] == units


def test_an_adaptive_boost_is_saved_with_the_settings(tmp_path: Path) -> None:
    model = pooled(make(), boost=Adaptive(2, unit=torch.tensor(5.0)))
    model.save_pretrained(tmp_path)
    again: Any = hf.from_pretrained(tmp_path)
    assert again.pools["2"].boost == Adaptive(2, unit=5)
    same_bits(again(**batch())[0], model(**batch())[0])


def test_a_boost_that_is_a_tensor_is_saved_as_its_number(tmp_path: Path) -> None:
    model = pooled(make(), boost=torch.tensor(4.0))
    model.save_pretrained(tmp_path)
    again: Any = hf.from_pretrained(tmp_path)
    assert again.pools["2"].boost == Relative(4.0)
    same_bits(again(**batch())[0], model(**batch())[0])


@pytest.mark.parametrize("family", ["Bert", "T5Encoder"])
def test_replicas_of_data_parallel(family: str) -> None:
    """As ``nn.DataParallel`` makes them: a module of the same class around the same dictionaries."""
    model = pooled(make(family))
    replicas = {part: part._replicate_for_data_parallel() for part in model.modules()}
    for part, replica in replicas.items():
        for name, child in part.named_children():
            setattr(replica, name, replicas[child])
        for name, weight in part._parameters.items():
            setattr(replica, name, weight)
    same_bits(replicas[model](**batch())[0], model(**batch())[0])


def test_another_head_on_a_saved_model(tmp_path: Path) -> None:
    model = pooled(make())
    model.save_pretrained(tmp_path)
    classifier = hf.from_pretrained(tmp_path, transformers.BertForSequenceClassification, num_labels=5)
    same_bits(classifier.base_model(**batch())[0], model(**batch())[0])
    assert classifier(**batch()).logits.shape == (3, 5)


def test_pools_of_your_own(tmp_path: Path) -> None:
    def own(dim: int, **options: Any) -> TokenPool:
        return TokenPool(dim, scorer=nn.Sequential(nn.Linear(dim, 8), nn.Tanh(), nn.Linear(8, 1)), **options)

    model = pooled(make(), pool=own)
    model.save_pretrained(tmp_path)
    same_bits(hf.from_pretrained(tmp_path, pool=own)(**batch())[0], model(**batch())[0])
    with pytest.raises(ValueError, match=r"pool must be .*own.*; got None"):
        hf.from_pretrained(tmp_path)


def test_copies_and_pickles() -> None:
    model = pooled(make())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        same_bits(other(**batch())[0], model(**batch())[0])
        nn.init.zeros_(other.pools["0"].scorer.weight)  # its own
        assert not torch.equal(other(**batch())[0], model(**batch())[0])


def test_pools_follow_their_model() -> None:
    model: Any = hf.pool(make().to(torch.bfloat16).train(), LENGTHS)
    scorer = model.pools["0"].scorer
    assert scorer.weight.dtype == torch.bfloat16
    assert scorer.training
    assert hf.mean(model(**batch())).dtype == torch.bfloat16


def test_autocast() -> None:
    model = pooled(make())
    with torch.autocast("cpu", torch.bfloat16):
        out = model(**batch())
    assert out.positions.dtype == torch.float32
    exact = model(**batch())
    torch.testing.assert_close(hf.mean(out).float(), hf.mean(exact), rtol=0, atol=0.5)
    assert (out.leaders == exact.leaders).float().mean() > 0.8


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
@pytest.mark.parametrize("padding", [False, True])
def test_compiled(padding: bool) -> None:
    torch.compiler.reset()
    model = pooled(make(), boost=Power(20))
    whole = batch() if padding else {"input_ids": batch()["input_ids"]}
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    out = compiled(**whole)
    expected = model(**whole)
    close(out.last_hidden_state, expected.last_hidden_state)
    assert torch.equal(out.leaders, expected.leaders)


def test_mean() -> None:
    hidden = torch.tensor([[[2.0], [4.0], [9.0]], [[1.0], [torch.nan], [torch.nan]], [[5.0], [5.0], [5.0]]])
    output = SimpleNamespace(last_hidden_state=hidden)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert hf.mean(output, mask).tolist() == [[3.0], [1.0], [0.0]]
    assert hf.mean(output)[0].item() == 5.0
    output.attention_mask = mask  # that of a pooled model goes first
    assert hf.mean(output, torch.ones(3, 7)).tolist() == [[3.0], [1.0], [0.0]]


GPT2: Any = partial(transformers.GPT2Model, transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9))
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "neither": ({"lengths": None}, ValueError, "either lengths, .* or ratios, .*; got lengths=None, ratios=None"),
    "both": ({"ratios": {0: 0.5}}, ValueError, "either lengths, .* or ratios"),
    "layer": ({"lengths": {4: 8}}, ValueError, "lengths must name layers from 0 to 3; got 4"),
    "no mapping": ({"lengths": 8}, TypeError, "lengths must be a mapping"),
    "length": ({"lengths": {0: 1}}, ValueError, "k must be above keep"),
    "scorer": ({"scorer": nn.Linear(32, 1)}, ValueError, "scorer cannot be saved .* pass pool="),
    "module": (
        {"model": nn.Linear(2, 2)},
        TypeError,
        "model must be a transformers.PreTrainedModel, or a SentenceTransformer; got Linear",
    ),
    "family": (
        {"model": GPT2},
        ValueError,
        "families albert, .*; got GPT2Model, 'gpt2'. Put its layers into a knockout.nn.PyramidEncoder",
    ),
    "decoder": ({"model": ("Bert", "Model", {"is_decoder": True})}, ValueError, "must be an encoder; got BertModel"),
    "tokens": ({"model": ("Bert", "ForTokenClassification")}, ValueError, "answer once a sequence, as BertModel"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case: str) -> None:
    arguments, kind, message = WRONG[case]
    model = arguments.get("model", ("Bert", "Model"))
    if model is GPT2:
        model = GPT2()
    elif isinstance(model, tuple):
        model = make(*model[:2], **(model[2] if len(model) > 2 else {}))
    with pytest.raises(kind, match=message):
        hf.pool(**{"lengths": {0: 8}, **arguments, "model": model})


def test_errors_later(tmp_path: Path) -> None:
    plain = make()
    plain.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pooled when it was saved; .* is a plain bert"):
        hf.from_pretrained(tmp_path)
    model = pooled(copy.deepcopy(plain))
    with pytest.raises(ValueError, match=r"pooled already, .*'lengths': {'0': 24, '2': 12}"):
        hf.pool(model, LENGTHS)
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(batch, n\).*; got \(3, 1, 40, 40\)"):
        model(batch()["input_ids"], torch.ones(3, 1, N, N))
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(3, 40\), .*; got \(3, 12\)"):
        hf.mean(plain(**batch()), torch.ones(3, 12))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "knockout": model.config.knockout}))
    with pytest.raises(ValueError, match=r"lacks weights of its pools, .*pools\.0"):
        hf.from_pretrained(tmp_path)


def test_without_transformers_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import knockout.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "ImportError: knockout.hf needs transformers 5 or later: pip install 'knockout-topk[hf]'" in done.stderr
