"""Error bounds of rounded operations, one function a family.

Each function takes a `Call` (an operation with its operands in the wide type and its wide results) and returns one
`Bound` per floating result, in the order of `Call.results`. Notation: u is the unit roundoff of the wide type (2^-53
for float64), and gamma(n) = n*u / (1 - n*u) bounds the relative error of n successive roundings (Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., lemma 3.1). A dot product of length K evaluated in any order, with or
without fused multiply-add, errs by at most gamma(K)*sum|a_i b_i| (ibid., section 3.1), and sum|a_i b_i| <=
norm(a)*norm(b) (Cauchy-Schwarz). Bounds use norms because norms cost one pass over the operands instead of a second
matrix product.

`libm` functions are taken to be within 4 ulp in the wide type; that covers the documented maxima of CUDA's double
precision functions, SLEEF's `_u10` family and glibc for everything in the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from weighbridge.numerics import reductions
from weighbridge.numerics.products import Products
from weighbridge.numerics.rounding import Bound

U = 2.0**-53
aten = torch.ops.aten
Tensor = torch.Tensor


_GROWTH: ContextVar[bool] = ContextVar("growth", default=True)


@contextmanager
def without_growth() -> Iterator[None]:
    """Within it, `gamma` is one unit roundoff whatever n is: the form that calibrated bounds are multiples of."""
    token = _GROWTH.set(False)
    try:
        yield
    finally:
        _GROWTH.reset(token)


def gamma(n: float) -> float:
    """Bounds the relative error of n successive roundings."""
    return n * U / (1 - n * U) if _GROWTH.get() else U


def drift(n: float) -> float:
    """Relative part of calibrated bounds on sums of n terms; nothing in strict ones, which gamma covers.

    Where terms add up instead of cancelling, n roundings of growing partial sums err by about sqrt(n) units at random.
    """
    return 0.0 if _GROWTH.get() else math.sqrt(n) * U


@dataclass(slots=True)
class Call:
    """One operation, evaluated wide.

    Attributes:
        name: Operator name without namespace and overload, trailing underscore stripped, e.g. `addmm`.
        args: Operands by schema name, floating tensors widened, as they were before the operation ran.
        given: The same, not widened.
        results: Wide floating results: returned ones first, then mutated operands in schema order.
    """

    name: str
    args: dict[str, Any]
    results: list[Tensor]
    given: dict[str, Any] = field(default_factory=dict)

    def narrow(self, name: str) -> Tensor:
        """An operand as cheaply as it can be read: as given where that is float32, else widened."""
        given = self.given.get(name)
        return given if isinstance(given, Tensor) and given.dtype == torch.float32 else self.args[name]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def x(self) -> Tensor:
        """The first result."""
        return self.results[0]


BoundFunction = Callable[[Call], list[Bound]]


def relative(ulps: float) -> BoundFunction:
    """A bound of `ulps` units in the last place on every result: for functions without cancellation."""

    def bound(call: Call) -> list[Bound]:
        return [Bound(rel=ulps * 2 * U) for _ in call.results]

    return bound


def _count(x: Tensor, dim: Any) -> int:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return max(1, x.numel())
    dims = [dim] if isinstance(dim, int) else list(dim)
    return max(1, math.prod(x.shape[d] for d in dims) if x.dim() else 1)


def reduced(x: Tensor, dim: Any) -> list[int]:
    """Returns the dimensions that an operand `dim` of a reduction names; all of them for None or nothing."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


# --- products -------------------------------------------------------------------------------------------------------


def _products(call: Call, names: tuple[str, str], multiple: float) -> Products:
    return Products(call.narrow(names[0]), call.narrow(names[1]), multiple, call.name in ("mm", "bmm"))


def mm(call: Call) -> list[Bound]:
    """mm, bmm, dot, mv: gamma(K) * norm(row) * norm(column)."""
    names = "self", next(n for n in ("mat2", "vec", "tensor", "other") if n in call.args)
    a, b = (call.narrow(name) for name in names)
    k = a.shape[-1]
    g = gamma(k + 2)
    left, right = reductions.norm(a, [-1], g), reductions.norm(b, [-2 if b.dim() > 1 else -1])
    if call.name in ("dot", "vdot"):
        return [Bound(rel=drift(k), absolute=float(left * right))]
    if call.name == "mv":
        return [Bound(rel=drift(k), factors=(left.squeeze(-1), right))]
    return [Bound(rel=drift(k), factors=(left, right), products=_products(call, names, g))]


