"""Other ways to select, behind the same interface: ``(scores, k, ..., mask=None) -> Selection``.

Those that weigh all candidates in each of k slots: ``softsort``, ``neuralsort``, ``sinkhorn``, ``perturbed``,
``gumbel`` and ``iterative``. Those that give a soft k-hot mask, of which the top k rows are passed on, weighted by it:
``lapsum``, ``lml``, ``projection``, ``coordinate_descent`` and ``threshold``. And what is commonly done: ``hard``,
``gated`` and ``straight_through``.
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
