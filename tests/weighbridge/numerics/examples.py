"""Small example calls of every overload with a rounded rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
Op = torch._ops.OpOverload

STYLES = ("plain", "offset", "mixed")


class Maker:
    """Makes float32 operands: `plain` are normal, `offset` far from zero, `mixed` of very different size."""

    def __init__(self, style: str, seed: int = 0) -> None:
        self.style = style
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        x = torch.randn(shape, generator=self.generator)
        if self.style == "offset":
            return x + 30
        return x * torch.exp(3 * torch.randn(shape, generator=self.generator)) if self.style == "mixed" else x

    def positive(self, *shape: int) -> Tensor:
        return self(*shape).abs() + 1e-3

    def fraction(self, *shape: int) -> Tensor:
        """Values in (0, 1)."""
        return torch.rand(shape, generator=self.generator) * 0.998 + 0.001

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)


@dataclass(slots=True)
class Example:
    """One call."""

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


Calls = Iterator[Example]
EXAMPLES: dict[str, Callable[[Maker], Calls]] = {}


def _with(function: Callable[[Maker, Op], Calls], op: Op) -> Callable[[Maker], Calls]:
    return lambda make: function(make, op)


def of(*keys: str) -> Callable[[Callable[[Maker, Op], Calls]], None]:
    """Registers a function that yields examples of overloads, given (maker, overload)."""

    def add(function: Callable[[Maker, Op], Calls]) -> None:
        for key in keys:
            name, overload = key.partition("/")[0].split(".")
            EXAMPLES[key] = _with(function, getattr(getattr(aten, name), overload))

    return add


# --- products -------------------------------------------------------------------------------------------------------


@of("mm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7, 33), make(33, 9)))
    yield Example(op, (make(70, 9).t(), make(80, 70).t()[:, :40]))
    yield Example(op, (make(3, 1), make(1, 5)))
    yield Example(op, (make(3, 0), make(0, 5)))


@of("bmm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 7, 21), make(3, 21, 6)))


@of("mv.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7, 50), make(50)))


@of("dot.default", "vdot.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(300), make(300)))


@of("addmm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(9), make(7, 33), make(33, 9)))
    yield Example(op, (make(7, 9), make(7, 33), make(33, 9)), {"beta": 0.3, "alpha": -1.7})


@of("baddbmm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 7, 6), make(3, 7, 21), make(3, 21, 6)), {"beta": 0.5, "alpha": 0.125})


@of("addmv.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7), make(7, 50), make(50)), {"beta": 2, "alpha": 0.7})


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], bool, int, int, int, bool, int]] = [
    ((2, 4, 9), (6, 4, 3), True, 1, 0, 1, False, 1),
    ((3, 4, 8, 7), (6, 4, 3, 3), True, 1, 1, 1, False, 1),
    ((2, 6, 9, 9), (4, 3, 3, 3), False, 2, 2, 2, False, 2),
    ((2, 4, 6, 6), (4, 1, 3, 3), True, 1, 1, 1, False, 4),
    ((2, 4, 5, 5), (4, 3, 3, 3), True, 2, 1, 1, True, 1),
    ((2, 4, 5, 5), (4, 3, 3, 3), False, 2, 1, 1, True, 2),
    ((2, 2, 4, 4, 4), (3, 2, 2, 2, 2), True, 1, 0, 1, False, 1),
]
"""(input, weight, bias, stride, padding, dilation, transposed, groups)"""


def convolutions(make: Maker) -> Iterator[tuple[Tensor, Tensor, Tensor | None, tuple[Any, ...]]]:
    for x, w, bias, stride, padding, dilation, transposed, groups in CONVOLUTIONS:
        n = len(x) - 2
        channels = w[1] * groups if transposed else w[0]
        rest = ([stride] * n, [padding] * n, [dilation] * n, transposed, [stride - 1 if transposed else 0] * n, groups)
        yield make(*x), make(*w), make(channels) if bias else None, rest


@of("convolution.default")
def _(make: Maker, op: Op) -> Calls:
    for x, w, bias, rest in convolutions(make):
        yield Example(op, (x, w, bias, *rest))
    yield Example(op, (make(2, 4, 8, 7), make(6, 4, 3, 2), None, [1], [0], [1], False, [0], 1))


@of("convolution_backward.default")
def _(make: Maker, op: Op) -> Calls:
    for x, w, bias, rest in convolutions(make):
        out = aten.convolution.default(x, w, bias, *rest)
        sizes = None if bias is None else [out.shape[1]]
        yield Example(op, (make(*out.shape), x, w, sizes, *rest, [True, True, bias is not None]))
    one_number = ([2], [1], [2], False, [0], 1, [True, True, False])
    yield Example(op, (make(2, 6, 3, 4), make(2, 4, 7, 8), make(6, 4, 3, 2), None, *one_number))


# --- sums -----------------------------------------------------------------------------------------------------------


@of("sum.default", "nansum.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 80),))
    yield Example(op, (make(1),))


@of("sum.dim_IntList")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 60, 3), [1]))
    yield Example(op, (make(5, 60, 3), [0, -1], True))
    yield Example(op, (make(50, 6).t(), [-1]))
    yield Example(op, (make(5, 6), []))


@of("cumsum.default", "cumprod.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 40) / (1 if op is aten.cumsum.default else 8), 1))


@of("prod.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 5) / 8,))


@of("prod.dim_int")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 20) / 8, 1))


@of("linalg_vector_norm.default")
def _(make: Maker, op: Op) -> Calls:
    for order in (2, 1, 3.5, 0.5):
        yield Example(op, (make(6, 70), order))
        yield Example(op, (make(6, 70), order, [0], True))


@of("norm.Scalar")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 70), 2))


@of("norm.ScalarOpt_dim")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 70), 2, [1], True))
    yield Example(op, (make(6, 70), None, [0]))


@of("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 50), [1]), {"correction": 1, "keepdim": True})
    yield Example(op, (make(6, 50), [0]), {"correction": 0})
    yield Example(op, (make(6, 50),), {})


@of("var.dim", "std.dim")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 50), [1], False))
    yield Example(op, (make(6, 50), [0, 1], True, True))


# --- norms ----------------------------------------------------------------------------------------------------------


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


# --- softmax and losses ---------------------------------------------------------------------------------------------


@of("_softmax.default", "_log_softmax.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 40), 1, False))
    yield Example(op, (make(5, 40), 0, False))
    yield Example(op, (make(5, 40) * 20, -1, False))


@of("_safe_softmax.default")
def _(make: Maker, op: Op) -> Calls:
    x = make(5, 40)
    x[1, 3:] = -torch.inf
    yield Example(op, (x, -1))


@of("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def _(make: Maker, op: Op) -> Calls:
    forward = aten._softmax.default if "log" not in op._schema.name else aten._log_softmax.default
    for dim in (1, 0):
        yield Example(op, (make(5, 40), forward(make(5, 40), dim, False), dim, torch.float32))


@of("logsumexp.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 40), [1]))
    yield Example(op, (make(5, 40), [0, 1], True))


@of("nll_loss_forward.default", "nll_loss_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield from _nll(make, op, (9, 6), (9,))


@of("nll_loss2d_forward.default", "nll_loss2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield from _nll(make, op, (3, 6, 4, 4), (3, 4, 4))


def _nll(make: Maker, op: Op, shape: tuple[int, ...], target_shape: tuple[int, ...]) -> Calls:
    forward = aten.nll_loss_forward.default if len(shape) == 2 else aten.nll_loss2d_forward.default
    for reduction in (0, 1, 2):
        for weight in (None, make.positive(6)):
            x, target = make(*shape), make.index(6, *target_shape)
            target.view(-1)[1] = -100
            if op is forward:
                yield Example(op, (x, target, weight, reduction, -100))
            else:
                out, total = forward(x, target, weight, reduction, -100)
                yield Example(op, (make(*out.shape), x, target, weight, reduction, -100, total))


@of("mse_loss.default", "smooth_l1_loss.default", "huber_loss.default")
def _(make: Maker, op: Op) -> Calls:
    for reduction in (0, 1, 2):
        yield Example(op, (make(5, 30), make(5, 30), reduction))


@of("mse_loss_backward.default", "smooth_l1_loss_backward.default", "huber_loss_backward.default")
def _(make: Maker, op: Op) -> Calls:
    more = () if "mse" in op._schema.name else (0.7,)
    yield Example(op, (make(5, 30), make(5, 30), make(5, 30), 0, *more))
    yield Example(op, (make(), make(5, 30), make(5, 30), 1, *more))


@of("binary_cross_entropy_with_logits.default")
def _(make: Maker, op: Op) -> Calls:
    for reduction in (0, 1, 2):
        yield Example(op, (make(5, 30), make.fraction(5, 30), None, None, reduction))
    yield Example(op, (make(5, 30), make.fraction(5, 30), make.positive(30), make.positive(30), 1))


@of("binary_cross_entropy.default")
def _(make: Maker, op: Op) -> Calls:
    for reduction in (0, 1, 2):
        yield Example(op, (make.fraction(5, 30), make.fraction(5, 30).round(), make.positive(30), reduction))
    yield Example(op, (make.fraction(5, 30), make.fraction(5, 30), None, 1))


@of("binary_cross_entropy_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make.fraction(5, 30), make.fraction(5, 30), make.positive(30), 0))
    yield Example(op, (make(), make.fraction(5, 30), make.fraction(5, 30), None, 1))


# --- elementwise ----------------------------------------------------------------------------------------------------


@of("atan2.default", "hypot.default", "logaddexp.default", "logaddexp2.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make(30)))


@of("xlogy.Tensor")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make.positive(5, 30)))


@of(
    "exp.default", "exp2.default", "expm1.default", "sin.default", "cos.default", "tan.default",
    "tanh.default", "sigmoid.default", "silu.default", "erf.default", "erfc.default", "atan.default", "elu.default",
    "softplus.default", "sinh.default", "cosh.default", "asinh.default", "leaky_relu.default", "mish.default",
    "gelu.default", "hardswish.default", "hardsigmoid.default",
)  # fmt: skip
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 300),))
    yield Example(op, (make(300).clamp(-6, 6),))
    if op is aten.gelu.default:
        yield Example(op, (make(5, 300),), {"approximate": "tanh"})
    if op is aten.softplus.default:
        yield Example(op, (make(5, 300), 0.3, 20))
    if op is aten.elu.default:
        yield Example(op, (make(5, 300), 1.7, 1.1, 0.3))


@of("rsqrt.default", "log.default", "log2.default", "log10.default", "log1p.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.positive(5, 300),))
    yield Example(op, (1 + make.fraction(300) * 1e-3,))


@of("asin.default", "acos.default", "atanh.default", "erfinv.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.fraction(300) * 2 - 1,))


@of("lgamma.default", "digamma.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.positive(300),))
    yield Example(op, (10 ** (9 * make.fraction(300) - 3),))
    for zero in (1, 2, 1.4616321):  # and floats next to them, as near as there are
        yield Example(op, (zero * (1 + 0.1 * (2 * make.fraction(60) - 1) * make.fraction(60) ** 12),))
    yield Example(op, (torch.arange(1, 61) / 2,))


@of("acosh.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (1 + make.positive(300),))


@of("pow.Tensor_Scalar")
def _(make: Maker, op: Op) -> Calls:
    for exponent in (0.5, -0.5, 2.7, 4, -2, 1 / 3):
        yield Example(op, (make.positive(300), exponent))


@of("pow.Tensor_Tensor")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.positive(300), make(300).clamp(-3, 3)))


@of("pow.Scalar")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (0.9, make(300).clamp(-20, 20)))


@of("tanh_backward.default", "sigmoid_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make.fraction(5, 30)))


@of("gelu_backward.default", "silu_backward.default", "mish_backward.default", "hardswish_backward.default",
    "hardsigmoid_backward.default")  # fmt: skip
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 300), make(5, 300)))
    yield Example(op, (make(5, 300), make(300).clamp(-4, 4)))
    if op is aten.gelu_backward.default:
        yield Example(op, (make(5, 300), make(5, 300)), {"approximate": "tanh"})


@of("leaky_relu_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make(5, 30), 0.01, False))


@of("softplus_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make(5, 30), 1, 20))
    yield Example(op, (make(5, 30), make(5, 30), 0.3, 20))


@of("elu_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), 1.7, 1.0, 0.6, False, make(5, 30)))
    yield Example(op, (make(5, 30), 1.5, 1.0, 1.0, True, aten.elu.default(make(5, 30), 1.5)))


@of("linspace.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (-0.3, 7.7, 41), {"dtype": torch.float32})


@of("arange.default/float")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (7.5,), {"dtype": torch.float32})


@of("arange.start/float")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (-0.3, 7.5), {"dtype": torch.float32})


@of("arange.start_step/float")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (-0.3, 7.5, 0.1), {"dtype": torch.float32})


# --- linear operators -----------------------------------------------------------------------------------------------


@of("avg_pool2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 9, 8), [3, 2], [2, 2], [1, 1], True, False))
    yield Example(op, (make(2, 3, 9, 8), [3], [2], [1], False, True))


@of("avg_pool2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 4, 4), make(2, 3, 9, 9), [3, 3], [2, 2], [0, 0], False, True, None))


@of("avg_pool3d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 4, 4, 4), [2, 2, 2], [2, 2, 2]))


@of("avg_pool3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 2, 2, 2), make(2, 3, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None))


@of("_adaptive_avg_pool2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 7, 5), [3, 2]))


@of("_adaptive_avg_pool2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 3, 2), make(2, 3, 7, 5)))


@of("_adaptive_avg_pool3d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 7, 5, 4), [3, 2, 2]))


@of("_adaptive_avg_pool3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 3, 2, 2), make(2, 3, 7, 5, 4)))


@of("max_pool2d_with_indices_backward.default")
def _(make: Maker, op: Op) -> Calls:
    x = make(2, 3, 9, 9)
    out, index = aten.max_pool2d_with_indices.default(x, [3, 3], [1, 1], [1, 1])
    yield Example(op, (make(*out.shape), x, [3, 3], [1, 1], [1, 1], [1, 1], False, index))


@of("max_pool3d_with_indices_backward.default")
def _(make: Maker, op: Op) -> Calls:
    x = make(2, 3, 5, 5, 5)
    out, index = aten.max_pool3d_with_indices.default(x, [3, 3, 3], [1, 1, 1])
    yield Example(op, (make(*out.shape), x, [3] * 3, [1] * 3, [0] * 3, [1] * 3, False, index))


@of("reflection_pad1d_backward.default", "replication_pad1d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 12), make(2, 3, 7), [3, 2]))


@of("reflection_pad2d_backward.default", "replication_pad2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 9, 8), make(2, 3, 6, 5), [2, 1, 1, 2]))


@of("reflection_pad3d_backward.default", "replication_pad3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 5, 6, 7), make(2, 3, 3, 4, 5), [1, 1, 0, 2, 1, 1]))


@of("upsample_nearest1d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 20), [20], [2, 3, 5]))


@of("upsample_nearest2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 10, 12), [10, 12], [2, 3, 5, 4]))


@of("_upsample_nearest_exact1d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 20), [20], [2, 3, 5]))


@of("_upsample_nearest_exact2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 10, 12), [10, 12], [2, 3, 5, 4]))


@of("upsample_nearest3d_backward.default", "_upsample_nearest_exact3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 4, 6, 5), [4, 6, 5], [2, 3, 2, 3, 4]))


@of("upsample_trilinear3d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 3, 4, 5), [7, 9, 4], False))
    yield Example(op, (make(2, 3, 3, 4, 5), [7, 9, 11], True))


@of("upsample_trilinear3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 7, 9, 4), [7, 9, 4], [2, 3, 3, 4, 5], False))


@of("upsample_bicubic2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 5, 4), [11, 13], False))
    yield Example(op, (make(2, 3, 5, 40), [5, 93], True))


@of("upsample_bicubic2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 11, 13), [11, 13], [2, 3, 5, 4], False))


@of("upsample_bilinear2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 5, 4), [11, 13], False))
    yield Example(op, (make(2, 3, 5, 40), [5, 80], True))


@of("upsample_bilinear2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 11, 13), [11, 13], [2, 3, 5, 4], False))


@of("index_add.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(4, 5), 0, make.index(4, 30), make(30, 5)), {"alpha": -0.7})


@of("index_put.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(4, 5), [make.index(4, 60), make.index(5, 60)], make(60), True))
    yield Example(op, (make(4, 5), [make.index(4, 60)], make(5), True))


@of("scatter_add.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(4, 5), 0, make.index(4, 30, 5), make(30, 5)))


@of("embedding_dense_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 9, 5), make.index(4, 6, 9), 4, -1, False))
    yield Example(op, (make(6, 9, 5), make.index(4, 6, 9), 4, 2, True))
