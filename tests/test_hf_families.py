"""Each family of pretrained encoders, with the same checks: the table in docs/pretrained.md."""

from __future__ import annotations

import copy
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from knockout import hf
from knockout.hf.families import FAMILIES as REGISTERED
from tests.cases import same_bits
from tests.hf_cases import CASES, FAMILIES, LENGTHS, TEXTS, batch, config_of, make, owner, pooled

close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
ATTENTION = [(name, how) for name in FAMILIES for how in ("eager", "sdpa") if how == "eager" or CASES[name].sdpa]


def real_tokens(inputs: dict[str, Tensor], like: Tensor) -> Tensor:
    return inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones(like.shape[:2]).bool()


def test_every_family_that_is_registered_is_tested() -> None:
    assert {owner(make(name)).config.model_type for name in FAMILIES} == REGISTERED.keys()


def test_the_documentation_names_every_family() -> None:
    text = (Path(__file__).parents[1] / "docs" / "pretrained.md").read_text()
    assert [kind for kind in REGISTERED if f"`{kind}`" not in text] == []


@pytest.mark.parametrize(("family", "attention"), [each for each in ATTENTION if each[0] in TEXTS])
def test_padding_does_not_matter(family: str, attention: str) -> None:
    model = pooled(make(family, attn_implementation=attention))
    whole = batch(family)
    out = model(**whole)
    assert out.last_hidden_state.shape == (3, 12, 32)
    assert out.attention_mask.sum(dim=-1).tolist() == [12, 12, 7]
    for i, n in enumerate(whole["attention_mask"].sum(dim=-1).tolist()):
        alone = model(whole["input_ids"][i : i + 1, :n])
        k = min(n, 12)
        close(out.last_hidden_state[i, :k], alone.last_hidden_state[0])
        close(out.positions[i, :k], alone.positions[0])
        assert out.leaders[i].tolist() == alone.leaders[0].tolist() + [-1] * (12 - k)
        close(hf.mean(out)[i], hf.mean(alone)[0])


@pytest.mark.parametrize("family", TEXTS)
def test_padding_in_front_does_not_matter(family: str) -> None:
    """Where positions are relative; the others have another embedding for each position."""
    if family not in ("DebertaV2", "MPNet", "ModernBert", "MT5Encoder", "T5Encoder"):
        pytest.skip("absolute positions")
    model = pooled(make(family), keep=0)
    ids, mask = torch.randint(5, 100, (1, 30)), torch.arange(40) >= 10
    padded = torch.nn.functional.pad(ids, (10, 0), value=1)  # that of MPNet, which counts positions from there
    out, alone = model(padded, mask.long().unsqueeze(0)), model(ids)
    close(out.last_hidden_state, alone.last_hidden_state, rtol=1e-4, atol=1e-4)
    assert torch.equal(out.leaders, alone.leaders + 10)


@pytest.mark.parametrize(("family", "attention"), ATTENTION)
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("unpool", [False, True])
def test_enough_slots_change_nothing(family: str, attention: str, padding: bool, unpool: bool) -> None:
    plain = make(family, attn_implementation=attention)
    model = pooled(copy.deepcopy(plain), {0: 64, 2: 50}, unpool=unpool)
    inputs = batch(family, padding)
    out, expected = model(**inputs), plain(**inputs)
    real = real_tokens(inputs, expected.last_hidden_state)
    same_bits(out.last_hidden_state[real], expected.last_hidden_state[real])
    assert torch.equal(out.attention_mask.bool(), real)


