"""Single elements of matrix products, looked at term by term: how large their terms are, and whether they are exact.

Bounds made of norms are cheap for all elements and too wide for a few kinds of them. Those few are gathered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
_GATHERED = 1 << 22


@dataclass(frozen=True, slots=True)
class Products:
    """A matrix product a @ b whose elements can be looked at.

    Attributes:
        left: a, (..., M, K), in the type that the operation was given, or wider.
        right: b, (..., K, N), the same.
        multiple: Bound over the sum of absolute terms, dimensionless.
        alone: Whether the product is the whole result; if not, something is added to it.
    """

    left: Tensor
    right: Tensor
    multiple: float
    alone: bool = True

    def scaled(self, by: float) -> Products:
        """Returns the products with the bound multiplied by a number."""
        return Products(self.left, self.right, self.multiple * by, self.alone)

    def sizes(self, coordinates: Sequence[Tensor]) -> npt.NDArray[np.float64]:
        """Returns the sums of absolute terms of elements, given by one index tensor a dimension."""
        return self._over(coordinates, lambda rows, columns: torch.einsum("nk,nk->n", rows.abs(), columns.abs()))

    def exact(self, coordinates: Sequence[Tensor], width: int) -> npt.NDArray[np.bool_]:
        """Returns for which elements the sum is exact in any order in a type of `width` significant bits.

        All terms are multiples of some power of two q, so partial sums below q * 2^width need no more bits; q itself
        must be a normal number of the type, since some units take subnormal ones for zero.
        """

        def check(rows: Tensor, columns: Tensor) -> Tensor:
            terms = rows * columns
            least = torch.where(terms == 0, 1 << 20, _lowest(rows) + _lowest(columns)).amin(1)
            total = terms.abs().sum(1)
            small = total < torch.ldexp(torch.full_like(total, 1 - 2.0**-30), least + width)
            return small & (least >= (-126 if width == 24 else -1022))

        return self._over(coordinates, check).astype(np.bool_)

    def _over(
        self, coordinates: Sequence[Tensor], function: Callable[[Tensor, Tensor], Tensor]
    ) -> npt.NDArray[np.float64]:
        parts = [function(rows, columns).double().cpu().numpy() for rows, columns in self._gathered(coordinates)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _gathered(self, coordinates: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields rows of a and columns of b in float64, (elements, K), some elements at a time."""
        a, b = self.left.detach(), self.right.detach().mT
        step = max(1, _GATHERED // max(1, a.shape[-1]))
        for start in range(0, len(coordinates[0]), step):
            *outer, i, j = (c[start : start + step] for c in coordinates)
            yield a[(*outer, i)].double(), b[(*outer, j)].double()


def _lowest(x: Tensor) -> Tensor:
    """Exponents of the lowest set bits of float64 values of at most 24 significant bits; of zero anything."""
    mantissa, exponent = torch.frexp(x)
    whole = torch.ldexp(mantissa, torch.full_like(exponent, 24)).to(torch.int64)
    return exponent - 25 + torch.frexp((whole & -whole).double())[1]
