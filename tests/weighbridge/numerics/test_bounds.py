"""Error bounds hold: against narrower arithmetic, against other orders of summation, and against wider arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from examples import EXAMPLES, STYLES, Example, Maker
from weighbridge.numerics import bounds, bounds_norms, bounds_pointwise, rounding
from weighbridge.numerics.embeddings import used_rows
from weighbridge.numerics.evaluate import Context, bind, evaluate
from weighbridge.numerics.randomness import Draw
from weighbridge.numerics.rounding import Bound

aten = torch.ops.aten
Tensor = torch.Tensor


class Listening(Context):
    """A context that keeps every wide result with its bound, and rounds plainly."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Bound]] = []

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        self.seen.append((wide.clone(memory_format=torch.preserve_format), bound))
        return rounding.round_plain(wide)[0]

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        raise AssertionError("a rounded operation is not exact")

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        raise AssertionError("a rounded operation draws nothing")

    def host(self, value: bool | int | float) -> bool | int | float:
        raise AssertionError("a rounded operation hands out nothing")


def copied(value: Any) -> Any:
    """Operands that an in-place operation may change."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return [copied(v) for v in value] if isinstance(value, list) else value


def listen(example: Example) -> tuple[list[tuple[Tensor, Bound]], list[Tensor]]:
    """Returns the wide results with their bounds, and the float results of the operation as it is evaluated here."""
    context = Listening()
    with torch.backends.mkldnn.flags(enabled=False):
        out = evaluate(example.op, [copied(a) for a in example.args], copied(example.kwargs), context)
    returned = out if isinstance(out, (tuple, list)) else [out]
    return context.seen, [t for t in returned if isinstance(t, Tensor) and t.is_floating_point()]


def error_bound(wide: Tensor, bound: Bound) -> Tensor:
    """The bound of every element, in the logical shape of `wide`."""
    e = rounding.dense_bound(wide, bound)
    return e.as_strided(wide.shape, wide.stride())


CASES = [(key, style) for key in sorted(EXAMPLES) for style in STYLES]


@pytest.mark.parametrize("key", sorted(EXAMPLES))
def test_there_is_one_finite_bound_for_each_floating_result(key: str) -> None:
    for example in EXAMPLES[key](Maker("plain")):
        seen, returned = listen(example)
        assert len(seen) >= len(returned) >= 1
        for wide, bound in seen:
            assert wide.dtype == torch.float64
            e = error_bound(wide, bound)
            assert bool((e >= 0).all())
            assert bool(torch.isfinite(e).all())


@pytest.fixture
def single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds for arithmetic in float32 instead of float64."""
    monkeypatch.setattr(bounds, "U", 2.0**-24)
    monkeypatch.setattr(bounds_pointwise, "U", 2.0**-24)
    monkeypatch.setattr(bounds_norms, "U", 2.0**-24)
    monkeypatch.setattr(bounds, "_unless_exact", lambda total, least: total)


EXACT_SQUARES = {"tanh_backward.default"}
"""Rest on squares of float32 values, which float64 holds and float32 does not; see the test against long doubles."""


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("key", "style"), [case for case in CASES if case[0] not in EXACT_SQUARES])
def test_the_bound_for_float32_covers_the_float32_kernel(key: str, style: str) -> None:
    """The same kernels and formulas with a coarser rounding, beside which float64 is as good as the exact result."""
    for example in EXAMPLES[key](Maker(style, seed=1)):
        seen, _ = listen(example)
        with torch.backends.mkldnn.flags(enabled=False):
            args = [copied(a) for a in example.args]
            out = example.op(*args, **copied(example.kwargs))
        narrow = [
            t for t in (out if isinstance(out, (tuple, list)) else [out]) if t is not None and t.is_floating_point()
        ]
        if len(seen) > len(narrow):  # running statistics
            narrow += [args[3], args[4]]
        if key.startswith("embedding_dense_backward"):  # rows that are not used are not computed
            narrow = [narrow[0][used_rows(bind(example.op, example.args, example.kwargs))[0]]]
        assert len(narrow) == len(seen)
        for number, ((wide, bound), t) in enumerate(zip(seen, narrow, strict=True)):
            # Where float32 runs out of range, float64 does not: intermediate results like exp(x) included.
            inside = ((wide.abs() > 1e-32) & (wide.abs() < 1e32)) | (wide == 0)
            error, e = (t.double() - wide).abs()[inside], error_bound(wide, bound)[inside]
            worst = float((error / e).nan_to_num(0).max()) if error.numel() else 0.0
            assert bool((error <= e).all()), f"{example.op} result {number}: {worst:.2f} times its bound"