def addmm(call: Call) -> list[Bound]:
    """addmm, addmv, baddbmm: the added term is part of the sum; it is at most |x| + |alpha|*norm*norm."""
    pairs = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}
    names = pairs[call.name]
    a, b = (call.narrow(name) for name in names)
    g = gamma(a.shape[-1] + 6)
    rel, multiple = g + drift(a.shape[-1]), 2 * g * abs(call["alpha"])
    left, right = reductions.norm(a, [-1], multiple), reductions.norm(b, [-2 if b.dim() > 1 else -1])
    if call.name == "addmv":
        return [Bound(rel=rel, factors=(left.squeeze(-1), right))]
    return [Bound(rel=rel, factors=(left, right), products=_products(call, names, multiple))]


def _grouped_squares(x: Tensor, groups: int) -> Tensor:
    """Sums of squares over the channels of each group, (N, groups, *spatial), float64."""
    n, c = x.shape[:2]
    return reductions.squares(x.view(n, groups, c // groups, *x.shape[2:]), [2]).squeeze(2)


def _conv_norms(w_shape: tuple[int, ...], call: Call) -> Tensor:
    """Norm of the input patch behind every output position, (N, groups, *spatial)."""
    groups = call["groups"]
    squares = _grouped_squares(call.narrow("input"), groups)
    ones = squares.new_ones(groups, 1, *w_shape[2:])
    spread: Tensor = aten.convolution(
        squares, ones, None, call["stride"], call["padding"], call["dilation"],
        call["transposed"], call["output_padding"], groups,
    )  # fmt: skip
    return spread.clamp_min_(0).sqrt_()


def _spread(per_group: Tensor, channels: int) -> Tensor:
    """Repeats (N, groups, *) to (N, channels, *), or keeps one group for broadcasting."""
    groups = per_group.shape[1]
    return per_group if groups == 1 else per_group.repeat_interleave(channels // groups, dim=1)


def convolution(call: Call) -> list[Bound]:
    """Convolution and transposed convolution: gamma(K) * norm(patch) * norm(filter)."""
    w = call["weight"]
    groups, spatial = call["groups"], list(range(2, w.dim()))
    if call["transposed"]:
        k = w.shape[0] // groups * math.prod(w.shape[2:])
        grouped = call.narrow("weight").reshape(groups, w.shape[0] // groups, w.shape[1], -1)
        filters = reductions.norm(grouped, [1, 3]).view(-1)
    else:
        k = math.prod(w.shape[1:])
        filters = reductions.norm(call.narrow("weight"), [1, *spatial]).view(-1)
    g = gamma(k + 8)
    patch = _spread(_conv_norms(tuple(w.shape), call), call.x.shape[1])
    return [Bound(rel=g + drift(k), factors=(patch * (2 * g), filters.view(1, -1, *[1] * len(spatial))))]


def _tap_norms(grad: Tensor, x: Tensor, w: Tensor, call: Call) -> Tensor:
    """Norm of all that a filter tap multiplies, (groups, channels, *taps); zero for taps that see only padding."""
    inner, outer = (grad, x) if call["transposed"] else (x, grad)
    squares = reductions.squares(call.narrow("grad_output" if call["transposed"] else "input"), [0])[0]
    taps = squares.new_zeros(squares.shape[0], *w.shape[2:])
    step, before, apart = (_each(call[name], w.dim() - 2) for name in ("stride", "padding", "dilation"))
    windows = [
        [_seen(k * apart[d] - before[d], step[d], outer.shape[2 + d], inner.shape[2 + d]) for k in range(size)]
        for d, size in enumerate(w.shape[2:])
    ]
    for tap in itertools.product(*(range(n) for n in w.shape[2:])):
        seen: tuple[Any, ...] = (slice(None), *(windows[d][k] for d, k in enumerate(tap)))
        window, place = squares[seen], cast(Any, (slice(None), *tap))
        taps[place] = window.sum(dim=list(range(1, window.dim())))
    return torch.sqrt(taps).view(call["groups"], w.shape[1], *w.shape[2:])


def _each(setting: Sequence[int], dimensions: int) -> Sequence[int]:
    """A convolution's setting for each dimension: one number alone is for all of them (`padding="valid"`)."""
    return setting if len(setting) == dimensions else [setting[0]] * dimensions


def _seen(start: int, stride: int, count: int, length: int) -> slice:
    """Those of start, start + stride, ... (`count` of them) that lie in 0..length."""
    first = max(0, -(start // stride))  # rounded up
    last = min(count - 1, (length - 1 - start) // stride)
    return slice(start + first * stride, start + last * stride + 1, stride) if first <= last else slice(0, 0)


def convolution_backward(call: Call) -> list[Bound]:
    """Gradients of a convolution: each is a sum of products, bounded by the norms of what it sums over."""
    grad, x, w = call["grad_output"], call["input"], call["weight"]
    groups, mask = call["groups"], call["output_mask"]
    spatial = list(range(2, grad.dim()))
    bounds = []
    if mask[0]:
        squares = _grouped_squares(call.narrow("grad_output"), groups)
        ones = squares.new_ones(groups, 1, *w.shape[2:])
        like = squares.new_zeros(x.shape[0], groups, *x.shape[2:])
        spread = aten.convolution_backward(
            squares, like, ones, None, call["stride"], call["padding"], call["dilation"],
            call["transposed"], call["output_padding"], groups, [True, False, False],
        )[0]  # fmt: skip
        if call["transposed"]:
            k, filters = math.prod(w.shape[1:]), reductions.norm(call.narrow("weight"), [1, *spatial]).view(-1)
        else:
            k = w.shape[0] // groups * math.prod(w.shape[2:])
            grouped = call.narrow("weight").reshape(groups, w.shape[0] // groups, w.shape[1], -1)
            filters = reductions.norm(grouped, [1, 3]).view(-1)
        patch = _spread(spread.clamp_min_(0).sqrt_(), x.shape[1])
        bounds.append(Bound(rel=drift(k), factors=(patch * gamma(k + 8), filters.view(1, -1, *[1] * len(spatial)))))
    if mask[1]:
        outer = x if call["transposed"] else grad
        k = outer.shape[0] * math.prod(outer.shape[2:])
        narrow = call.narrow("input" if call["transposed"] else "grad_output")
        rows = reductions.norm(narrow, [0, *spatial]).view(-1) * gamma(k + 8)
        taps = _tap_norms(grad, x, w, call)
        per_row = taps.repeat_interleave(outer.shape[1] // groups, dim=0) if groups > 1 else taps
        bounds.append(Bound(rel=drift(k), factors=(rows.view(-1, 1, *[1] * len(spatial)), per_row)))
    if mask[2]:
        k = grad.shape[0] * math.prod(grad.shape[2:])
        total, _ = reductions.sizes(call.narrow("grad_output"), [0, *spatial])
        bounds.append(Bound(factors=(total.view(-1) * gamma(k + 2),)))
    return bounds


# --- sums -----------------------------------------------------------------------------------------------------------


def _unless_exact(total: Tensor, least: Tensor) -> Tensor:
    """Returns 0 where a sum of float32 values is exact in float64 in any order, else `total`.

    All addends are multiples of 2^(E-23), E being the exponent of the least one that is not zero; if their absolute
    values add up to less than 2^(E+29), every partial sum has at most 53 bits. Without this, sums of few values would
    fill the log with ties.

    Args:
        total: Sums of absolute values.
        least: The least absolute value that is not zero, or infinity; broadcasts to `total`.
    """
    return total * ~(total <= least * 2.0**29)  # a product, because choosing goes by a branch for each element


def summation_bound(total: Tensor, least: Tensor, n: int) -> Bound:
    """gamma(n) * sum|x|, nothing where the sum is exact.

    Args:
        total: Sums of absolute values, in the shape of the result.
        least: The least absolute value that is not zero, or infinity, in the same shape.
        n: Addends of one sum.
    """
    return Bound(factors=(_unless_exact(total, least) * gamma(max(1, n) + 2),))


def summation(call: Call) -> list[Bound]:
    """sum, nansum: gamma(n) * sum|x|, nothing where the sum is exact."""
    x, dim = call.narrow("self"), call.args.get("dim")
    if not x.dim() or not x.numel():
        return [Bound(rel=4 * U)]
    total, least = reductions.sizes(x, reduced(x, dim))
    return [summation_bound(total.view(call.x.shape), least.view(call.x.shape), _count(x, dim))]


def cumulative_sum(call: Call) -> list[Bound]:
    """cumsum: gamma(n) * cumsum|x|."""
    x = call["self"]
    n = x.shape[call["dim"]] if x.dim() else 1
    return [Bound(factors=(x.abs().cumsum(call["dim"]) * gamma(n + 1),))]


def norm(call: Call) -> list[Bound]:
    """Vector norms: sums of non-negative terms, so a relative bound, which a root of order p < 1 multiplies by 1/p."""
    order = call.args.get("ord", call.args.get("p"))
    grow = max(1.0, 1.0 / abs(float(order))) if order else 1.0
    n = _count(call["self"], call.args.get("dim"))
    return [Bound(rel=(gamma(n + 32) + drift(n)) * grow)]


def product(call: Call) -> list[Bound]:
    """prod, cumprod: one rounding for each factor."""
    return [Bound(rel=gamma(_count(call["self"], call.args.get("dim")) + 2))]


def positive(count: Callable[[Call], int]) -> BoundFunction:
    """A sum of products that are all non-negative: a relative bound of gamma(count + 32)."""

    def bound(call: Call) -> list[Bound]:
        return [Bound(rel=gamma(count(call) + 32)) for _ in call.results]

    return bound


# --- linear operators whose error is the operator applied to absolute values ----------------------------------------


def linear(operand: str, count: Callable[[Call], int]) -> BoundFunction:
    """gamma(n) * F(|x|) for an operator F that sums non-negative multiples of at most n elements."""

    def bound(call: Call) -> list[Bound]:
        args = dict(call.args)
        args[operand] = args[operand].abs()
        spread = _run(call, args)
        return [Bound(factors=(spread * gamma(count(call) + 16),))]

    return bound


def interpolation(operand: str) -> BoundFunction:
    """Bilinear interpolation and its backward: `linear`, and weights that err by a few u times the coordinate.

    A weight is the fraction of a coordinate c <= L, so it errs by a small multiple of u*L whatever its own size. An
    output sums at most 4 such errors times elements of its plane; an input's gradient at most all of its plane.
    """

    def bound(call: Call) -> list[Bound]:
        x, spatial = call[operand], list(range(2, call.x.dim()))
        own = linear(operand, lambda c: math.prod(c[operand].shape[2:]))(call)[0].factors[0]
        length = max(*x.shape[2:], *call.x.shape[2:])
        plane = x.abs().sum(dim=spatial, keepdim=True) if "grad" in operand else x.abs().amax(dim=spatial, keepdim=True)
        return [Bound(factors=(own + plane * (32 * U * length),))]

    return bound


def max_pool_backward(call: Call) -> list[Bound]:
    """max_pool{2,3}d_with_indices_backward: sums of at most a window of gradients, exact more often than not."""
    g, spatial = call.narrow("grad_output"), list(range(-len(call["kernel_size"]), 0))
    sums = linear("grad_output", lambda c: math.prod(c["kernel_size"]))(call)[0].factors[0]
    return [Bound(factors=(_unless_exact(sums, reductions.sizes(g, spatial)[1]),))] if g.numel() else [Bound()]


def accumulate(call: Call) -> list[Bound]:
    """index_add, index_put with accumulation, scatter_add: gamma(n) * (|self| + sum|source|), n additions at most."""
    args = {k: v.abs() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in call.args.items()}
    source = next(args[name] for name in ("source", "src", "values") if name in args)
    if "alpha" in args:
        args["alpha"] = abs(args["alpha"])
    n = source.numel()
    indices = [i for i in args.get("indices", ()) if i is not None]
    if indices:  # the source is broadcast to what the indices select
        whole = [i.shape for i in indices if i.dtype not in (torch.bool, torch.uint8)]
        n = max(n, math.prod(torch.broadcast_shapes(*whole)), *(i.numel() for i in indices))  # type: ignore[no-untyped-call]
    spread = _run(call, args)
    return [Bound(factors=(spread * gamma(n + 4),))]


def embedding_rows(call: Call) -> list[Bound]:
    """embedding_dense_backward, of the rows that are used: gamma(uses of the row) * sum|g| over its uses."""
    g, index, rows = call["grad_output"], call["indices"], call["num_weights"]
    sums = aten.embedding_dense_backward(g.abs(), index, rows, call["padding_idx"], call["scale_grad_by_freq"])
    if not call["scale_grad_by_freq"] and g.numel():
        sums = _unless_exact(sums, reductions.sizes(call.narrow("grad_output"), list(range(g.dim() - 1)))[1].view(-1))
    uses = torch.bincount(index.reshape(-1), minlength=rows)[:rows].to(g.dtype) + 4
    return [Bound(factors=(sums, (uses * (2 * U)).unsqueeze(-1)))]


def _run(call: Call, args: dict[str, Any]) -> Tensor:
    """Evaluates the functional form of a call with other operands."""
    packet = getattr(aten, call.name)
    overload = call.args.get("__overload__", "default")
    op = getattr(packet, overload)
    out = op(**{a.name: args[a.name] for a in op._schema.arguments})
    result: Tensor = out[0] if isinstance(out, (tuple, list)) else out
    return result
