"""A selection in a notebook: what its HTML says, how large it may get, and that it never raises."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

import knockout
from knockout import methods
from knockout.nn.pool import Pooled
from knockout.notebook import SLOTS, _View, to_html
from knockout.selection import Selection
from tests.cases import DTYPES, INF, NAN, Watch, randn

LIMIT = 60_000  # bytes


def shown(result: Selection | Pooled) -> ElementTree.Element:
    """The parsed HTML of a result."""
    html = result._repr_html_()
    assert html is not None
    assert len(html.encode()) < LIMIT
    assert not any(word in html for word in ("<script", "<style", "http", "url(", "nan", "NaN<"))
    root = ElementTree.fromstring(html)  # well-formed
    for picture in root.iter("svg"):
        assert picture.get("role") == "img"
        assert (picture.get("aria-label") or "").count("Weights of ") == 1
    return root


def words(root: ElementTree.Element) -> str:
    return " | ".join(text for element in root.iter() if (text := (element.text or "").strip()))


def slots(root: ElementTree.Element) -> list[list[str]]:
    """The texts of each slot: its number, its leader, the weight of that, its perplexity."""
    groups = [group for group in root.iter("g") if group.find("title") is not None]
    return [[text.text or "" for text in group.iter("text")] for group in groups]


def test_leaders_weights_perplexity_and_mass() -> None:
    picked = knockout.select(torch.tensor([0.1, 0.9, 0.7, 0.3]), k=2, boost=2.0)
    root = shown(picked)
    assert slots(root) == [["0", "1", ".97", "1.16"], ["1", "2", ".77", "1.71"]]
    for slot, row in zip(slots(root), picked.perplexity().tolist(), strict=True):
        assert slot[3] == f"{row:.2f}"
    text = words(root)
    assert "Selection(k=2, n=4, batch=(), dtype=torch.float32)" in text
    assert "slot 0: 0.966 of 1, 0.0335 of 0; 2 candidates with weight" in text
    assert "mass | .03 | .97 | .77 | .23 | 0 | 1 | 2 | 3 | All slots, all candidates." in text
    (picture,) = root.iter("svg")
    assert picture.get("aria-label") == "Weights of 2 slots and 4 candidates. Leaders: 1, 2."


def test_the_more_weight_the_stronger_the_color_and_leaders_have_a_frame() -> None:
    root = shown(methods.gated(torch.tensor([-1.0, 0.0, -30.0, -INF]), 3))
    paths = [(path.get("stroke-opacity"), path.get("d")) for path in root.iter("path") if path.get("fill") is None]
    # Weights 0.5 and 0.27 and nearly 0, by their square roots in twelfths; then the mass, which is the same.
    assert paths[:3] == [("0.08", "M2 2h1"), ("0.58", "M0 1h1"), ("0.75", "M1 0h1")]
    assert paths[3:] == [("0.08", "M2 0h1"), ("0.58", "M0 0h1"), ("0.75", "M1 0h1")]
    frames = [path.get("d") for path in root.iter("path") if path.get("stroke-width")]
    assert frames == ["M1 0h1v1h-1zM0 1h1v1h-1zM2 2h1v1h-1z", ""]
    heavy = shown(methods.gated(torch.tensor([30.0, 0.0, -INF]), 2, scale=4.0))
    assert [path.get("stroke-opacity") for path in heavy.iter("path")][:2] == ["0.75", "1.00"]
    assert "up to 4;" in words(heavy)


def test_what_is_left_out_is_said() -> None:
    scores = randn(2, 3, 1000)
    text = words(shown(methods.softsort(scores, 20)))
    assert "Row 0, 0 of the batch. 16 of 20 slots, 64 of 1,000 candidates, the leaders and those with most" in text
    assert "“others”: the sum of all others, 936 of which have weight in these slots" in text
    assert "Row 0, 1 of the batch." in text
    assert "Not shown: 4 of 6 rows." in text
    few = words(shown(methods.hard(scores[0, :2], 5)))
    assert "All slots, 5 of 1,000 candidates, those with weight in these slots. " in few
    assert "others" not in few
    assert "Not shown" not in few
    assert "mass" in few
    many = methods.softsort(torch.arange(2.0**17), 40)  # 5 million weights
    assert "The mass is not shown: it would take long." in words(shown(many))


@pytest.mark.parametrize(
    "picked",
    [
        knockout.select(randn(2, 3, 200), 20, 1.0),
        knockout.select(randn(2, 3, 200), 20, 1.0, hard=True),
        methods.hard(randn(2, 3, 200), 5),
        methods.gated(randn(2, 3, 20), 5),
        methods.lapsum(randn(2, 3, 100), 20),
        methods.straight_through(randn(2, 3, 100), 20),
        methods.iterative(randn(2, 3, 40), 18),
        methods.neuralsort(randn(2, 3, 100), 3),
        methods.sinkhorn(randn(2, 3, 100), 20, steps=2),
        methods.gumbel(randn(2, 3, 100), 20),
        methods.perturbed(randn(2, 3, 100), 20, samples=5),
    ],
    ids=lambda picked: type(picked._plan).__name__,
)
def test_the_numbers_are_those_of_the_selection(picked: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[_View] = []
    of = _View.of

    def keep(row: Selection, first: int) -> _View:
        views.append(of(row, first))
        return views[-1]

    monkeypatch.setattr(_View, "of", keep)
    shown(picked)
    for row, view in enumerate(views):
        weights, mass = picked.weights()[0, row], picked.mass()[0, row]
        assert view.leaders == picked.indices[0, row, :SLOTS].tolist()
        assert view.perplexity == pytest.approx(picked.perplexity()[0, row, :SLOTS].tolist())
        assert view.support == (weights[:SLOTS] != 0).sum(dim=-1).tolist()
        assert set(view.leaders) <= set(view.columns)
        assert view.columns == sorted(view.columns)
        total = weights[:SLOTS].sum(dim=0)
        total[view.leaders] += 1e9
        assert set(view.columns) >= set(
            total.topk(min(view.n, 64)).indices[total.topk(min(view.n, 64)).values > 0].tolist()
        )
        left_out = torch.ones(view.n, dtype=torch.bool).index_fill(0, torch.tensor(view.columns), False)
        assert view.others == int((weights[:SLOTS, left_out].sum(dim=0) > 0).sum())
        for got, expected in ((view.weights, weights[:SLOTS]), ([view.mass], mass[None])):
            cells = torch.tensor(got, dtype=torch.float64)
            torch.testing.assert_close(cells[:, : len(view.columns)], expected[:, view.columns])
            if view.others:
                torch.testing.assert_close(cells[:, -1], expected[:, left_out].sum(dim=-1))
    assert len(views) == 2


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_size_gives_a_small_picture(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 80) | st.integers(1, 3000), "n")
    k = data.draw(st.integers(1, min(n, 80)) | st.floats(0.01, 0.1), "k")
    batch = data.draw(st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 1, 2)]), "batch")
    scores = randn(*batch, n, seed=data.draw(st.integers(0, 9)), dtype=data.draw(st.sampled_from(DTYPES)))
    mask = torch.rand(n, generator=torch.Generator().manual_seed(0)) < data.draw(st.sampled_from([0, 0.1, 1]), "kept")
    if data.draw(st.booleans(), "invalid"):
        scores[..., 0] = NAN
    method: Any = data.draw(
        st.sampled_from(
            [knockout.select, methods.softsort, methods.iterative, methods.hard, methods.lml, methods.gated]
        )
    )
    shown(method(scores, k, mask=mask))


def test_the_largest_picture_is_small() -> None:
    picked = methods.softsort(torch.linspace(0, 1, 2**14).expand(3, -1), 40, temperature=1e3)
    root = shown(picked)
    assert len(slots(root)) == 32
    assert sum((path.get("d") or "").count("M") for path in root.iter("path")) > 2 * 16 * 65
    shown(methods.softsort(randn(2, 17), 17, temperature=1e3))  # a number in every cell


@pytest.mark.parametrize("method", [knockout.select, methods.softsort, methods.lapsum])
def test_the_work_does_not_grow_with_slots_and_rows(method: Any) -> None:
    n, k, rows = 2**13, 2**12, 4
    picked = method(randn(rows, n), k)
    made: list[Tensor] = []
    with Watch(made):
        shown(picked)
    sizes = [x.numel() for x in made if x._base is None]
    assert max(sizes) <= 2 * SLOTS * n
    assert sum(sizes) < 1500 * n


def test_invalid_rows_empty_slots_and_rows_without_candidates() -> None:
    scores = torch.tensor([[1.0, NAN, 0.0], [2.0, 1.0, 0.0]])
    for picked in (knockout.select(scores, 2, 1e3), methods.softsort(scores, 2), methods.lapsum(scores, 2)):
        root = shown(picked)
        assert "Row 0 of the batch. A score is NaN or infinite: all results of this row are NaN." in words(root)
        assert [slot[1] for slot in slots(root)] == ["0", "1"]
    for picked in (
        knockout.select(torch.tensor([1.0, -INF, -INF]), 2),
        methods.softsort(torch.tensor([1.0, -INF, -INF]), 2),
    ):
        root = shown(picked)
        assert slots(root) == [["0", "0", "1", "1.00"], ["1", "-", "", "empty"]]
        assert "slot 1: empty" in words(root)
    for n in (3, 300):
        root = shown(knockout.select(torch.full((n,), -INF), 2))
        assert "All slots: empty. No candidate is active." in words(root)
        assert not list(root.iter("svg"))
    for batch in ((0,), (2, 0)):
        assert "The batch has no rows." in words(shown(knockout.select(torch.zeros(*batch, 4), 2)))
    assert slots(shown(knockout.select(torch.zeros(1), 1))) == [["0", "0", "1", "1.00"]]


def test_hard_shows_hard_weights_and_the_perplexity_of_the_soft_ones() -> None:
    picked = knockout.select(torch.tensor([0.1, 0.9, 0.7, 0.3]), k=2, boost=2.0, hard=True)
    assert slots(shown(picked)) == [["0", "1", "1", "1.16"], ["1", "2", "1", "1.71"]]


def test_pooled_tokens_have_their_own_numbers() -> None:
    pool = knockout.nn.TokenPool(4, k=5, keep=2)
    x = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
    pooled = pool(x)
    root = shown(pooled)
    assert [int(leader) for _, leader, *_ in slots(root)] == pooled.leaders[:, 2:].flatten().tolist()
    assert [int(slot) for slot, *_ in slots(root)] == [2, 3, 4] * 2
    titles = [title.text or "" for title in root.iter("title")]
    for title, (slot, leader, *_) in zip(titles, slots(root), strict=True):
        assert title.startswith(f"slot {slot}: ")
        assert f" of {leader}" in title
    text = words(root)
    assert "Pooled(x=(2, 5, 4), selection=Selection(k=3, n=7, batch=(2,), dtype=torch.float32))" in text
    assert " | 2 | 3 | 4 | 5 | 6 | 7 | 8 | Row 0 of the batch. All slots, all candidates." in text
    shown(pool(x[:, :1]))
    assert repr(pooled).startswith("Pooled(x=tensor(")
    assert repr(pooled).endswith("selection=Selection(k=3, n=7, batch=(2,), dtype=torch.float32))")


def test_nothing_changes_and_nothing_is_kept_for_a_backward_pass() -> None:
    scores = randn(2, 100).requires_grad_()
    for picked in (knockout.select(scores, 3, 1.0), methods.softsort(scores, 3), methods.lapsum(scores, 3)):
        leaves = torch.utils._pytree.tree_leaves(picked)
        before, state = [leaf._version for leaf in leaves], torch.get_rng_state()
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda x: x):
            first = picked._repr_html_()
        assert first is not None
        assert not saved
        assert [leaf._version for leaf in leaves] == before
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.is_grad_enabled()
        assert picked._repr_html_() == first
        torch.autograd.grad(picked.scores.sum(), scores)
        with torch.inference_mode():
            assert picked._repr_html_() == first


def test_results_of_vmap_are_shown_and_those_inside_of_it_are_not() -> None:
    inside: list[str | None] = []

    def choose(scores: Tensor) -> Selection:
        picked = knockout.select(scores, 2, 1.0)
        inside.append(picked._repr_html_())
        return picked

    scores = randn(3, 8)
    assert torch.vmap(choose)(scores)._repr_html_() == knockout.select(scores, 2, 1.0)._repr_html_()
    assert inside == [None]


def test_what_has_no_numbers_has_no_picture() -> None:
    for method in (knockout.select, methods.softsort, methods.lml):
        assert method(torch.empty(2, 8, device="meta"), 2)._repr_html_() is None
    with FakeTensorMode():
        assert knockout.select(torch.empty(2, 8), 2)._repr_html_() is None
    pooled = knockout.nn.TokenPool(4, k=2).to("meta")(torch.empty(2, 8, 4, device="meta"))
    assert pooled._repr_html_() is None
    broken = torch.vmap(lambda scores: knockout.select(scores, 2))(randn(3, 8))
    broken._plan.valid = broken._plan.valid.float()
    with pytest.raises(TypeError, match="valid"):
        broken.weights()
    assert broken._repr_html_() is None
    assert pooled._replace(selection=None)._repr_html_() is None


def test_text_is_escaped() -> None:
    class Named(Selection):
        def __repr__(self) -> str:
            return "<b>&\"'"

    picked = knockout.select(torch.rand(4), 2)
    html = to_html(Named(picked._plan, picked.indices, picked.mask, picked.dtype))
    assert html is not None
    assert "<code>&lt;b&gt;&amp;&quot;&#x27;</code>" in html
