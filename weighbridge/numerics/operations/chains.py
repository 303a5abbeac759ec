"""Fixed sequences of float32 operations, each with one right answer, in one trip over memory.

What an optimizer does with every weight is mostly of this kind: `lerp`, `addcmul`, `addcdiv`, scaled `add`. Their
value is *defined* as the sequence of `_pass`, each operation rounded to nearest even, and no multiplication contracted
with an addition; so no device can differ and nothing is logged. Only the last result has a checksum. On the CPU one
loop evaluates sequence and checksum; elsewhere, and for operands that broadcast or lie differently, PyTorch's
operations do so one after the other, which gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weighbridge.core.host_memory import array_of
from weighbridge.core.jit import compiled
from weighbridge.numerics.arrays.physical import flat, is_dense
from weighbridge.numerics.operations import quotients
from weighbridge.numerics.rounding.cpu_kernels import BLOCK, Array, finish

Tensor = torch.Tensor

LERP, ADDCMUL, ADDCDIV, ADD = range(4)
_LARGEST = float(np.finfo(np.float32).max)
_jit = compiled(fastmath=False, error_model="numpy")


@_jit
def _block(form: int, x: Array, first: Array, second: Array, value: np.float32) -> None:
    if form == LERP:
        for i in range(x.size):
            x[i] = x[i] + (first[i] - x[i]) * value
    elif form == ADDCMUL:
        for i in range(x.size):
            x[i] = x[i] + (first[i] * second[i]) * value
    elif form == ADDCDIV:
        for i in range(x.size):
            x[i] = x[i] + (first[i] / second[i]) * value
    else:
        for i in range(x.size):
            x[i] = x[i] + first[i] * value


@_jit
def _pass(form: int, x: Array, first: Array, second: Array, value: np.float32, bits: Array) -> np.uint64:
    """Evaluates a sequence over flat float32 arrays in place.

    Args:
        form: Which sequence.
        x: Its first operand, which receives the results.
        first: Its second operand.
        second: Its third operand.
        value: The number in it.
        bits: `x` viewed as uint32.

    Returns:
        The checksum of the results, whose NaN are canonical.
    """
    total = np.uint64(0)
    start = 0
    while start < x.size:
        stop = min(x.size, start + BLOCK)
        _block(form, x[start:stop], first[start:stop], second[start:stop], value)
        total += finish(bits[start:stop], start)
        start = stop
    return total


def _by_steps(form: int, x: Tensor, first: Tensor, second: Tensor, value: Any) -> Tensor:
    """The same out of PyTorch operations, for any device and operands."""
    if form == LERP:
        return x + (first - x) * value  # type: ignore[no-any-return]
    if form == ADDCMUL:
        first = first * second
    elif form == ADDCDIV:
        first = quotients.evaluate(torch.ops.aten.div.Tensor, {"self": first, "other": second})
    return x + first * value  # type: ignore[no-any-return]


_OPERANDS = {
    "lerp": ("self", "end", "weight"),
    "addcmul": ("self", "tensor1", "tensor2"),
    "addcdiv": ("self", "tensor1", "tensor2"),
    "add": ("self", "other"),
    "sub": ("self", "other"),
}


def covers(name: str, bound: dict[str, Any]) -> bool:
    """True if a sequence of that name is defined for operands: all tensors among them are float32.

    Args:
        name: A functional name, without overload.
        bound: Operands by schema name.
    """
    names = _OPERANDS.get(name)
    if names is None or (names[1] == "other" and not isinstance(bound["other"], Tensor)):
        return False
    return all(v.dtype == torch.float32 for v in [bound[n] for n in names] if isinstance(v, Tensor))


def _sequence(name: str, bound: dict[str, Any]) -> tuple[int, Tensor, Tensor, Any]:
    """Which sequence an operation is, and its operands beside `self`."""
    if name == "lerp":
        return LERP, bound["end"], bound["end"], bound["weight"]
    if name in ("add", "sub"):
        return ADD, bound["other"], bound["other"], bound["alpha"] if name == "add" else -bound["alpha"]
    return ADDCMUL if name == "addcmul" else ADDCDIV, bound["tensor1"], bound["tensor2"], bound["value"]


def _apart(x: Tensor, other: Tensor) -> bool:
    """True if two tensors of the same size have no memory in common, or all of it."""
    distance = abs(x.data_ptr() - other.data_ptr())
    return distance == 0 or distance >= x.numel() * x.itemsize


def _is_number(value: Any) -> bool:
    """True if PyTorch and NumPy make the same float32 number of a value."""
    return (type(value) is float and abs(value) <= _LARGEST) or (type(value) is int and abs(value) <= 1 << 53)


def _plain(x: Tensor, first: Tensor, second: Tensor, value: Any) -> bool:
    """True if the loop can walk the operands."""
    return _is_number(value) and all(
        t.is_cpu and t.shape == x.shape and t.is_contiguous() and _apart(x, t) for t in (x, first, second)
    )


def evaluate(
    name: str, bound: dict[str, Any], *, change: bool, exact: Callable[..., None], loop: bool = True
) -> Tensor:
    """Evaluates a sequence on float32 operands.

    Args:
        name: Functional name: `lerp`, `addcmul`, `addcdiv`, `add` or `sub`.
        bound: Operands by schema name; `covers` holds for them.
        change: Whether `self` is changed in place.
        exact: Gets the result's elements in one dimension, and their checksum if they are canonical already
            (`Context.exact`). Not called for a result without elements.
        loop: Whether the loop may be used; without it, PyTorch's operations are.

    Returns:
        `self` if it was changed, else the new tensor.
    """
    x: Tensor = bound["self"]
    form, first, second, value = _sequence(name, bound)
    if loop and x.numel() and _plain(x, first, second, value):
        out = x if change else x.clone(memory_format=torch.contiguous_format)
        results = flat(out)
        array = results.numpy()
        one = array_of(first)
        two = one if second is first else array_of(second)
        exact(results, int(_pass(form, array, one, two, np.float32(value), array.view(np.uint32))))
        return out
    result = _by_steps(form, x, first, second, value)
    if change or not is_dense(result):
        result = result.contiguous()
    if result.numel():
        exact(flat(result))
    return x.copy_(result) if change else result
