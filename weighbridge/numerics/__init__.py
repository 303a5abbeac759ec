"""Numerics: what "bit for bit" rests on.

Every operation that reaches the PyTorch dispatcher is governed by one rule (`rule_table`). Rounded operations are
computed in a wider type and rounded back; where two conforming devices could round differently (`bounds` says where)
the outcome is logged (`rounding`). Randomness is counter-based (`philox`). `evaluate` applies a rule to one operation
and is used unchanged by the Recorder and by the executor. `rule` registers a rule for an operator outside ATen.
"""

from weighbridge.numerics.bounds import Call, gamma
from weighbridge.numerics.custom import rule
from weighbridge.numerics.rounding.bound import Bound

__all__ = ["Bound", "Call", "gamma", "rule"]