def only(kept: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A mask of attention for all tokens (batch, 1, n, n), in which only those that were kept are seen."""
    hidden = ~kept[:, None, None, :]
    if mask is None:
        mask = torch.zeros(len(kept), 1, kept.shape[1], kept.shape[1], dtype=dtype)
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, torch.finfo(dtype).min) if mask.is_floating_point() else mask * ~hidden


@pytest.mark.parametrize(("family", "attention"), ATTENTION)
def test_tokens_that_are_left_see_each_other_as_before(family: str, attention: str) -> None:
    """With hard choices, later layers must give what they give for all tokens, of which only those left are seen."""
    plain = make(family, attn_implementation=attention)
    model = pooled(copy.deepcopy(plain), {0: 15}, hard_eval=True)
    inputs = batch(family)
    out = model(**inputs)
    n = plain(**inputs).last_hidden_state.shape[1]
    left = out.leaders.clamp(min=0)
    kept = torch.zeros(3, n + 1, dtype=torch.bool).scatter(1, out.leaders % (n + 1), True)[:, :n]

    def hide(layer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        place = list(inspect.signature(layer.forward).parameters).index("attention_mask")
        x = args[0]
        if len(args) > place:
            return (*args[:place], only(kept, args[place], x.dtype), *args[place + 1 :]), options
        return args, {**options, "attention_mask": only(kept, options.get("attention_mask"), x.dtype)}

    # ALBERT calls each of its two groups twice: all calls but the first see less.
    calls: list[int] = []

    def hide_later(layer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        calls.append(0)
        return None if len(calls) == 1 else hide(layer, args, options)

    family_of = REGISTERED[owner(plain).config.model_type]
    for layer in family_of.layers_of(owner(plain)):
        layer.register_forward_pre_hook(hide_later, with_kwargs=True)
    whole = plain(**inputs).last_hidden_state
    expected = whole.gather(1, left.unsqueeze(-1).expand(-1, -1, whole.shape[-1]))
    real = out.attention_mask.bool()
    assert len(calls) == 4
    close(out.last_hidden_state[real], expected[real])


@pytest.mark.parametrize("family", [name for name in FAMILIES if CASES[name].sdpa])
def test_attention_is_the_same_in_both_forms(family: str) -> None:
    plain = make(family)
    other = type(plain)(config_of(family, attn_implementation="eager")).eval()
    other.load_state_dict(plain.state_dict())
    inputs = batch(family)
    one, two = (pooled(each, hard_eval=True)(**inputs) for each in (plain, other))
    assert torch.equal(one.leaders, two.leaders)
    real = one.attention_mask.bool()
    close(one.last_hidden_state[real], two.last_hidden_state[real])


@pytest.mark.parametrize("family", FAMILIES)
def test_front_tokens_are_kept_and_gradients_reach_every_scorer(family: str) -> None:
    model = pooled(make(family)).train()
    out = model(**batch(family))
    kept = CASES[family].kept
    assert torch.equal(out.leaders[:, :kept], torch.arange(kept).expand(3, kept))
    hf.mean(out).square().sum().backward()
    for each in owner(model).pools.values():
        assert each.scorer.weight.grad.any()
        assert each.keep == kept


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded(family: str, tmp_path: Path) -> None:
    plain = make(family)
    model = pooled(copy.deepcopy(plain), unpool=family in ("Albert", "ViT"))
    model.save_pretrained(tmp_path)
    again: Any = hf.from_pretrained(tmp_path)
    assert type(again) is type(model)
    inputs = batch(family)
    for one, other in zip(again(**inputs).to_tuple(), model(**inputs).to_tuple(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)  # weights may lie at other addresses: other kernels
    unpooled: Any = type(plain).from_pretrained(tmp_path)
    close(unpooled(**inputs).last_hidden_state, plain(**inputs).last_hidden_state)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing(family: str) -> None:
    case = CASES[family]
    model = pooled(make(family, **case.no_dropout)).train()
    if not case.checkpoints:
        with pytest.raises(ValueError, match="does not support gradient checkpointing"):
            model.gradient_checkpointing_enable()
        return
    inputs = batch(family)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        (hf.mean(model(**inputs)).square().sum() + hf.mean(model(**inputs)).sin().sum()).backward()
        return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    model(**inputs)  # units are measured
    expected = gradients()
    calls: list[int] = []
    for layer in REGISTERED[owner(model).config.model_type].layers_of(owner(model)):
        layer.register_forward_pre_hook(lambda *_: calls.append(0))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = gradients()
    assert len(calls) == 16  # each of four layers twice, in each of two calls
    assert found.keys() == expected.keys()
    for name in expected:
        close(found[name], expected[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16(family: str) -> None:
    model = pooled(make(family)).to(torch.bfloat16).train()
    inputs = {key: x.bfloat16() if x.is_floating_point() else x for key, x in batch(family).items()}
    out = model(**inputs)
    assert out.last_hidden_state.dtype == torch.bfloat16
    assert out.positions.dtype == torch.float32
    mean = hf.mean(out)
    assert mean.isfinite().all()
    mean.float().square().sum().backward()
    assert all(each.scorer.weight.grad.isfinite().all() for each in owner(model).pools.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_tuples(family: str) -> None:
    model, inputs = pooled(make(family)), batch(family)
    out = model(**inputs, output_hidden_states=True)
    n = out.hidden_states[0].shape[1]
    assert [each.shape[1] for each in out.hidden_states] == [n, n, 24, 24, 12]
    row = model(**inputs, return_dict=False)
    assert isinstance(row, tuple)
    same_bits(row[0], out.last_hidden_state)


# --- an output for each token ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_back_to_all_tokens(family: str) -> None:
    """In training and with padding: padding changes nothing, and every scorer gets a gradient."""
    model, inputs = pooled(make(family), unpool=True), batch(family)
    out = model(**inputs)
    real = real_tokens(inputs, out.last_hidden_state)
    n = real.shape[1]
    assert torch.equal(out.attention_mask.bool(), real)
    assert torch.equal(out.leaders, torch.where(real, torch.arange(n), -1))
    assert not torch.allclose(out.last_hidden_state, make(family)(**inputs).last_hidden_state)
    if family in TEXTS:
        for i, count in enumerate(real.sum(dim=-1).tolist()):
            alone = model(inputs["input_ids"][i : i + 1, :count])
            close(out.last_hidden_state[i, :count], alone.last_hidden_state[0])
    model.train()(**inputs).last_hidden_state[real].square().sum().backward()
    assert all(each.scorer.weight.grad.any() for each in owner(model).pools.values())


PER_TOKEN = [
    (name, head)
    for name in ("Bert", "DistilBert", "Albert", "MPNet", "DebertaV2", "ModernBert")
    for head in ("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering")
]


@pytest.mark.parametrize(("family", "head"), [*PER_TOKEN, ("T5Encoder", "ForTokenClassification")])
def test_heads_for_each_token(family: str, head: str, tmp_path: Path) -> None:
    plain = make(family, head)
    with pytest.raises(ValueError, match=f"got {type(plain).__name__}, which answers for each token.*unpool=True"):
        hf.pool(copy.deepcopy(plain), LENGTHS)
    model, inputs = pooled(copy.deepcopy(plain), unpool=True), batch(family)
    out, expected = model(**inputs), plain(**inputs)
    assert out[0].shape == expected[0].shape
    assert not torch.allclose(out[0], expected[0])
    enough = pooled(copy.deepcopy(plain), {1: 60}, unpool=True)(**inputs)[0]
    real = inputs["attention_mask"].bool()
    same_bits(enough[real], expected[0][real])
    model.save_pretrained(tmp_path)
    same_bits(hf.from_pretrained(tmp_path)(**inputs)[0], out[0])


@pytest.mark.parametrize("name", ["T5Model", "T5ForConditionalGeneration"])
def test_decoders_attend_to_all_tokens(name: str) -> None:
    torch.manual_seed(0)
    config = config_of("T5Encoder", num_decoder_layers=2, decoder_start_token_id=0)
    plain = getattr(transformers, name)(config).eval()
    with pytest.raises(ValueError, match=f"got {name}, whose decoder attends to all tokens .*unpool=True"):
        hf.pool(copy.deepcopy(plain), LENGTHS)
    inputs = {**batch(), "decoder_input_ids": torch.randint(5, 100, (3, 6))}
    model = pooled(copy.deepcopy(plain), unpool=True)
    assert not torch.allclose(model(**inputs)[0], plain(**inputs)[0])
    same_bits(pooled(copy.deepcopy(plain), {1: 60}, unpool=True)(**inputs)[0], plain(**inputs)[0])
    if name == "T5ForConditionalGeneration":
        assert model.generate(**batch(), max_new_tokens=4, min_new_tokens=4).shape == (3, 5)


# --- heads on images, and towers inside of other models -------------------------------------------


@pytest.mark.parametrize("family", ["ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "CLIP", "Siglip"])
def test_image_classifiers(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if family in ("CLIP", "Siglip"):
        vision = config_of(f"{family}Vision").to_dict()
        text = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = getattr(transformers, f"{family}Config")(vision_config=vision, text_config=text)
    else:
        config = config_of(family)
    plain = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    images = torch.randn(2, 3, 24, 24)
    model = pooled(copy.deepcopy(plain))
    assert model(images).logits.shape == plain(images).logits.shape
    close(pooled(copy.deepcopy(plain), {1: 60})(images).logits, plain(images).logits)  # means of another memory layout
    model.save_pretrained(tmp_path)
    close(hf.from_pretrained(tmp_path)(images).logits, model(images).logits)


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_the_vision_tower_of_two(family: str) -> None:
    torch.manual_seed(0)
    vision = config_of(f"{family}Vision").to_dict()
    text = {**CASES["Bert"].settings, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{family}Config")(vision_config=vision, text_config=text, projection_dim=32)
    plain = getattr(transformers, f"{family}Model")(config).eval()
    model = pooled(copy.deepcopy(plain))
    inputs = {"pixel_values": torch.randn(2, 3, 24, 24), **{key: x[:2] for key, x in batch().items()}}
    found, expected = model(**inputs), plain(**inputs)
    assert found.vision_model_output.last_hidden_state.shape == (2, 12, 32)
    assert not torch.allclose(found.image_embeds, expected.image_embeds)
    same_bits(found.text_embeds, expected.text_embeds)


# --- what moves tokens, or where they are ---------------------------------------------------------


@pytest.mark.parametrize("family", ["Bert", "DebertaV2", "DINOv3ViT", "ModernBert", "MPNet", "T5Encoder"])
@pytest.mark.parametrize("padding", [False, True])
def test_slots_in_another_order_are_the_same_tokens(family: str, padding: bool) -> None:
    plain, inputs = make(family), batch(family, padding)
    model = pooled(copy.deepcopy(plain), {0: 64}, order="score")
    out, expected = model(**inputs), plain(**inputs).last_hidden_state
    moved = expected.gather(1, out.leaders.clamp(min=0).unsqueeze(-1).expand(-1, -1, 32))
    real = out.attention_mask.bool()
    assert not torch.equal(out.leaders, torch.arange(out.leaders.shape[1]).expand_as(out.leaders))
    close(out.last_hidden_state[real], moved[real])


def test_position_ids_go_with_their_tokens() -> None:
    plain, inputs = make("ModernBert"), batch("ModernBert")
    model = pooled(copy.deepcopy(plain), {0: 64}, order="score")
    where = 3 * torch.arange(40).unsqueeze(0)
    out, expected = model(**inputs, position_ids=where), plain(**inputs, position_ids=where).last_hidden_state
    moved = expected.gather(1, out.leaders.clamp(min=0).unsqueeze(-1).expand(-1, -1, 32))
    real = out.attention_mask.bool()
    torch.testing.assert_close(out.last_hidden_state[real], moved[real], rtol=0, atol=1e-6)
    default = plain(**inputs).last_hidden_state
    assert (default - expected).abs().max() > 1e-5


@pytest.mark.parametrize("family", TEXTS)
def test_padding_where_the_class_token_should_be(family: str) -> None:
    inputs = batch(family)
    inputs["attention_mask"][1, :3] = 0
    if CASES[family].kept:
        with pytest.raises(ValueError, match=r"attention_mask must be 1 for the first token, .* Pad at the end"):
            pooled(make(family))(**inputs)
    inputs["attention_mask"][1] = 0  # a sequence of padding alone
    model = pooled(make(family), keep=CASES[family].kept)
    assert model(**inputs).attention_mask.sum(dim=-1).tolist() == [12, 0, 7]


def test_a_mask_of_another_length() -> None:
    model = pooled(make("T5Encoder"))
    for mask in (torch.ones(3, 39), torch.ones(2, 40)):
        with pytest.raises(ValueError, match=r"attention_mask must have shape \(3, 40\), that of the tokens; got"):
            model(batch()["input_ids"], mask.long())


# --- refusals -------------------------------------------------------------------------------------


def test_modernbert_needs_masks() -> None:
    message = r'attn_implementation must be "sdpa" or "eager" .*; got \'flex_attention\''
    with pytest.raises(ValueError, match=message):
        pooled(make("ModernBert", attn_implementation="flex_attention"))
    model = pooled(make("ModernBert", global_attn_every_n_layers=3))  # of which the first sees all tokens
    model.config._attn_implementation = "flex_attention"
    tokens = hf.Tokens(torch.zeros(1, 2, 32), None, torch.zeros(1, 2), torch.arange(2).unsqueeze(0))
    with pytest.raises(ValueError, match=message):
        REGISTERED["modernbert"].inputs(model, model.layers[1], tokens, {})


def test_registers_with_rotary_positions_are_kept() -> None:
    with pytest.raises(ValueError, match=r"keep must be at least 5 for this model, .*; got 1"):
        hf.pool(make("DINOv3ViT"), LENGTHS, keep=1)


def test_a_single_layer_with_a_convolution() -> None:
    model = make("DebertaV2 with a convolution", num_hidden_layers=1)
    with pytest.raises(ValueError, match="its convolution needs all tokens"):
        hf.pool(model, {0: 8})


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_a_mean_over_all_tokens_needs_all_of_them(head: str) -> None:
    name = f"ModernBert{head}"
    plain = getattr(transformers, name)(config_of("ModernBert", classifier_pooling="mean")).eval()
    with pytest.raises(ValueError, match=f'classifier_pooling must be "cls" for a pooled {name}.*unpool=True'):
        hf.pool(copy.deepcopy(plain), LENGTHS)
    inputs = batch("ModernBert")
    if head == "ForMultipleChoice":
        inputs = {key: x.unsqueeze(0) for key, x in inputs.items()}
    close(pooled(copy.deepcopy(plain), {0: 64}, unpool=True)(**inputs).logits, plain(**inputs).logits)
    pooled(plain, unpool=True)(**inputs)


@pytest.mark.parametrize("family", ["Dinov2", "Dinov2WithRegisters", "DINOv3ViT"])
def test_backbones_read_other_layers(family: str) -> None:
    model = getattr(transformers, f"{family}Backbone")(config_of(family))
    with pytest.raises(ValueError, match=f"got {family}Backbone, which takes those of layers"):
        hf.pool(model, LENGTHS, unpool=True)


# --- a family of one's own ------------------------------------------------------------------------


def test_a_family_of_your_own() -> None:
    class MobileBert(hf.Family):
        kinds = ("mobilebert",)

    with pytest.raises(TypeError, match=r"family must be a knockout.hf.Family with kinds"):
        hf.register(MobileBert)  # type: ignore[arg-type]
    config = transformers.MobileBertConfig(
        vocab_size=100, num_hidden_layers=4, num_attention_heads=2, hidden_size=32, intra_bottleneck_size=16
    )
    model: Any = transformers.MobileBertModel
    plain = model(config).eval()
    with pytest.raises(ValueError, match=r"families .*'mobilebert'"):
        hf.pool(plain, LENGTHS)
    hf.register(MobileBert())
    try:
        out = pooled(copy.deepcopy(plain))(**batch())
        assert out.last_hidden_state.shape == (3, 12, 32)
        same_bits(pooled(copy.deepcopy(plain), {1: 60})(**batch(padding=False))[0], plain(**batch(padding=False))[0])
    finally:
        del REGISTERED["mobilebert"]
