"""16-bit products of a run that declares a unit that truncates: who computes them, and how far results may differ.

The *device* that records has the unit, and rounds the unit's accumulators. A *replayer* without it takes the product in
float64, added in a fixed order and rounded to float32, as its own wide result; the unit's bound, which has the same
bits everywhere, covers both, so the rounding log says where the unit came to another result. For long sums
such a log would be long: where K is more than `LONGEST`, every bit is prescribed, and all compute the unit's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from weighbridge.numerics.units import chunked_products, injection, truncated_products, unit_bounds
from weighbridge.numerics.units.orders import chain_of

Tensor = torch.Tensor

LONGEST = 4096
"""Most products of a sum that has a bound."""
_OTHER = 1.0 + 2.0**-4
"""What a bound allows besides: for rounding a replayer's sums to float32, and for its own evaluation in float32. The
unit's part is at least 100 units of 2^-24 of the largest partial sum."""


@dataclass(frozen=True, slots=True)
class DeclaredProducts:
    """How a run's 16-bit products are computed.

    Attributes:
        unit: The unit that the run declares, one of `truncated_products.UNITS`.
        dtype: The type of operands: bfloat16 or float16.
        orders: Products in a chain by signature, as the run declares them.
    """

    unit: str
    dtype: torch.dtype
    orders: Mapping[str, int] = field(default_factory=dict, compare=False)

    def computed(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns a @ b in float32 as this process computes it: the device, if it is one, or a replayer.

        Args:
            a: (M, K) or (B, M, K), of the operands' type or wider.
            b: (K, N) or (B, K, N), the same.
        """
        device = injection.current()
        if device is not None:
            return device.product(a.to(self.dtype), b.to(self.dtype))
        if a.shape[-1] > LONGEST:
            return self.modelled(a, b)
        return chunked_products.chunked(a, b).sums.to(torch.float32).to(a.device)

    def limit(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns how far a result of the unit, or of a replayer, may lie from the exact one; float32.

        Of sums of more than `LONGEST` it is zeros: no result may differ.
        """
        if a.shape[-1] > LONGEST:
            return torch.zeros((*a.shape[:-1], b.shape[-1]), device=a.device)
        return (unit_bounds.of_unit(self.unit).of(a, b) * _OTHER).to(torch.float32).to(a.device)

    def modelled(self, a: Tensor, b: Tensor, unit: str = "", chain: int | None = None) -> Tensor:
        """Returns a @ b as the model of the declared unit, or of another one in another order, computes it."""
        x, y = a.to(self.dtype), b.to(self.dtype)
        return truncated_products.product(x, y, unit or self.unit, self._chain(x, y) if chain is None else chain)

    def elements(
        self, rows: Tensor, columns: Tensor, a: Tensor, b: Tensor, unit: str = "", chain: int | None = None
    ) -> Tensor:
        """Returns single elements of `modelled`.

        Args:
            rows: Rows of `a`, (n, K).
            columns: Columns of `b`, (n, K).
            a: The product's first operand, for its signature.
            b: The second.
            unit: Another unit than the declared one.
            chain: Another order.
        """
        chain = self._chain(a.to(self.dtype), b.to(self.dtype)) if chain is None and self.orders else chain or 0
        return truncated_products.dots(rows.to(self.dtype), columns.to(self.dtype), unit or self.unit, chain)

    def _chain(self, a: Tensor, b: Tensor) -> int:
        return chain_of(self.orders, a, b)
