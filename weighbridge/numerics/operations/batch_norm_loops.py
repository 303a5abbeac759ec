"""Batch normalisation of float32 on the CPU: the steps of `batch_norm` in as few trips over memory as they allow.

Each element's arithmetic is that of the steps, one rounding an operation and nothing contracted, so the bits are the
same. Sums are taken as in `sums`. An operand is a dense array (outer, channels, inner) in memory; `inner` is 1 where
the channels are innermost, as those of a matrix or in channels-last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format

from weighbridge.core.jit import compiled
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.arrays.reductions import Triple, memory_of
from weighbridge.numerics.operations.sums import add, add_row, least_of, row
from weighbridge.numerics.operations.sums import finish as finish_sums
from weighbridge.numerics.rounding.cpu_kernels import Array, finish

Tensor = torch.Tensor
Sum = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Rounds (sums in float64, sums of absolute values, least absolute values, addends of one sum) to float32."""
Exact = Callable[..., None]

_strict = compiled(fastmath=False, error_model="numpy")
_BLOCK = 256
_ROWS = 32
PLAIN, SQUARES, PRODUCTS = range(3)
_NONE = np.empty(0, dtype=np.float32)


@_strict
def _addends(form: int, x: Array, g: Array, mean: Array, out: Array) -> None:
    if form == PLAIN:
        for i in range(x.size):
            out[i] = x[i]
    elif form == SQUARES:
        for i in range(x.size):
            d = x[i] - mean[i]
            out[i] = d * d
    else:
        for i in range(x.size):
            out[i] = g[i] * (x[i] - mean[i])


@_strict
def _totals(
    form: int, x: Array, g: Array, mean: Array, shape: Triple, out: Array, lost: Array, size: Array, least: Array
) -> None:
    """Sums x, (x - mean)^2 or g*(x - mean) over all but the channels; see `sums` for what it receives them in."""
    outer, channels, inner = shape
    if inner == 1:
        addends, partial = np.empty(channels, dtype=np.float32), np.zeros(channels)
        for a in range(outer):
            p = a * channels
            _addends(form, x[p : p + channels], g[p : p + channels], mean, addends)
            add_row(addends, addends.view(np.uint32), partial, size, least)
            if a % _ROWS == _ROWS - 1 or a == outer - 1:
                for c in range(channels):
                    add(out, lost, c, partial[c])
                    partial[c] = 0.0
    else:
        addends, means = np.empty(_BLOCK, dtype=np.float32), np.empty(_BLOCK, dtype=np.float32)
        for a in range(outer):
            for c in range(channels):
                p = (a * channels + c) * inner
                if form != PLAIN:
                    means[:] = mean[c]
                for start in range(p, p + inner, _BLOCK):
                    stop = min(start + _BLOCK, p + inner)
                    block = addends[: stop - start]
                    _addends(form, x[start:stop], g[start:stop], means[: stop - start], block)
                    total, absolute, small = row(block, block.view(np.uint32))
                    add(out, lost, c, total)
                    size[c] += absolute
                    least[c] = min(least[c], small)
    finish_sums(out, lost)


@_strict
def _normalise_block(x: Array, mean: Array, scale: Array, bias: Array, shifted: bool, out: Array) -> None:
    if shifted:
        for i in range(x.size):
            out[i] = (x[i] - mean[i]) * scale[i] + bias[i]
    else:
        for i in range(x.size):
            out[i] = (x[i] - mean[i]) * scale[i]


@_strict
def _normalise(x: Array, mean: Array, scale: Array, bias: Array, shape: Triple, out: Array, bits: Array) -> np.uint64:
    """Writes (x - mean)*scale + bias; an empty bias is none. Returns the checksum."""
    outer, channels, inner = shape
    total, shifted = np.uint64(0), bias.size > 0
    if inner == 1:
        for a in range(outer):
            p, q = a * channels, (a + 1) * channels
            _normalise_block(x[p:q], mean, scale, bias, shifted, out[p:q])
            total += finish(bits[p:q], p)
        return total
    means, scales, biases = (
        np.empty(_BLOCK, dtype=np.float32),
        np.empty(_BLOCK, dtype=np.float32),
        np.empty(_BLOCK, dtype=np.float32),
    )
    for a in range(outer):
        for c in range(channels):
            means[:], scales[:] = mean[c], scale[c]
            if shifted:
                biases[:] = bias[c]
            p = (a * channels + c) * inner
            for start in range(p, p + inner, _BLOCK):
                stop = min(start + _BLOCK, p + inner)
                n = stop - start
                _normalise_block(x[start:stop], means[:n], scales[:n], biases[:n], shifted, out[start:stop])
                total += finish(bits[start:stop], start)
    return total


