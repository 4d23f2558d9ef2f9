"""Bad input: an error that names the argument, what came and what to pass, before any work is done."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

import knockout
from knockout import boost, methods, metrics
from knockout.nn import TokenPool, TopK

V, S = torch.randn(4, 10, 3), torch.randn(4, 10)
K = torch.arange(4)  # a k for each row


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: knockout.topk(V, S, 0), ValueError, ["k must be at least 1", "got 0"]),
        (lambda: knockout.topk(V, S, -3), ValueError, ["k must be at least 1", "got -3"]),
        (lambda: knockout.topk(V, S, 11), ValueError, ["k must be at most n", "k = 11", "n = 10", "(4, 10)"]),
        (lambda: knockout.topk(V, S, 2.0), ValueError, ["k must be an int", "fraction between 0 and 1", "2.0"]),
        (lambda: knockout.topk(V, S, 1.0), ValueError, ["k must be an int", "fraction between 0 and 1", "1.0"]),
        (lambda: knockout.topk(V, S, 0.0), ValueError, ["k must be an int", "fraction between 0 and 1", "0.0"]),
        (lambda: knockout.topk(V, S, -0.5), ValueError, ["k must be an int", "fraction between 0 and 1", "-0.5"]),
        (lambda: knockout.select(S, float("nan")), ValueError, ["k must be an int", "fraction between 0 and 1", "nan"]),
        (lambda: methods.hard(S, 1.5), ValueError, ["k must be an int", "fraction between 0 and 1", "1.5"]),
        (lambda: methods.iterative(S, 1.5), ValueError, ["k must be an int", "fraction between 0 and 1", "1.5"]),
        (lambda: knockout.select(S, torch.tensor(0.5)), TypeError, ["k as a tensor must have integers", "float32"]),
        (
            lambda: knockout.select(S, S[:, 0], max_k=3),
            TypeError,
            ["k as a tensor must have integers", "Pass k.long()"],
        ),
        (lambda: knockout.select(S, S[:, 0] > 0, max_k=3), TypeError, ["k as a tensor must have integers", "bool"]),
        (lambda: knockout.select(S, K.to_sparse(), max_k=3), TypeError, ["k must be a dense tensor", "sparse"]),
        (lambda: knockout.select(S, K), TypeError, ["k as a tensor", "needs max_k", "max_k=..."]),
        (lambda: knockout.select(S, 3, max_k=3), TypeError, ["max_k must come with a tensor k", "k = 3"]),
        (lambda: knockout.select(S, 0.3, max_k=3), TypeError, ["max_k must come with a tensor k", "k = 0.3"]),
        (lambda: knockout.select(S, [1, 2], max_k=3), TypeError, ["max_k must come with a tensor k", "[1, 2]"]),
        (lambda: knockout.select(S, K, max_k=2.0), TypeError, ["max_k must be an int", "2.0"]),
        (lambda: knockout.select(S, K, max_k=0), ValueError, ["max_k must be at least 1", "0"]),
        (lambda: knockout.select(S, K, max_k=11), ValueError, ["max_k must be at most n", "n = 10", "(4, 10)"]),
        (lambda: knockout.select(S, K, max_k=2), ValueError, ["k must be from 0 to 2", "max_k", "got 3", "clamp"]),
        (lambda: knockout.select(S, K - 1, max_k=3), ValueError, ["k must be from 0 to 3", "got -1"]),
        (lambda: knockout.select(S, K[:3], max_k=3), ValueError, ["batch dimensions of k", "(4,)", "(3,)"]),
        (lambda: knockout.select(S, K.to("meta"), max_k=3), ValueError, ["k must be on the device", "meta", "cpu"]),
        (lambda: methods.hard(S, K, max_k=2), ValueError, ["k must be from 0 to 2", "got 3"]),
        (lambda: methods.lapsum(S, K), TypeError, ["k as a tensor", "needs max_k"]),
        (lambda: methods.softsort(S, 2, max_k=2), TypeError, ["max_k must come with a tensor k"]),
        (lambda: knockout.nn.TopK(2)(V, S, k=K), ValueError, ["k must be from 0 to 2", "the k of the layer", "got 3"]),
        (lambda: knockout.nn.TopK(0.3)(V, S, k=K), TypeError, ["k must be None", "a fraction, 0.3"]),
        (lambda: knockout.nn.TopK(2).select(S, k=2), TypeError, ["k must be a tensor of integers", "int"]),
        (lambda: TokenPool(3, 2)(V, k=K), ValueError, ["k must be from 0 to 2", "the k of the pool", "got 3"]),
        (lambda: TokenPool(3, ratio=0.3)(V, k=K), TypeError, ["k must be None", "a ratio, 0.3"]),
        (lambda: TokenPool(3, 3)(V, k=K.expand(2, 4)), ValueError, ["k must not have more rows than x"]),
        (lambda: knockout.select(S, 0.5j), TypeError, ["k must be an int", "fraction", "complex"]),
        (lambda: knockout.select(S[:, :0], 0.5), ValueError, ["scores must have candidates", "(4, 0)"]),
        (lambda: knockout.topk(V, S, "2"), TypeError, ["k must be an int", "str"]),
        (lambda: knockout.topk(V, S, True), TypeError, ["k must be an int", "bool"]),
        (lambda: knockout.topk(V, S, torch.tensor(2)), TypeError, ["k as a tensor", "needs max_k"]),
        (lambda: knockout.topk(V, S.long(), 2), TypeError, ["scores must be", "int64", "scores.float()"]),
        (lambda: knockout.topk(V.long(), S, 2), TypeError, ["values must be", "int64", "values.float()"]),
        (lambda: knockout.topk(V, S.tolist(), 2), TypeError, ["scores must be a torch.Tensor", "list"]),
        (lambda: knockout.topk(V.tolist(), S, 2), TypeError, ["values must be a torch.Tensor", "list"]),
        (lambda: knockout.topk(V, S > 0, 2), TypeError, ["scores must be", "bool"]),
        (lambda: knockout.topk(V, S.cfloat(), 2), TypeError, ["scores must be", "complex64"]),
        (lambda: knockout.topk(V, torch.tensor(1.0), 1), ValueError, ["scores must have shape (..., n)"]),
        (lambda: knockout.topk(V, torch.zeros(4, 0), 1), ValueError, ["k must be at most n", "n = 0"]),
        (
            lambda: knockout.topk(V, S[:, :9], 2),
            ValueError,
            ["values must have shape (..., n, d)", "n = 9", "(4, 10, 3)"],
        ),
        (lambda: knockout.topk(S, S, 2), ValueError, ["values must have shape", "(4, 10)", "values.unsqueeze(-1)"]),
        (lambda: knockout.topk(V[:3], S, 2), ValueError, ["batch dimensions of values", "(4,)", "(3,)"]),
        (
            lambda: knockout.topk(V.to("meta"), S, 2),
            ValueError,
            ["values must be on the device of scores", "meta", "cpu"],
        ),
        (lambda: knockout.topk(V, S, 2, mask=S), TypeError, ["mask must be a bool tensor", "float32"]),
        (lambda: knockout.topk(V, S, 2, mask=[True] * 10), TypeError, ["mask must be a bool tensor", "list"]),
        (lambda: knockout.topk(V, S, 2, mask=S[:, :9] > 0), ValueError, ["mask must have shape", "n = 10", "(4, 9)"]),
        (lambda: knockout.topk(V, S, 2, mask=S[:3] > 0), ValueError, ["batch dimensions of mask", "(4,)", "(3,)"]),
        (lambda: knockout.topk(V, S, 2, mask=(S > 0).to("meta")), ValueError, ["mask must be on the device", "meta"]),
        (
            lambda: knockout.topk(V, S, 2, order="index"),
            ValueError,
            ["order must be one of 'score', 'position'", "'index'"],
        ),
        (lambda: knockout.topk(V, S, 2, hard=1), TypeError, ["hard must be True or False", "1"]),
        (
            lambda: knockout.topk(V, S, 2, boost="sharp"),
            TypeError,
            ["boost must be a number, a knockout.boost", "'sharp'"],
        ),
        (
            lambda: knockout.topk(V, S, 2, boost=boost.Relative),
            TypeError,
            ["boost must be a number, a knockout.boost"],
        ),
        (lambda: knockout.topk(V, S, 2, boost=0), ValueError, ["Relative: c must be positive and finite", "0"]),
        (
            lambda: knockout.topk(V, S, 2, boost=float("nan")),
            ValueError,
            ["Relative: c must be positive and finite", "nan"],
        ),
        (lambda: boost.Adaptive(0, unit=1), ValueError, ["Adaptive: c must be positive", "0"]),
        (lambda: boost.Adaptive(1, unit=0), ValueError, ["Adaptive: unit must be positive", "0"]),
        (lambda: boost.Adaptive(1, unit=torch.ones(1)), TypeError, ["Adaptive: unit must be", "without dimensions"]),
        (lambda: boost.Adaptive(1, unit=torch.tensor(0.0)), ValueError, ["Adaptive: unit must be positive", "0.0"]),
        (lambda: boost.Adaptive(1, unit=1, alpha=3), ValueError, ["Adaptive: alpha must be 1, 1.5 or 2", "3"]),
        (
            lambda: knockout.topk(V, S, 2, boost=boost.Adaptive(1, unit=torch.tensor(1.0, device="meta"))),
            ValueError,
            ["Adaptive: unit must be on the device of scores, cpu", "meta"],
        ),
        (lambda: boost.Relative(4, unit=0), ValueError, ["Relative: unit must be positive", "0"]),
        (
            lambda: boost.Relative(4, unit=float("inf")),
            ValueError,
            ["Relative: unit must be positive and finite", "inf"],
        ),
        (lambda: boost.Relative(4, alpha=1.2), ValueError, ["Relative: alpha must be 1, 1.5 or 2", "1.2"]),
        (lambda: boost.Fixed("4"), TypeError, ["Fixed: c must be an int or a float", "str"]),
        (lambda: boost.Fixed(4, alpha=1.2), ValueError, ["Fixed: alpha must be 1, 1.5 or 2", "1.2"]),
        (lambda: boost.Base(1), ValueError, ["Base: b must be above 1", "1"]),
        (lambda: boost.Power(0.5), ValueError, ["Power: b must be above 1", "0.5"]),
        (lambda: boost.Power(20, alpha=None), ValueError, ["Power: alpha must be 1, 1.5 or 2", "None"]),
        (lambda: knockout.select(S, 2).apply(V[:, :9]), ValueError, ["values must have shape", "n = 10"]),
        (lambda: knockout.select(S, 2) @ V.long(), TypeError, ["values must be", "int64"]),
        (lambda: methods.hard(S, 0), ValueError, ["k must be at least 1"]),
        (lambda: methods.iterative(S, 11), ValueError, ["k must be at most n"]),
        (lambda: methods.iterative(S, 2, alpha=0), ValueError, ["alpha must be positive", "0"]),
        (lambda: methods.iterative(S, 2, peaked="yes"), TypeError, ["peaked must be True or False", "'yes'"]),
        (lambda: metrics.nccs(V, V[..., :2]), ValueError, ["true and approx", "(4, 10, 3)", "(4, 10, 2)"]),
        (lambda: metrics.nccs(V.long(), V), TypeError, ["true must be", "int64"]),
        (lambda: metrics.nccs(V, V[:, :0]), ValueError, ["approx must have shape", "(4, 0, 3)"]),
        (
            lambda: metrics.topk_mass(knockout.select(S, 2), S[:, :5]),
            ValueError,
            ["scores must be those selected from"],
        ),
        (lambda: knockout.topk(S[0], S[0], 2), ValueError, ["values must have shape", "(10,)", "values.unsqueeze(-1)"]),
        (lambda: knockout.topk(V, S, 2, mask=torch.tensor(True)), ValueError, ["mask must have shape", "n = 10", "()"]),
        (lambda: knockout.topk(V, S, 2, boost=True), TypeError, ["boost must be a number", "True"]),
        (lambda: boost.Fixed(True), TypeError, ["Fixed: c must be an int or a float", "bool"]),
        (lambda: knockout.select(S, 2).apply(V[:3]), ValueError, ["batch dimensions of values", "(4,)", "(3,)"]),
        (lambda: knockout.select(S, 2).apply(V.to("meta")), ValueError, ["values must be on the device", "meta"]),
        (
            lambda: knockout.topk(V, S.to(torch.float8_e4m3fn), 2),
            TypeError,
            ["scores must be float16", "float8_e4m3fn"],
        ),
        (lambda: metrics.nccs(V[0, 0], V[0, 0]), ValueError, ["true must have shape", "(3,)"]),
        (lambda: boost.Relative(torch.ones(1)), TypeError, ["Relative: c must be", "without dimensions", "(1,)"]),
        (lambda: boost.Fixed(torch.tensor(4)), TypeError, ["Fixed: c must be", "floating tensor", "int64"]),
        (lambda: boost.Relative(torch.tensor(0.0)), ValueError, ["Relative: c must be positive and finite", "0.0"]),
        (lambda: boost.Fixed(torch.tensor(float("nan"))), ValueError, ["Fixed: c must be positive and finite", "nan"]),
        (lambda: boost.Relative(4, unit=torch.tensor(1.0)), TypeError, ["Relative: unit must be an int or a float"]),
        (
            lambda: knockout.topk(V, S, 2, boost=boost.Relative(torch.tensor(1.0, device="meta"))),
            ValueError,
            ["Relative: c must be on the device of scores, cpu", "meta"],
        ),
        (lambda: boost.Fixed(10**400), ValueError, ["Fixed: c must be positive and finite"]),
        (lambda: boost.Relative(4, alpha=True), ValueError, ["alpha must be 1, 1.5 or 2", "True"]),
        (lambda: boost.Relative(4, alpha=torch.tensor(1.5)), ValueError, ["alpha must be 1, 1.5 or 2", "tensor"]),
        (lambda: knockout.topk(V, S.to_sparse(), 2), TypeError, ["scores must be a dense tensor", "scores.to_dense()"]),
        (lambda: metrics.nccs(V, V[:3]), ValueError, ["batch dimensions of approx", "true, (4,)", "(3,)"]),
        (lambda: metrics.topk_mass(S, S), TypeError, ["selection must be a knockout.Selection", "Tensor"]),
        (lambda: metrics.topk_mass(knockout.select(S, 2), S[:3]), ValueError, ["the selection, (4,)", "(3,)"]),
        (
            lambda: knockout.select(S, 2, mask=(S > 0).to_sparse()),
            TypeError,
            ["mask must be a dense tensor", "to_dense"],
        ),
        (lambda: TokenPool(3, 2)(V.long()), TypeError, ["x must be", "int64", "x.float()"]),
        (lambda: TokenPool(3, 2)(V[0, 0]), ValueError, ["x must have shape (..., n, 3)", "(3,)"]),
        (lambda: TokenPool(3, 2)(V, None, S[0, 0]), ValueError, ["positions must have shape", "n = 10", "()"]),
        (lambda: TokenPool(3, 2)(V, None, S[:3]), ValueError, ["batch dimensions of positions", "of x, (4,)", "(3,)"]),
        (lambda: TokenPool(3, 2)(V, None, S.cfloat()), TypeError, ["positions must be a tensor", "complex64"]),
        (lambda: TokenPool(3, 2)(V, None, S.tolist()), TypeError, ["positions must be a tensor", "list"]),
        (lambda: TokenPool(3, 2)(V, None, S.to("meta")), ValueError, ["positions must be on the device of x", "meta"]),
        (lambda: TokenPool(3, ratio=0.0), ValueError, ["ratio must be a float between 0 and 1", "0.0"]),
        (lambda: TokenPool(3, ratio=1.0), ValueError, ["ratio must be a float between 0 and 1", "1.0"]),
        (lambda: TokenPool(3, ratio=True), ValueError, ["ratio must be a float between 0 and 1", "True"]),
        (lambda: TokenPool(3, ratio="0.5"), ValueError, ["ratio must be a float between 0 and 1", "'0.5'"]),
        (lambda: TokenPool(True, 2), TypeError, ["dim must be an int", "bool"]),
        # Scores as nn.Linear(d, 1) gives them, and a mask as embeddings are multiplied by it.
        (lambda: knockout.topk(V, S[..., None], 3), ValueError, ["n = 1", "pass scores.squeeze(-1)"]),
        (lambda: knockout.topk(V[0], S[0][:, None], 3), ValueError, ["n = 1", "pass scores.squeeze(-1)"]),
        (lambda: knockout.topk(V, S[..., None], 1), ValueError, ["If there are 10 candidates pass scores.squeeze(-1)"]),
        (lambda: knockout.select(S[..., None], 3), ValueError, ["pass scores.squeeze(-1)"]),
        (lambda: methods.lapsum(S[..., None], 3), ValueError, ["pass scores.squeeze(-1)"]),
        (lambda: knockout.select(S[..., None], 0.3) @ V, ValueError, ["If there are 10 candidates pass scores.squ"]),
        (lambda: TopK(3)(V, S[..., None]), ValueError, ["If there are 10 candidates pass scores.squeeze(-1)"]),
        (lambda: knockout.select(S[..., None], 1, mask=S > 0), ValueError, ["Pass scores.squeeze(-1)"]),
        (lambda: knockout.select(S, 2, mask=S[..., None] > 0), ValueError, ["(4, 10, 1)", "Pass mask.squeeze(-1)"]),
        (lambda: TokenPool(3, 2)(V, S[..., None] > 0), ValueError, ["(4, 10, 1)", "Pass mask.squeeze(-1)"]),
        # Other shapes, and what is no tensor.
        (lambda: knockout.topk(S, V, 2), ValueError, ["If values and scores are swapped: values come first"]),
        (lambda: knockout.topk(V.mT, S, 2), ValueError, ["If their last dimension is n pass values.mT"]),
        (lambda: knockout.topk(V.tolist(), S, 2), TypeError, ["Pass torch.as_tensor(values)"]),
        (lambda: knockout.topk(list(V), S, 2), TypeError, ["Pass torch.stack(values)"]),
        (lambda: knockout.select(S[0].tolist(), 1), TypeError, ["Pass torch.as_tensor(scores)"]),
        (lambda: knockout.select(S.numpy(), 1), TypeError, ["Pass torch.as_tensor(scores)"]),
        (lambda: TokenPool(3, 2)(V.numpy()), TypeError, ["x must be a torch.Tensor", "Pass torch.as_tensor(x)"]),
        (lambda: knockout.select(S, 2, mask=(S > 0).numpy()), TypeError, ["Pass torch.as_tensor(mask)"]),
        (lambda: knockout.select(S, 2, mask=(S > 0).long()), TypeError, ["int64. Pass mask.bool()"]),
        (lambda: knockout.select(S, 2, mask=0 * S), TypeError, ["mask.bool(), or mask == 0 for a mask that is added"]),
    ],
)
def test_bad_input(call: Callable[[], Any], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_nothing_is_computed_before_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the tournament was played for bad arguments")

    monkeypatch.setattr(knockout.functional, "tournament", fail)
    with pytest.raises(ValueError, match="values must have shape"):
        knockout.topk(V[:, :9], S, 2)
    with pytest.raises(ValueError, match="order must be"):
        knockout.topk(V, S, 2, order="index")


@pytest.mark.parametrize("shape", [(0, 10, 3), (4, 10, 0), (0, 10, 0), (2, 0, 10, 3)])
@pytest.mark.parametrize("hard", [False, True])
def test_empty_batches_and_empty_vectors(shape: tuple[int, ...], hard: bool) -> None:
    values, scores = torch.randn(*shape, requires_grad=True), torch.randn(*shape[:-1], requires_grad=True)
    out = knockout.topk(values, scores, 3, hard=hard)
    assert out.values.shape == (*shape[:-2], 3, shape[-1])
    assert out.scores.shape == out.indices.shape == out.mask.shape == (*shape[:-2], 3)
    gradients = torch.autograd.grad(out.values.sum(), (values, scores))
    assert [gradient.shape for gradient in gradients] == [values.shape, scores.shape]
    for method in (methods.hard(scores, 3), methods.iterative(scores, 3)):
        assert method.apply(values).shape == out.values.shape
        assert method.weights().shape == (*shape[:-2], 3, 10)


def test_an_integer_like_k_will_do() -> None:
    np = pytest.importorskip("numpy")
    assert knockout.topk(V, S, np.int64(3), boost=np.float32(2)).values.shape == (4, 3, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: knockout.topk(V[:, :9], S, 2),
        lambda: knockout.topk(V, S, 11),
        lambda: knockout.topk(V[0, :9], S[0], 2),
        lambda: knockout.select(S, 2, mask=S[:, :9] > 0),
        lambda: knockout.select("0.1", 2),
    ],
)
def test_no_hint_where_none_would_help(call: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert not any(word in str(caught.value).lower() for word in ("pass ", "squeeze", "swapped"))


def test_the_hint_to_unsqueeze_is_given_only_where_it_helps() -> None:
    with pytest.raises(ValueError, match="values must have shape") as caught:
        knockout.topk(V[:, :9], S, 2)
    assert "unsqueeze" not in str(caught.value)


def test_nothing_is_computed_before_the_batch_of_the_mask_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the tournament was played for bad arguments")

    monkeypatch.setattr(knockout.functional, "tournament", fail)
    with pytest.raises(ValueError, match=r"batch dimensions of values must broadcast .*\(4,\); got \(3,\)"):
        knockout.topk(V[:3], S[0], 2, mask=S > 0)


def test_sizes_of_layers_may_be_any_numbers() -> None:
    np = pytest.importorskip("numpy")
    for sizes in ({"k": np.int64(5)}, {"ratio": 0.5}, {"ratio": np.float32(0.5)}, {"ratio": Fraction(1, 2)}):
        assert TokenPool(np.int64(3), **sizes)(V).x.shape == (4, 5, 3)
    assert TokenPool(1, 2)(V[..., :1], S > 0).x.shape == (4, 2, 1)
    assert TokenPool(3, 2)(V, None, S[:1]).x.shape == TokenPool(3, 2)(V, None, S[0]).x.shape == (4, 2, 3)


def test_k_may_be_anything_that_counts() -> None:
    class Three:
        def __index__(self) -> int:
            return 3

    assert knockout.topk(V, S, Three()).values.shape == (4, 3, 3)
