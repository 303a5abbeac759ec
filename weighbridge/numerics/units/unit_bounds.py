"""Bounds on the error of a known unit's 16-bit products: measured on its model, made of partial sums of chunks.

A unit that truncates errs by a share of its accumulator at every step, always towards zero, and the accumulator's size
along K depends on the data: no form in K and norms of whole rows holds for sums of one sign, sums that drift and sums
that rise and fall again. So K is divided into chunks of 256 products. With P_c the sum of the first c chunks, and a_c
and b_c the parts of the operands in chunk c,

    m_c = max(|P_(c-1)|, |P_c|) + norm(a_c) * norm(b_c) / 16

is about the largest accumulator within a chunk. The bound is u times a unit's factor times

    T1 = 256 * sum of m_c          where errors have one sign (`sum`), or
    T2 = sqrt(256 * sum of m_c^2)  where they are rounded to nearest (`root`),

u being 2^-24, and 2^-148 for each eight products besides, for results below the normal range. Factors lie in
`bounds.json` beside this module. They are no proof: tests show that models stay within half of the bound on normal,
lognormal, one-signed and drifting data, and where sums rise and fall. They are for one chain through all of K; shorter
chains err by less.

All partial sums and norms are made in a fixed order (`chunked_products`), so that a bound has the same bits on every
machine. Policies of units that truncate take these bounds for their 16-bit products (`declared_products`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from weighbridge.core.errors import UsageError
from weighbridge.numerics.units import chunked_products, declared

Tensor = torch.Tensor
Form = Literal["sum", "root"]

DATA = Path(__file__).with_name("bounds.json")
_U = 2.0**-24
_SUBNORMAL = 2.0**-148
"""What truncation may take besides, for each eight products: half as much by each of two blocks, and by their terms."""
_LARGEST = 1e3


@dataclass(frozen=True, slots=True)
class UnitBound:
    """How far a unit's results may lie from the exact ones.

    Attributes:
        unit: Its name.
        form: `sum` for T1, `root` for T2.
        factor: What that is multiplied by.
        chunk: Products of a chunk.
    """

    unit: str
    form: Form
    factor: float
    chunk: int

    def of(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the bound on each element of a @ b, in float64, the same bits on every machine.

        Args:
            a: (M, K) or (B, M, K), of a type of 16 bits, or of another that holds such values.
            b: (K, N) or (B, K, N), the same.
        """
        sizes = chunked_products.chunked(a, b, self.chunk, squared=self.form == "root").sizes
        whole = self.chunk * sizes if self.form == "sum" else (self.chunk * sizes).sqrt()
        return whole * (self.factor * _U) + _SUBNORMAL * (a.shape[-1] // 8 + 2)


@cache
def bounds() -> dict[str, UnitBound]:
    """Returns the bounds of all units that have some, by name."""
    return parse(json.loads(DATA.read_text()))


def of_unit(name: str) -> UnitBound:
    """Returns the bound of a unit, under any of its names.

    Raises:
        UsageError: There is no such unit, or none of its bounds was measured.
    """
    found = bounds().get(declared.named(name).name)
    if found is None:
        raise UsageError(f"no bound was measured for unit {name!r}; there are those of {', '.join(bounds())}")
    return found


def parse(raw: Any) -> dict[str, UnitBound]:
    """Returns the bounds that a data file holds.

    Raises:
        UsageError: It is no such file.
    """
    try:
        chunk, found = raw["chunk"], {}
        if type(chunk) is not int or not 0 < chunk <= 1 << 16:
            raise ValueError
        for name, each in raw["units"].items():
            form, factor = each["form"], each["factor"]
            if form not in get_args(Form) or type(factor) not in (int, float) or not math.isfinite(factor):
                raise ValueError
            if not 0 < factor <= _LARGEST or declared.named(name).name != name:
                raise ValueError
            found[name] = UnitBound(name, form, float(factor), chunk)
    except (ValueError, TypeError, KeyError, AttributeError, UsageError):
        raise UsageError("this is no table of units' bounds; take the one that comes with this version") from None
    return found
