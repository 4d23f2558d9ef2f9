"""Differentiable top-k of candidates that are distributed over the ranks of a process group.

================  ====================================================================================
functional.py     ``topk`` and ``select``: check the arguments, and run the steps below
agreement.py      the first message of every call: have all ranks passed matching arguments?
call.py           what all ranks know about a call
pruning.py        which candidates need not be sent, since only the sum of their scores matters
routing.py        sends the other candidates' scores to the owner ranks, and gradients back
owner.py          the owner rank of a row collects its candidates, and plays its tournament
tournament.py     all of this as one differentiable function
selection.py      the result, and the sum of the values that all ranks contribute
dtensor.py        DTensors as arguments and results
ranks.py          the collectives, the bytes they send, and errors when a rank is lost
================  ====================================================================================
"""

from knockout.distributed.functional import select, topk
from knockout.distributed.ranks import RankError, Traffic, traffic

__all__ = ["RankError", "Traffic", "select", "topk", "traffic"]
