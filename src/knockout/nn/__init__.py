"""Layers: the operator as a module, token pooling, pyramid encoders, and schedules for their boost."""

from knockout.nn.pool import Pooled, TokenPool
from knockout.nn.pyramid import Pyramid, PyramidEncoder
from knockout.nn.schedule import BoostSchedule, ConstantBoost, CosineBoost, LinearBoost, Sharpen
from knockout.nn.topk import TopK, evaluate_hard

__all__ = [
    "BoostSchedule",
    "ConstantBoost",
    "CosineBoost",
    "LinearBoost",
    "Pooled",
    "Pyramid",
    "PyramidEncoder",
    "Sharpen",
    "TokenPool",
    "TopK",
    "evaluate_hard",
]
