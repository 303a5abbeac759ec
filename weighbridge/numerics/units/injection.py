"""A unit's model in the place of a device: who computes the 16-bit products of runs that declare a truncating unit.

No hardware computes them here: PyTorch does not show the accumulators of every tensor core. So such runs are recorded
with the unit's model in the device's place; its orders can be those that a probe of a device found (`probing`). A
process in which nothing was injected has no such unit; it can replay these runs, and not record them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from weighbridge.core.errors import UsageError
from weighbridge.numerics.units import truncated_products
from weighbridge.numerics.units.orders import chain_of

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Injected:
    """A device, as far as products of 16 bits go.

    Attributes:
        unit: Whose model computes them, one of `truncated_products.UNITS`.
        orders: Products in a chain by signature (`orders`), as a probe of the device would find them.
    """

    unit: str
    orders: Mapping[str, int] = field(default_factory=dict)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the accumulators of a @ b, float32; operands as of `truncated_products.product`."""
        return truncated_products.product(a, b, self.unit, chain_of(self.orders, a, b))


_devices: list[Injected] = []


@contextmanager
def injected(unit: str, orders: Mapping[str, int] | None = None) -> Iterator[Injected]:
    """Within it, 16-bit products of runs that declare a truncating unit are those of a unit's model, in all threads.

    Args:
        unit: One of `truncated_products.UNITS`, whichever unit the run declares.
        orders: As of `Injected`.

    Raises:
        UsageError: There is no such model.
    """
    if unit not in truncated_products.UNITS:
        raise UsageError(f"no model of {unit!r} can be injected; there are {', '.join(truncated_products.UNITS)}")
    device = Injected(unit, dict(orders or {}))
    _devices.append(device)
    try:
        yield device
    finally:
        _devices.remove(device)


def current() -> Injected | None:
    """Returns what was injected last, if anything."""
    return _devices[-1] if _devices else None
