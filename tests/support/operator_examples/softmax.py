"""Examples of `weighbridge.numerics.families.softmax`."""

from __future__ import annotations

import numpy as np
import torch
from support.operator_examples.example import REFERENCES, Calls, Example, LongDoubles, Maker, Op, Tensor, aten, long, of


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


def _softmax(x: LongDoubles, dim: int) -> LongDoubles:
    e = np.exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


def _log_softmax(x: Tensor, dim: int, _half: bool) -> list[LongDoubles]:
    v = long(x) - long(x).max(axis=dim, keepdims=True)
    return [v - np.log(np.exp(v).sum(axis=dim, keepdims=True))]


def _softmax_backward(g: Tensor, out: Tensor, dim: int, _dtype: torch.dtype) -> list[LongDoubles]:
    return [long(out) * (long(g) - (long(g) * long(out)).sum(axis=dim, keepdims=True))]


def _log_softmax_backward(g: Tensor, out: Tensor, dim: int, _dtype: torch.dtype) -> list[LongDoubles]:
    return [long(g) - np.exp(long(out)) * long(g).sum(axis=dim, keepdims=True)]


REFERENCES.update(
    {
        "_softmax.default": lambda x, dim, half: [_softmax(long(x), dim)],
        "_softmax_backward_data.default": _softmax_backward,
        "_log_softmax.default": _log_softmax,
        "_log_softmax_backward_data.default": _log_softmax_backward,
    }
)
