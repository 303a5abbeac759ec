"""Has a model of a matrix unit compute the 16-bit products of a recording or a replay, as a device with it would.

`InjectedUnit` is a dispatch mode that is entered before the Recorder or the Executor begins, and so lies beneath them.
They compute products of 16 bits in float32 and round them within calibrated bounds. What reaches the mode as a product
of float32 matrices is that computation, and the model takes its place; everything above it is what it always is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from weighbridge.core.errors import UsageError
from weighbridge.numerics import units
from weighbridge.numerics.units.unit import Unit

aten = torch.ops.aten
Tensor = torch.Tensor

_AT_ONCE = 1 << 17
"""Products that a model multiplies at once: what its temporary tensors hold stays in a cache."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a library's kernel feeds a unit.

    Attributes:
        slices: Into how many parts K is divided, each a chain of its own (split-K).
        bias_first: Whether accumulators begin at the bias; else it is added in float32 at the end.
        channels_last: Whether a convolution sums over channels innermost (NHWC), or over the filter's places (NCHW).
    """

    slices: int = 1
    bias_first: bool = False
    channels_last: bool = True

    def order(self, length: int, block: int) -> units.Order:
        """Returns the order for sums of so many products on a unit with such blocks."""
        if self.slices == 1:
            return units.Order(bias_first=self.bias_first)
        blocks = -(-length // block)
        return units.Order(chain=max(1, -(-blocks // self.slices)) * block, bias_first=self.bias_first)


KERNELS = (
    Kernel(),
    Kernel(slices=2, channels_last=False),
    Kernel(bias_first=True),
    Kernel(slices=4, bias_first=True, channels_last=False),
)
"""What the kernels of libraries do, by shape and version."""


class InjectedUnit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, products of float32 matrices whose elements are bfloat16 numbers are those of a unit.

    Attributes:
        products: How many operations the model computed.
        terms: How many products of two numbers these had.
        others: How many operations on float32 matrices it left as they were, because operands have more bits.
    """

    def __init__(self, unit: str, kernel: Kernel = KERNELS[0]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit, self._kernel = units.named(unit), kernel
        self.products = self.terms = self.others = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes a product, or calls what was called."""
        kwargs = kwargs or {}
        way = _WAYS.get(func)
        if way is None or not all(t.dtype == torch.float32 for t in _operands(func, args)):
            return func(*args, **kwargs)
        if not all(_narrow(t) for t in _operands(func, args)):
            self.others += 1
            return func(*args, **kwargs)
        self.products += 1
        return way(self, func, args, kwargs)

    def multiply(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        """Returns a @ b + bias, (M, K) by (K, N) of float32 that holds bfloat16, in parts that fit into a cache."""
        rows, length, columns = *a.shape, b.shape[1]
        self.terms += rows * length * columns
        x, y = a.bfloat16(), b.bfloat16()
        block = self._unit.operation(x.dtype, y.dtype).arithmetic.products
        order = self._kernel.order(length, block)
        added = torch.zeros(rows, columns) if bias is None else bias.expand(rows, columns)
        step = max(1, _AT_ONCE // max(1, columns * block))
        parts = [
            _product(self._unit, x[k : k + step], y, added[k : k + step].contiguous(), order)
            for k in range(0, rows, step)
        ]
        return torch.cat(parts) if parts else torch.zeros(rows, columns)

    def _mm(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        return self.multiply(*args)

    def _bmm(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        a, b = args
        return torch.stack([self.multiply(x, y) for x, y in zip(a, b, strict=True)])

    def _addmm(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        added, a, b = args
        alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        if alpha != 1 or beta != 1:
            return cast(Tensor, added * beta + self.multiply(a, b) * alpha)
        return self.multiply(a, b, added)

    def _baddbmm(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        added, a, b = args
        product = self._bmm(func, (a, b), {})
        return cast(Tensor, added * kwargs.get("beta", 1) + product * kwargs.get("alpha", 1))

    def _convolution(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, w, bias, stride, padding, dilation, *_ = _plain(args)
        patches = functional.unfold(x, w.shape[2:], dilation, padding, stride)  # (N, C*R*S, positions)
        rows = self._along(patches, x.shape[1]).transpose(1, 2).flatten(0, 1)
        out = self.multiply(rows, self._along(w.flatten(1)[..., None], x.shape[1])[..., 0].T, bias)
        sides = [_positions(*each) for each in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)]
        return out.view(x.shape[0], *sides, w.shape[0]).permute(0, 3, 1, 2).contiguous()

    def _convolution_backward(self, func: Any, args: Any, kwargs: Any) -> tuple[Tensor | None, ...]:
        grad, x, w, _, stride, padding, dilation, *_, mask = args
        _plain((x, w, None, *args[4:10]))
        of_input = self._input_gradient(grad, x, w, stride, padding, dilation) if mask[0] else None
        of_weight = None
        if mask[1]:
            patches = functional.unfold(x, w.shape[2:], dilation, padding, stride)
            columns = patches.transpose(1, 2).flatten(0, 1)  # (N*positions, C*R*S)
            of_weight = self.multiply(grad.flatten(2).transpose(0, 1).flatten(1), columns).view(w.shape)
        return of_input, of_weight, grad.sum((0, 2, 3)) if mask[2] else None

    def _input_gradient(self, grad: Tensor, x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
        """A convolution of the gradient, with zeros between its elements, and the filter turned around."""
        sizes = [(n - 1) * s + 1 for n, s in zip(grad.shape[2:], stride, strict=True)]
        apart = grad.new_zeros(*grad.shape[:2], *sizes)
        apart[:, :, :: stride[0], :: stride[1]] = grad
        edges: list[int] = []
        for d in (1, 0):
            before = dilation[d] * (w.shape[2 + d] - 1) - padding[d]
            edges += [before, x.shape[2 + d] - sizes[d] + padding[d]]
        turned = w.flip(2, 3).transpose(0, 1).flatten(1)  # (C, O*R*S)
        patches = functional.unfold(functional.pad(apart, edges), w.shape[2:], dilation)
        rows = self._along(patches, w.shape[0]).transpose(1, 2).flatten(0, 1)
        out = self.multiply(rows, self._along(turned[..., None], w.shape[0])[..., 0].T)
        return out.view(x.shape[0], *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2).contiguous()

    def _along(self, patches: Tensor, channels: int) -> Tensor:
        """Reorders (N, channels * places, positions) along K as the kernel sums."""
        if not self._kernel.channels_last:
            return patches
        count, _, positions = patches.shape
        return patches.reshape(count, channels, -1, positions).transpose(1, 2).reshape(count, -1, positions)


def _product(unit: Unit, x: Tensor, y: Tensor, bias: Tensor, order: units.Order) -> Tensor:
    return unit.product(x, y, bias, order)


def _narrow(t: Tensor) -> bool:
    return bool(torch.equal(t, t.bfloat16().float()))


def _operands(func: Any, args: Any) -> tuple[Tensor, ...]:
    return tuple(args[i] for i in _FACTORS[func])


def _positions(size: int, places: int, stride: int, padding: int, dilation: int) -> int:
    return int((size + 2 * padding - dilation * (places - 1) - 1) // stride + 1)


def _plain(args: Any) -> Any:
    """Returns the arguments of a convolution in two dimensions, without groups and not transposed.

    Raises:
        UsageError: It is another.
    """
    if args[1].dim() != 4 or args[6] or args[8] != 1:
        raise UsageError("units are injected into plain two-dimensional convolutions without groups only")
    return args


_Way = Callable[[InjectedUnit, Any, Any, Any], Any]
_WAYS: dict[Any, _Way] = {
    aten.mm.default: InjectedUnit._mm,
    aten.bmm.default: InjectedUnit._bmm,
    aten.addmm.default: InjectedUnit._addmm,
    aten.baddbmm.default: InjectedUnit._baddbmm,
    aten.convolution.default: InjectedUnit._convolution,
    aten.convolution_backward.default: InjectedUnit._convolution_backward,
}
_FACTORS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
"""Which arguments are multiplied."""