@_strict
def _gradient_block(g: Array, x: Array, mean: Array, shift: Array, slope: Array, scale: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = ((g[i] - shift[i]) - (x[i] - mean[i]) * slope[i]) * scale[i]


@_strict
def _gradient(
    g: Array, x: Array, mean: Array, shift: Array, slope: Array, scale: Array, shape: Triple, out: Array, bits: Array
) -> np.uint64:
    """Writes ((g - shift) - (x - mean)*slope)*scale, or g*scale if `shift` is empty. Returns the checksum."""
    outer, channels, inner = shape
    total, whole = np.uint64(0), shift.size > 0
    length = channels if inner == 1 else _BLOCK
    means, shifts = np.empty(length, dtype=np.float32), np.empty(length, dtype=np.float32)
    slopes, scales = np.empty(length, dtype=np.float32), np.empty(length, dtype=np.float32)
    if inner == 1:
        scales[:] = scale
        if whole:
            means[:], shifts[:], slopes[:] = mean, shift, slope
    for a in range(outer):
        for c in range(1 if inner == 1 else channels):
            if inner > 1:
                scales[:] = scale[c]
                if whole:
                    means[:], shifts[:], slopes[:] = mean[c], shift[c], slope[c]
            extent = channels if inner == 1 else inner
            p = a * channels if inner == 1 else (a * channels + c) * inner
            for start in range(p, p + extent, length):
                stop = min(start + length, p + extent)
                n = stop - start
                if whole:
                    _gradient_block(
                        g[start:stop], x[start:stop], means[:n], shifts[:n], slopes[:n], scales[:n], out[start:stop]
                    )
                else:
                    for i in range(n):
                        out[start + i] = g[start + i] * scales[i]
                total += finish(bits[start:stop], start)
    return total


@_strict
def _quotients(x: Array, count: np.float32, out: Array) -> None:
    for c in range(x.size):
        out[c] = x[c] / count


@_strict
def _run(running: Array, kept: np.float32, value: Array, part: np.float32) -> None:
    for c in range(running.size):
        running[c] = running[c] * kept + value[c] * part


@_strict
def _scales(variance: Array, eps: np.float32, weight: Array, rstd: Array, scale: Array) -> None:
    """Writes 1/sqrt(variance + eps) and, if there is a weight, that times the weight; else the same again."""
    for c in range(variance.size):
        rstd[c] = np.float32(1) / np.sqrt(variance[c] + eps)
        scale[c] = weight[c] * rstd[c] if weight.size else rstd[c]


@_strict
def _slopes(along: Array, total: Array, count: np.float32, rstd: Array, shift: Array, slope: Array) -> None:
    for c in range(along.size):
        shift[c] = total[c] / count
        slope[c] = along[c] / count * rstd[c]


@_strict
def _weigh(weight: Array, x: Array, out: Array) -> None:
    """Writes weight*x, or x if there is no weight."""
    for c in range(x.size):
        out[c] = weight[c] * x[c] if weight.size else x[c]


class _Operand:
    """An operand (batch, channels, *spatial), and others of its shape, as the loops walk them."""

    def __init__(self, x: Tensor) -> None:
        self._format = suggest_memory_format(x)
        self._channels = int(x.shape[1])
        self.addends = x.numel() // self._channels
        inner = math.prod(x.shape[2:]) if self._format == torch.contiguous_format else 1
        self.shape: Triple = (self.addends // inner, self._channels, inner)
        self.count = np.float32(self.addends)
        self._dense, self.array = self._walk(x)

    def _walk(self, x: Tensor) -> tuple[Tensor, Array]:
        dense = x.contiguous(memory_format=self._format)
        return dense, memory_of(dense)

    def another(self, x: Tensor) -> Array:
        """Returns the memory of a tensor of the same shape, in the same order."""
        return self._walk(x)[1]

    def new(self) -> tuple[Tensor, Array]:
        """Returns a new tensor like the operand, and its memory."""
        out = torch.empty_like(self._dense)
        return out, flat(out).numpy()

    def vector(self) -> Array:
        """Returns new numbers, one a channel."""
        return np.empty(self._channels, dtype=np.float32)

    def result(self) -> tuple[Tensor, Array]:
        """Returns a new tensor of one number a channel, and its memory."""
        out = torch.empty(self._channels, dtype=torch.float32)
        return out, out.numpy()

    def total(self, form: int, x: Array, g: Array, mean: Array, summed: Sum) -> Tensor:
        """Returns a sum over all but the channels, rounded."""
        out, lost, size = np.zeros((3, self._channels))
        bits = np.full(self._channels, 0xFFFFFFFF, dtype=np.uint32)
        _totals(form, x, g, mean, self.shape, out, lost, size, bits)
        total, absolute, least = (torch.from_numpy(a) for a in (out, size, least_of(bits)))
        return summed(total, absolute, least, self.addends)


def _number(value: float) -> np.float32:
    """Returns a number as operations on float32 take it."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def _array(t: Tensor | None) -> Array:
    return _NONE if t is None else memory_of(t)


def walks(bound: dict[str, Any]) -> bool:
    """True if the loops can evaluate a call: on the CPU, with elements, and nothing changed that is also normalised.

    Args:
        bound: Operands by schema name, all float32 and of shapes that fit.
    """
    x, tensors = bound["input"], {name: v for name, v in bound.items() if isinstance(v, Tensor)}
    vectors = [v for name, v in tensors.items() if name not in ("input", "grad_out")]
    return (
        x.numel() > 0
        and all(t.device.type == "cpu" for t in tensors.values())
        and all(v.is_contiguous() and v.untyped_storage()._cdata != x.untyped_storage()._cdata for v in vectors)
    )


def forward(bound: dict[str, Any], training: bool, summed: Sum, exact: Exact) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises; changes the running statistics in training.

    Args:
        bound: Operands by schema name; `walks` holds for them.
        training: Whether by the batch's own statistics.
        summed: Rounds sums.
        exact: Gets each result, and its checksum if it is canonical already (`Context.exact`).

    Returns:
        (out, mean, rstd), of which the latter two are empty if not `training`.
    """
    x, eps = _Operand(bound["input"]), _number(bound["eps"])
    running = bound.get("running_mean"), bound.get("running_var")
    (mean_out, mean), (rstd_out, rstd), scale = x.result(), x.result(), x.vector()
    if training:
        _quotients(x.total(PLAIN, x.array, x.array, _NONE, summed).numpy(), x.count, mean)
        variance = x.vector()
        _quotients(x.total(SQUARES, x.array, x.array, mean, summed).numpy(), x.count, variance)
        momentum, unbiased = bound["momentum"], x.addends / max(x.addends - 1, 1)
        for t, value, part in zip(running, (mean, variance), (momentum, momentum * unbiased), strict=True):
            if t is not None:
                _run(_array(t), _number(1 - momentum), value, _number(part))
    else:
        mean, variance = _array(running[0]), _array(running[1])
    _scales(variance, eps, _array(bound["weight"]), rstd, scale)
    out, results = x.new()
    checksum = _normalise(x.array, mean, scale, _array(bound["bias"]), x.shape, results, results.view(np.uint32))
    exact(flat(out), int(checksum))
    if not training:
        return out, mean_out.new_empty(0), mean_out.new_empty(0)
    for t in (mean_out, rstd_out, *running):
        if t is not None:
            exact(t)
    return out, mean_out, rstd_out


def backward(bound: dict[str, Any], summed: Sum, exact: Exact) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias, those that `output_mask` asks for; see `forward`."""
    x, train, mask = _Operand(bound["input"]), bound["train"], bound["output_mask"]
    g, weight = x.another(bound["grad_out"]), _array(bound["weight"])
    scale = x.vector()
    if train:
        mean, rstd = _array(bound["save_mean"]), _array(bound["save_invstd"])
        _weigh(weight, rstd, scale)
    else:
        mean, rstd = _array(bound["running_mean"]), x.vector()
        _scales(_array(bound["running_var"]), _number(bound["eps"]), weight, rstd, scale)
    along_out, along = x.result()
    total = grad_x = None
    if mask[1] or (train and mask[0]):
        _weigh(x.total(PRODUCTS, x.array, g, mean, summed).numpy(), rstd, along)
    if mask[2] or (train and mask[0]):
        total = x.total(PLAIN, g, g, _NONE, summed)
    if mask[0]:
        shift = slope = _NONE
        if train and total is not None:
            shift, slope = x.vector(), x.vector()
            _slopes(along, total.numpy(), x.count, rstd, shift, slope)
        grad_x, results = x.new()
        checksum = _gradient(g, x.array, mean, shift, slope, scale, x.shape, results, results.view(np.uint32))
        exact(flat(grad_x), int(checksum))
    if mask[1]:
        exact(along_out)
    return grad_x, along_out if mask[1] else None, total if mask[2] else None
