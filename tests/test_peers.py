"""The methods of others against packages that do the same: same values, same gradients.

An optional job, ``make peers``: without a package, its tests are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from knockout import methods
from knockout.methods.sinkhorn import standardize
from tests.cases import randn

N, K = 40, 6


def compare(ours: Tensor, theirs: Tensor, scores: Tensor, tolerance: float = 1e-8) -> None:
    """Same values, and the same gradient of the scores for some gradient of these."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    up = randn(*ours.shape, seed=5)
    (mine,) = torch.autograd.grad(ours, scores, up, retain_graph=True)
    (other,) = torch.autograd.grad(theirs, scores, up)
    assert mine.any()
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=10 * tolerance)


@pytest.fixture
def scores() -> Tensor:
    return randn(3, N, seed=2).requires_grad_()


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("power", [1, 2])
def test_softsort(scores: Tensor, temperature: float, power: int) -> None:
    peer = pytest.importorskip("difftopk.softsort").SoftSort(tau=temperature, pow=power)
    compare(methods.softsort(scores, K, temperature, power).weights(), peer(scores)[:, :K], scores)


@pytest.mark.parametrize("temperature", [0.5, 5.0])
def test_neuralsort(scores: Tensor, temperature: float) -> None:
    peer = pytest.importorskip("difftopk.neuralsort").NeuralSort(tau=temperature)
    # It takes single precision only, and its columns are our slots, the last one first.
    theirs = peer(scores.float()).mT.flip(-2)[:, :K].double()
    compare(methods.neuralsort(scores, K, temperature).weights(), theirs, scores, 1e-5)


# (Where the mask is hard, bisection leaves shares a last bit off 0 or 1, and with them a gradient where there is none.)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_projection(scores: Tensor, temperature: float) -> None:
    peer = pytest.importorskip("entmax").budget_bisect
    compare(methods.projection(scores, K, temperature).mass(), peer(scores / temperature, budget=K), scores)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("steps", [1, 5, 50])
def test_coordinate_descent(scores: Tensor, temperature: float, steps: int) -> None:
    peer = pytest.importorskip("colt5_attention.coor_descent").coor_descent
    # Ours starts from the k-th best score, so that an offset of all scores changes nothing.
    last = scores.topk(K).values[:, -1:]
    found = methods.coordinate_descent(scores, K, temperature, steps)
    compare(found.mass(), peer(scores - last, n_iters=steps, k=K, eps=temperature), scores)


warned = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of OTT, about what it imports


@pytest.fixture
def jax() -> Any:
    module = pytest.importorskip("jax")
    pytest.importorskip("ott")
    module.config.update("jax_enable_x64", True)
    return module


def transported(jax: Any, row: Any, targets: Any, capacity: Any, temperature: float) -> Any:
    """What goes from each of n scores, a unit each, to each target, by OTT."""
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    geometry = pointcloud.PointCloud(row[:, None], jax.numpy.asarray(targets)[:, None], epsilon=temperature)
    offered = jax.numpy.ones(len(row)) / len(row)
    problem = linear_problem.LinearProblem(geometry, offered, jax.numpy.asarray(capacity) / len(row))
    solved = sinkhorn.Sinkhorn(threshold=1e-13, max_iterations=20_000)(problem)
    return solved.matrix * len(row)


def compare_with_ott(jax: Any, ours: Tensor, scores: Tensor, theirs: Any) -> None:
    """``theirs`` takes a row of scores to a matrix."""
    row = jax.numpy.asarray(scores[0].detach().numpy())
    up = randn(*ours.shape, seed=5)
    (mine,) = torch.autograd.grad(ours, scores, up)
    expected = jax.grad(lambda row: (theirs(row) * jax.numpy.asarray(up.numpy())).sum())(row)
    torch.testing.assert_close(ours.detach(), torch.tensor(theirs(row).tolist()).double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(mine[0], torch.tensor(expected.tolist()).double(), rtol=0, atol=1e-6)


@warned
def test_sinkhorn(jax: Any, scores: Tensor) -> None:
    temperature = 0.5

    def theirs(row: Any) -> Any:
        standard = (row - row.mean()) / row.std()
        targets, capacity = [(K - j) / K for j in range(K + 1)], [1.0] * K + [float(N - K)]
        return transported(jax, standard, targets, capacity, temperature)[:, :K].T

    ours = methods.sinkhorn(scores[:1], K, temperature, steps=3000).weights()[0]
    compare_with_ott(jax, ours, scores, theirs)


@warned
def test_lml_is_optimal_transport_onto_two_targets(jax: Any, scores: Tensor) -> None:
    # (s - 0)^2 - (s - 1)^2 = 2 s - 1: half the temperature.
    temperature = 0.5

    def theirs(row: Any) -> Any:
        return transported(jax, row, [0.0, 1.0], [float(N - K), float(K)], temperature)[:, 1]

    compare_with_ott(jax, methods.lml(scores, K, temperature / 2).mass()[0], scores, theirs)


def test_scores_are_standardised_as_said() -> None:
    from knockout.candidates import candidates

    scores = 3.0 + 5.0 * randn(2, 30)
    mask = torch.arange(30) < 20
    found = standardize(*candidates(scores, mask)[:2])[:, :20]
    real = scores[:, :20]
    expected = (real - real.mean(-1, keepdim=True)) / real.std(-1, correction=0, keepdim=True)
    torch.testing.assert_close(found, expected)
