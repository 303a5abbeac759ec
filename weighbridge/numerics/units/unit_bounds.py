"""Bounds on the error of a known unit's 16-bit products: measured on its model, made of partial sums of chunks.

A unit that truncates errs by a share of its accumulator at every step, always towards zero, and the accumulator's size
along K depends on the data: no form in K and norms of whole rows holds for sums of one sign, sums that drift and sums
that rise and fall again. So K is divided into chunks of 256 products. With P_c the sum of the first c chunks, and a_c
and b_c the parts of the operands in chunk c,

    m_c = max(|P_(c-1)|, |P_c|) + norm(a_c) * norm(b_c) / 16

is about the largest accumulator within a chunk. The bound is u times a unit's factor times

    T1 = 256 * sum of m_c          where errors have one sign (`sum`), or
    T2 = sqrt(256 * sum of m_c^2)  where they are rounded to nearest (`root`),

u being 2^-24. Factors lie in `bounds.json` beside this module. They are no proof: tests show that models stay within
half of the bound on normal, lognormal, one-signed and drifting data, and where sums rise and fall. They are for one
chain through all of K. Nothing that is recorded or replayed uses them yet.
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
from weighbridge.numerics.units import declared

Tensor = torch.Tensor
Form = Literal["sum", "root"]

DATA = Path(__file__).with_name("bounds.json")
_U = 2.0**-24
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
        """Returns the bound on each element of a @ b, in float64.

        Args:
            a: (M, K), of any floating type.
            b: (K, N).
        """
        sums = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
        total = torch.zeros_like(sums)
        for start in range(0, a.shape[1], self.chunk):
            x, y = a[:, start : start + self.chunk].double(), b[start : start + self.chunk].double()
            before, sums = sums, sums + x @ y
            size = torch.maximum(before.abs(), sums.abs()) + x.norm(dim=1)[:, None] * y.norm(dim=0) / 16
            total += size if self.form == "sum" else size.square()
        whole = self.chunk * total if self.form == "sum" else (self.chunk * total).sqrt()
        return whole * (self.factor * _U)


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
