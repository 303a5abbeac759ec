"""Examples of `weighbridge.numerics.families.normalisations`."""

from __future__ import annotations

import numpy as np
from support.operator_examples.example import REFERENCES, Calls, Example, LongDoubles, Maker, Op, Tensor, aten, long, of


@of("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 50), [1]), {"correction": 1, "keepdim": True})
    yield Example(op, (make(6, 50), [0]), {"correction": 0})
    yield Example(op, (make(6, 50),), {})


@of("var.dim", "std.dim")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 50), [1], False))
    yield Example(op, (make(6, 50), [0, 1], True, True))


@of("native_layer_norm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7, 40), [40], make(40), make(40), 1e-5))
    yield Example(op, (make(2, 3, 4, 5), [4, 5], None, None, 1e-5))


@of("native_layer_norm_backward.default")
def _(make: Maker, op: Op) -> Calls:
    for shape, normal, affine in (((7, 40), [40], True), ((2, 3, 4, 5), [4, 5], False)):
        x = make(*shape)
        w, b = (make(*normal), make(*normal)) if affine else (None, None)
        _, mean, rstd = aten.native_layer_norm.default(x, normal, w, b, 1e-5)
        yield Example(op, (make(*shape), x, normal, mean, rstd, w, b, [True, affine, affine]))


def _normalise(x: LongDoubles, dims: tuple[int, ...], eps: float) -> tuple[LongDoubles, LongDoubles, LongDoubles]:
    mean = x.mean(axis=dims, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=dims, keepdims=True) + np.longdouble(eps))
    return (x - mean) * rstd, mean, rstd


def _gradient(a: LongDoubles, xhat: LongDoubles, scale: LongDoubles, dims: tuple[int, ...]) -> LongDoubles:
    return scale * (a - a.mean(axis=dims, keepdims=True) - xhat * (a * xhat).mean(axis=dims, keepdims=True))


def _layer_norm(x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None, eps: float) -> list[LongDoubles]:
    dims = tuple(range(x.dim() - len(shape), x.dim()))
    xhat, mean, rstd = _normalise(long(x), dims, eps)
    return [xhat if w is None else xhat * long(w) + long(b), mean, rstd]


def _layer_norm_backward(
    g: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    w: Tensor | None,
    _b: Tensor | None,
    mask: list[bool],
) -> list[LongDoubles]:
    dims, outer = tuple(range(x.dim() - len(shape), x.dim())), tuple(range(x.dim() - len(shape)))
    xhat = (long(x) - long(mean)) * long(rstd)
    grad = _gradient(long(g) if w is None else long(g) * long(w), xhat, long(rstd), dims)
    return [grad] + ([(long(g) * xhat).sum(axis=outer), long(g).sum(axis=outer)] if mask[1] else [])


REFERENCES.update(
    {
        "native_layer_norm.default": _layer_norm,
        "native_layer_norm_backward.default": _layer_norm_backward,
    }
)
