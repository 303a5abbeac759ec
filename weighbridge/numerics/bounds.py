"""Error bounds: their notation, and what those of several families have in common.

A bound is a function that takes a `Call` (an operation with its operands in the wide type and its wide results) and
returns one `Bound` per floating result, in the order of `Call.results`. Notation: u is the unit roundoff of the wide
type (2^-53 for float64), and gamma(n) = n*u / (1 - n*u) bounds the relative error of n successive roundings (Higham,
"Accuracy and Stability of Numerical Algorithms", 2nd ed., lemma 3.1). A dot product of length K evaluated in any
order, with or without fused multiply-add, errs by at most gamma(K)*sum|a_i b_i| (ibid., section 3.1), and
sum|a_i b_i| <= norm(a)*norm(b) (Cauchy-Schwarz). Bounds use norms because norms cost one pass over the operands instead
of a second matrix product.

`libm` functions are taken to be within 4 ulp in the wide type; that covers the documented maxima of CUDA's double
precision functions, SLEEF's `_u10` family and glibc for everything in the table. The gradient of gelu by tanh allows
its tanh less (docs/bounds.md, "Known limit").

The table's digest names the functions of bounds and not their constants: one that comes to give another bound needs
another name, or transcripts that were recorded before are replayed under it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from weighbridge.core.bound_failure import SPREAD
from weighbridge.numerics.arrays import blocked_products
from weighbridge.numerics.rounding.bound import Bound

U = 2.0**-53
aten = torch.ops.aten
Tensor = torch.Tensor


_Growth = Literal["all", "probable", "none"]
_GROWTH: ContextVar[_Growth] = ContextVar("growth", default="all")

_NO_ROUNDINGS = 64
"""Units of errors of functions that rules count as roundings: they are no sums, so they may all have one sign."""


@contextmanager
def _growing(growth: _Growth) -> Iterator[None]:
    token = _GROWTH.set(growth)
    try:
        yield
    finally:
        _GROWTH.reset(token)


def without_growth() -> AbstractContextManager[None]:
    """Within it, `gamma` is one unit roundoff whatever n is: the form that calibrated bounds are multiples of."""
    return _growing("none")


def probable_growth() -> AbstractContextManager[None]:
    """Within it, `gamma` grows with the root of n, and fails with the probability that `core.bound_failure` gives.

    The bound is that of N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J.
    Sci. Comput. 41 (2019), theorem 2.4: exp(lambda sqrt(n) u + n u^2/(1 - u)) - 1, if roundings err independently
    with mean zero.
    """
    return _growing("probable")


def gamma(n: float) -> float:
    """Bounds the relative error of n successive roundings."""
    growth = _GROWTH.get()
    if growth == "none":
        return U
    certain = n * U / (1 - n * U)
    if growth == "all":
        return certain
    return min(certain, math.expm1(SPREAD * math.sqrt(n) * U + n * U * U / (1 - U)) + _NO_ROUNDINGS * U)


def drift(n: float) -> float:
    """Relative part of calibrated bounds on sums of n terms; nothing in strict ones, which gamma covers.

    Where terms add up instead of cancelling, n roundings of growing partial sums err by about sqrt(n) units at random.
    """
    return math.sqrt(n) * U if _GROWTH.get() == "none" else 0.0


@dataclass(slots=True)
class Call:
    """One operation, evaluated wide.

    Attributes:
        name: Operator name without namespace and overload, trailing underscore stripped, e.g. `addmm`.
        args: Operands by schema name, floating tensors widened, as they were before the operation ran.
        given: The same, not widened.
        results: Wide floating results: returned ones first, then mutated operands in schema order.
        block: The least terms of the blocks that a product of matrices was split into; 0 if it was not.
    """

    name: str
    args: dict[str, Any]
    results: list[Tensor]
    given: dict[str, Any] = field(default_factory=dict)
    block: int = 0

    def narrow(self, name: str) -> Tensor:
        """An operand as cheaply as it can be read: as given where that is float32, else widened."""
        given = self.given.get(name)
        return given if isinstance(given, Tensor) and given.dtype == torch.float32 else self.args[name]

    def roundings(self, terms: int) -> int:
        """How many roundings are counted for a product that sums so many terms, split as this one was."""
        return blocked_products.roundings(terms, self.block)

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def x(self) -> Tensor:
        """The first result."""
        return self.results[0]


BoundFunction = Callable[[Call], list[Bound]]


@dataclass(frozen=True, slots=True)
class Line:
    """Overloads that share a bound: a line of the table of rules, and one of docs/bounds.md for each overload.

    Attributes:
        overloads: `name.overload` of each, separated by spaces.
        bound: Their bound.
        source: Where the bound comes from.
        words: The bound in words; without them, the first line of the docstring of its function says it.
    """

    overloads: str
    bound: BoundFunction
    source: str
    words: str = ""

    @property
    def keys(self) -> list[str]:
        """The overloads one by one."""
        return self.overloads.split()


def relative(ulps: float) -> BoundFunction:
    """A bound of `ulps` units in the last place on every result: for functions without cancellation."""

    def bound(call: Call) -> list[Bound]:
        return [Bound(rel=ulps * 2 * U) for _ in call.results]

    return bound


def addends(x: Tensor, dim: Any) -> int:
    """How many elements a reduction over an operand `dim` adds up; all of them for None or nothing."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return max(1, x.numel())
    dims = [dim] if isinstance(dim, int) else list(dim)
    return max(1, math.prod(x.shape[d] for d in dims) if x.dim() else 1)


def reduced(x: Tensor, dim: Any) -> list[int]:
    """Returns the dimensions that an operand `dim` of a reduction names; all of them for None or nothing."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def unless_exact(total: Tensor, least: Tensor) -> Tensor:
    """Returns 0 where a sum of float32 values is exact in float64 in any order, else `total`.

    All addends are multiples of 2^(E-23), E being the exponent of the least one that is not zero; if their absolute
    values add up to less than 2^(E+29), every partial sum has at most 53 bits. Without this, sums of few values would
    fill the log with ties.

    Args:
        total: Sums of absolute values.
        least: The least absolute value that is not zero, or infinity; broadcasts to `total`.
    """
    return total * ~(total <= least * 2.0**29)  # a product, because choosing goes by a branch for each element


def positive(count: Callable[[Call], int]) -> BoundFunction:
    """gamma(n + 32) * |result|: terms do not cancel."""

    def bound(call: Call) -> list[Bound]:
        return [Bound(rel=gamma(count(call) + 32)) for _ in call.results]

    return bound


def linear(operand: str, count: Callable[[Call], int]) -> BoundFunction:
    """gamma(n) * F(|x|), F being the operator: it sums positive multiples of at most n elements."""

    def bound(call: Call) -> list[Bound]:
        args = dict(call.args)
        args[operand] = args[operand].abs()
        spread = apply(call, args)
        return [Bound(factors=(spread * gamma(count(call) + 16),))]

    return bound


def apply(call: Call, args: dict[str, Any]) -> Tensor:
    """Evaluates the functional form of a call with other operands."""
    packet = getattr(aten, call.name)
    overload = call.args.get("__overload__", "default")
    op = getattr(packet, overload)
    out = op(**{a.name: args[a.name] for a in op._schema.arguments})
    result: Tensor = out[0] if isinstance(out, (tuple, list)) else out
    return result


def area(call: Call) -> int:
    """How many elements a plane of an operand has, for `linear`."""
    operand = call["self"] if "self" in call.args else call["grad_output"]
    return math.prod(operand.shape[2:]) or 1