# --- other orders of summation --------------------------------------------------------------------------------------


def reductions(make: Maker, order: Tensor) -> list[tuple[Example, Example]]:
    """(a call, the same call with what it sums in another order), along dimensions of `len(order)` elements."""
    n = len(order)
    a, b, c, x, g = make(6, n), make(n, 5), make(6, 5), make(6, n), make(n, 6)
    batch, rows, images, filters = make(3, 6, n), make(n, 6), make(2, n, 4, 4), make(3, n, 3, 3)
    mean, rstd, index = make(n, 1), make.positive(n, 1), make.index(4, n)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def p(t: Tensor, dim: int = 0) -> Tensor:
        return t.index_select(dim, order)

    calls: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
        (aten.mm.default, (a, b), (p(a, 1), p(b))),
        (aten.addmm.default, (c, a, b), (c, p(a, 1), p(b))),
        (aten.bmm.default, (batch, batch.mT.contiguous()), (p(batch, 2), p(batch, 2).mT.contiguous())),
        (aten.dot.default, (a[0], b[:, 0].clone()), (p(a[0]), p(b[:, 0]))),
        (aten.mv.default, (a, b[:, 0].clone()), (p(a, 1), p(b[:, 0]))),
        (aten.sum.dim_IntList, (x, [1]), (p(x, 1), [1])),
        (aten.sum.dim_IntList, (g, [0]), (p(g), [0])),
        (aten.linalg_vector_norm.default, (x, 2, [1]), (p(x, 1), 2, [1])),
        (aten.var.correction, (x, [1]), (p(x, 1), [1])),
        (aten.logsumexp.default, (x, [1]), (p(x, 1), [1])),
        (aten.convolution.default, (images, filters, None, *rest), (p(images, 1), p(filters, 1), None, *rest)),
        (aten.index_add.default, (c, 1, index, x), (c, 1, p(index), p(x, 1))),
        (aten.embedding_dense_backward.default, (g, index, 4, -1, False), (p(g), p(index), 4, -1, False)),
        (
            aten.native_layer_norm_backward.default,
            (g, rows, [6], mean, rstd, a[:, 0], a[:, 0], [False, True, True]),
            (p(g), p(rows), [6], p(mean), p(rstd), a[:, 0], a[:, 0], [False, True, True]),
        ),
    ]
    return [(Example(op, first), Example(op, second)) for op, first, second in calls]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", [6, 33, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_order_of_summation_stays_within_the_bound(style: str, n: int, threads: int) -> None:
    """Two conforming results lie within one bound of the exact one each, so within two of each other."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    before, differing = torch.get_num_threads(), 0
    try:
        for first, second in reductions(Maker(style, seed=n), order):
            torch.set_num_threads(1)
            one, _ = listen(first)
            torch.set_num_threads(threads)
            two, _ = listen(second)
            for (x, bound), (y, _) in zip(one, two, strict=True):
                assert bool(((x - y).abs() <= 2 * error_bound(x, bound)).all()), str(first.op)
                differing += int((x != y).sum())
    finally:
        torch.set_num_threads(before)
    assert differing > 0, "nothing was summed in another order"


# --- wider arithmetic -----------------------------------------------------------------------------------------------

LongDoubles = Any  # NumPy arrays of long doubles; their type differs by platform
WIDE_ENOUGH = np.finfo(np.longdouble).nmant >= 63


def long(t: Tensor | None) -> Any:
    """A tensor's values as long doubles."""
    return None if t is None else t.detach().double().numpy().astype(np.longdouble)


def _softmax(x: LongDoubles, dim: int) -> LongDoubles:
    e = np.exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


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


def _sigmoid(x: LongDoubles) -> LongDoubles:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _exactly(function: Callable[[Any], Any], x: LongDoubles) -> LongDoubles:
    """A function of floats, computed with 40 digits."""
    with mpmath.workdps(40):
        exact = [function(mpmath.mpf(float(v))) for v in x.reshape(-1)]
        parts = [(float(v), float(v - mpmath.mpf(float(v)))) for v in exact]
    high, low = np.array(parts, dtype=np.longdouble).T
    return (high + low).reshape(x.shape)


def _erf(x: LongDoubles) -> LongDoubles:
    return _exactly(lambda v: mpmath.erf(v / mpmath.sqrt(2)), x)


