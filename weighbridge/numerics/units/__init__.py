"""Models of matrix units that return, bit for bit, what the hardware does.

`named("h100").product(a, b)` is what H100's tensor cores make of two matrices. Tests and measurements use the models;
docs/matrix-units.md says for what. `fused_products` computes one of them fast: runs under the policy `unit-vdpbf16ps`
are recorded and replayed with it.
"""

from weighbridge.numerics.units.declared import named, names
from weighbridge.numerics.units.order import IN_ORDER, Order
from weighbridge.numerics.units.unit import Evidence, Operation, Unit

__all__ = ["IN_ORDER", "Evidence", "Operation", "Order", "Unit", "named", "names"]
