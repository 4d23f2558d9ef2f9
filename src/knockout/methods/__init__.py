"""Other differentiable top-k methods: ``(scores, k, ..., mask=None, order="score") -> Selection``.

scores, k, mask and order are those of ``knockout.select``.

- ``softsort``, ``neuralsort``, ``sinkhorn``, ``perturbed``, ``gumbel``, ``iterative``: weights of all n candidates in
  each of k slots.
- ``lapsum``, ``lml``, ``projection``, ``coordinate_descent``, ``threshold``: a soft k-hot mask over the candidates. The
  Selection is the top k value rows scaled by it.
- ``hard``, ``gated``, ``straight_through``: common practice.

All of them relax ``torch.topk(scores, k).indices``, or are it: the leaders of the slots (``Selection.indices``) are the
true top k, with ``gumbel`` those of the noisy scores.
"""

from knockout.methods.coordinate_descent import coordinate_descent
from knockout.methods.gated import gated
from knockout.methods.gumbel import gumbel
from knockout.methods.hard import hard
from knockout.methods.iterative import iterative
from knockout.methods.lapsum import lapsum
from knockout.methods.lml import lml
from knockout.methods.neuralsort import neuralsort
from knockout.methods.perturbed import perturbed
from knockout.methods.projection import projection
from knockout.methods.sinkhorn import sinkhorn
from knockout.methods.softsort import softsort
from knockout.methods.straight_through import straight_through
from knockout.methods.threshold import threshold

__all__ = [
    "coordinate_descent",
    "gated",
    "gumbel",
    "hard",
    "iterative",
    "lapsum",
    "lml",
    "neuralsort",
    "perturbed",
    "projection",
    "sinkhorn",
    "softsort",
    "straight_through",
    "threshold",
]
