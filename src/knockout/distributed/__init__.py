"""Candidates on many ranks."""

from knockout.distributed.functional import select, topk
from knockout.distributed.ranks import RankError, Traffic, traffic

__all__ = ["RankError", "Traffic", "select", "topk", "traffic"]