def _gelu(x: Tensor, approximate: str = "none") -> list[LongDoubles]:
    v = long(x)
    if approximate == "tanh":
        return [v / 2 * (1 + np.tanh(_inner(v)))]
    return [v * (1 + _erf(v)) / 2]


_ROOT = np.sqrt(np.longdouble(2) / np.arctan(np.longdouble(1)) / 4)


def _inner(v: LongDoubles) -> LongDoubles:
    return _ROOT * (v + np.longdouble(0.044715) * v**3)


def _gelu_backward(g: Tensor, x: Tensor, approximate: str = "none") -> list[LongDoubles]:
    v = long(x)
    if approximate == "tanh":
        t = np.tanh(_inner(v))
        slope = _ROOT * (1 + 3 * np.longdouble(0.044715) * v**2)
        return [long(g) * ((1 + t) / 2 + v / 2 * (1 - t * t) * slope)]
    pdf = np.exp(-v * v / 2) / np.sqrt(np.arctan(np.longdouble(1)) * 8)
    return [long(g) * ((1 + _erf(v)) / 2 + v * pdf)]


def _silu_backward(g: Tensor, x: Tensor) -> list[LongDoubles]:
    s = _sigmoid(long(x))
    return [long(g) * s * (1 + long(x) * (1 - s))]


def _log_softmax(x: Tensor, dim: int, _half: bool) -> list[LongDoubles]:
    v = long(x) - long(x).max(axis=dim, keepdims=True)
    return [v - np.log(np.exp(v).sum(axis=dim, keepdims=True))]


def _softmax_backward(g: Tensor, out: Tensor, dim: int, _dtype: torch.dtype) -> list[LongDoubles]:
    return [long(out) * (long(g) - (long(g) * long(out)).sum(axis=dim, keepdims=True))]


def _log_softmax_backward(g: Tensor, out: Tensor, dim: int, _dtype: torch.dtype) -> list[LongDoubles]:
    return [long(g) - np.exp(long(out)) * long(g).sum(axis=dim, keepdims=True)]


def _sum(x: Tensor, dim: list[int] | None = None, keep: bool = False) -> list[LongDoubles]:
    return [np.asarray(long(x).sum(axis=tuple(dim) if dim else None, keepdims=keep))]


REFERENCES: dict[str, Callable[..., list[LongDoubles]]] = {
    "mm.default": lambda a, b: [(long(a)[:, :, None] * long(b)[None]).sum(axis=1)],
    "bmm.default": lambda a, b: [(long(a)[:, :, :, None] * long(b)[:, None]).sum(axis=2)],
    "sum.default": _sum,
    "sum.dim_IntList": _sum,
    "_softmax.default": lambda x, dim, half: [_softmax(long(x), dim)],
    "_softmax_backward_data.default": _softmax_backward,
    "_log_softmax.default": _log_softmax,
    "_log_softmax_backward_data.default": _log_softmax_backward,
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm_backward,
    "gelu.default": _gelu,
    "gelu_backward.default": _gelu_backward,
    "silu.default": lambda x: [long(x) * _sigmoid(long(x))],
    "silu_backward.default": _silu_backward,
    "tanh.default": lambda x: [np.tanh(long(x))],
    "tanh_backward.default": lambda g, y: [long(g) * (1 - long(y) * long(y))],
    "sigmoid_backward.default": lambda g, y: [long(g) * (1 - long(y)) * long(y)],
    "exp.default": lambda x: [np.exp(long(x))],
    "log.default": lambda x: [np.log(long(x))],
    "lgamma.default": lambda x: [_exactly(mpmath.loggamma, long(x))],
    "digamma.default": lambda x: [_exactly(mpmath.digamma, long(x))],
}


@pytest.mark.skipif(not WIDE_ENOUGH, reason="long double is no wider than double on this machine")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("key", sorted(REFERENCES))
def test_the_float64_kernel_is_within_its_bound_of_the_exact_result(key: str, style: str) -> None:
    for example in EXAMPLES[key](Maker(style, seed=2)):
        seen, _ = listen(example)
        seen = [(wide, bound) for wide, bound in seen if wide.numel()]
        for number, ((wide, bound), exact) in enumerate(
            zip(seen, REFERENCES[key](*example.args, **example.kwargs), strict=True)
        ):
            error = np.abs(long(wide) - exact.reshape(wide.shape))
            e = error_bound(wide, bound).numpy()
            assert (error <= e + 1e-300).all(), f"{example.op} result {number}: {float((error / e).max()):.2f} times"
