"""Bounds on the 16-bit products of a unit that truncates, and what the unit itself makes of their elements.

A bound is the unit's own for the product (`weighbridge.numerics.units.unit_bounds`), times alpha, and four units of
2^-24 of what is added, since the addition in float32 may come to another result for another product. It is made of the
operands alone, so a recorder and a replayer have the same bits. Convolutions take the way of the convolution itself,
with bounds in the place of products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weighbridge.numerics.operations.prescribed_products import Multiply, Way, convolution_of, fit, plan_of
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.schemas import Op
from weighbridge.numerics.units.declared_products import LONGEST, DeclaredProducts

Tensor = torch.Tensor
_ADDED = 4 * 2.0**-24
_FEW = 16
"""One element in so many is computed by itself; of more, the whole product."""
Convolve = Callable[[Mapping[str, Any], Multiply], Any]


def limits(op: Op, bound: Mapping[str, Any], way: Way, results: int) -> list[Bound]:
    """Returns the bounds of the results of an operation whose products are those of a unit that truncates.

    Args:
        op: A product or a convolution.
        bound: Its operands by name, in float32, as they were before.
        way: As of `prescribed_products.way_for`.
        results: How many there are.
    """
    unit, plan, convolution = way.unit, plan_of(op), convolution_of(op)
    assert unit is not None
    if any(isinstance(v, Tensor) and not v.numel() for v in bound.values()):
        return [Bound()] * results  # nothing is multiplied
    if convolution is not None:
        return _convolved(bound, unit, convolution)
    assert plan is not None
    product, first, second, dimensions = plan
    a, b = bound[first], bound[second]
    if not fit(product, a, b, dimensions):
        return [Bound()] * results
    b = b[:, None] if product is torch.mv else b
    added = None if first == "self" else bound["self"]
    alpha, beta = (1, 0) if added is None else (bound["alpha"], bound["beta"])
    if a.shape[-1] > LONGEST:
        return [Bound(exact=True)]
    limit = unit.limit(a, b) * abs(alpha)
    limit = limit[:, 0] if product is torch.mv else limit
    if added is not None and beta != 0:
        limit = limit + added.abs() * (_ADDED * abs(beta))
    judge = ProductElements(unit, a, b, None if beta == 0 else added, alpha, beta, vector=product is torch.mv)
    return [Bound(factors=(limit,), judge=judge)]


@dataclass(frozen=True, slots=True)
class ProductElements:
    """Elements of alpha * a @ b + beta * added, as the unit has them (`Judge`).

    Attributes:
        unit: How products are computed.
        a: (M, K) or (B, M, K), float32.
        b: (K, N) or (B, K, N), the same.
        added: Broadcasts to the result; None if nothing is added.
        alpha: As of the operation.
        beta: Likewise.
        vector: Whether the result is the only column.
    """

    unit: DeclaredProducts
    a: Tensor
    b: Tensor
    added: Tensor | None
    alpha: float
    beta: float
    vector: bool

    @property
    def terms(self) -> int:
        """See `Judge`."""
        return self.a.shape[-1]

    def at(self, coordinates: Sequence[Tensor], unit: str = "", chain: int | None = None) -> Tensor:
        """See `Judge`."""
        places = [*coordinates, torch.zeros_like(coordinates[0])] if self.vector else [*coordinates]
        *outer, i, j = places
        if self.alpha == 0:  # the product is not looked at, even where it is infinite or NaN
            found = torch.zeros(len(i), device=self.a.device)
        elif len(i) * _FEW > self.a.shape[:-1].numel() * self.b.shape[-1]:
            found = self.unit.modelled(self.a, self.b, unit, chain)[(*outer, i, j)]
        else:
            rows, columns = self.a[(*outer, i)], self.b.mT[(*outer, j)]
            found = self.unit.elements(rows, columns, self.a, self.b, unit, chain).to(self.a.device)
        if self.alpha not in (0, 1):
            found *= self.alpha
        if self.added is not None:
            shape = *self.a.shape[:-1], *(() if self.vector else (self.b.shape[-1],))
            found += (self.added if self.beta == 1 else self.added * self.beta).expand(shape)[tuple(coordinates)]
        return found


@dataclass(slots=True)
class ConvolvedElements:
    """Elements of a result of a convolution, as the unit has them (`Judge`): all are computed, once.

    Attributes:
        unit: How products are computed.
        terms: Products in the sum of each.
        convolve: Returns the result for what multiplies.
    """

    unit: DeclaredProducts
    terms: int
    convolve: Callable[[Multiply], Tensor]
    _found: dict[tuple[str, int | None], Tensor] = field(default_factory=dict)

    def at(self, coordinates: Sequence[Tensor], unit: str = "", chain: int | None = None) -> Tensor:
        """See `Judge`."""
        if (unit, chain) not in self._found:
            self._found[unit, chain] = self.convolve(lambda a, b: self.unit.modelled(a, b, unit, chain))
        return self._found[unit, chain][tuple(coordinates)]


def _convolved(bound: Mapping[str, Any], unit: DeclaredProducts, convolution: Convolve) -> list[Bound]:
    """Returns the bounds of a convolution, or of those gradients that are wanted."""
    if "output_mask" not in bound:
        plain, bias = dict(bound) | {"bias": None}, bound["bias"]
        added = None if bias is None else bias.abs().view(1, -1, *[1] * (bound["input"].dim() - 2)) * _ADDED
        return [_bound(unit, lambda multiply: convolution(plain, multiply), added, dict(bound), convolution)]
    found = []
    for index, wanted in enumerate(bound["output_mask"]):
        if wanted:
            single = dict(bound) | {"output_mask": [index == each for each in range(3)]}
            found.append(_bound(unit, _part(convolution, single, index), None, None, convolution))
    return found


def _part(convolution: Convolve, bound: Mapping[str, Any], index: int) -> Callable[[Multiply], Tensor]:
    def convolve(multiply: Multiply) -> Tensor:
        found: Tensor = convolution(bound, multiply)[index]
        return found

    return convolve


def _bound(
    unit: DeclaredProducts, convolve: Callable[[Multiply], Tensor], added: Tensor | None,
    whole: Mapping[str, Any] | None, convolution: Convolve,
) -> Bound:  # fmt: skip
    """Returns the bound of one result.

    Args:
        unit: How products are computed.
        convolve: Returns the result without a bias.
        added: What the bias adds to the bound.
        whole: The operands with the bias, if there is one to add.
        convolution: The convolution.
    """
    terms = 0

    def limit(a: Tensor, b: Tensor) -> Tensor:
        nonlocal terms
        terms = a.shape[-1]
        return unit.limit(a, b)

    found = convolve(limit)
    if terms > LONGEST:
        return Bound(exact=True)
    if whole is not None:
        return Bound(
            factors=(found if added is None else found + added,),
            judge=ConvolvedElements(unit, terms, lambda multiply: convolution(whole, multiply)),
        )
    return Bound(factors=(found,), judge=ConvolvedElements(unit, terms, convolve))
