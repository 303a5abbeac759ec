"""What a step cannot go below on this machine, if each operation goes over its operands and results once.

The processor multiplies matrices in float64 at a rate, and memory moves at a rate that depends on whether it is in a
cache. An operation takes at least the longer of its FLOPs at the one rate and its bytes at the other. Functions other
than sums and products cost more than that, so it is a bound from below, and not a tight one for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from weighbridge.numerics.rule_table import Kind, settled
from weighbridge.program.flops import flops
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import DTYPES, Tape, references

_SIDE = 1024
_SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """What one thread of this machine does, at best.

    Attributes:
        products: FLOPs of float64 matrix products in a second.
        copies: Bytes that a copy reads and writes in a second, by how many those are.
    """

    products: float
    copies: dict[int, float]

    def moving(self, size: int) -> float:
        """Returns the seconds in which so many bytes are read and written."""
        at = next((each for each in self.copies if size <= each), max(self.copies))
        return size / self.copies[at]


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a step.

    Attributes:
        flops: FLOPs of its operations.
        bytes: Bytes of their operands and results.
        seconds: The least that they take.
    """

    flops: int
    bytes: int
    seconds: float


def measured() -> Rates:
    """Measures this machine, with as many threads as PyTorch has."""
    a, b = torch.ones(_SIDE, _SIDE, dtype=torch.float64), torch.ones(_SIDE, _SIDE, dtype=torch.float64)
    out = torch.empty_like(a)
    products = 2 * _SIDE**3 / _least(lambda: torch.mm(a, b, out=out))
    copies = {}
    for size in _SIZES:
        source = torch.ones(size // 2, dtype=torch.uint8)
        target = torch.empty_like(source)
        often = max(1, (1 << 24) // size)
        copies[size] = size * often / _least(lambda t=target, s=source, n=often: [t.copy_(s) for _ in range(n)])  # type: ignore[misc]
    return Rates(products, copies)


def of_tape(tape: Tape, rates: Rates) -> Limit:
    """Returns the limit of a step with this tape, if it is computed in float64 from float32 operands."""
    counted = flops(tape)
    sizes = [math.prod(size) * DTYPES[dtype].itemsize for _, dtype, size, _, _ in tape.refs]
    moved, seconds = 0, 0.0
    for node, operations in zip(tape.nodes, counted, strict=True):
        rule = settled(resolve(node.op))
        if rule is not None and rule.kind is Kind.VIEW:
            continue
        named = {*references((node.args, tuple(node.kwargs.values()))), *(o for o in node.outputs if o is not None)}
        size = sum(sizes[each] for each in named)
        moved += size
        seconds += max(operations / rates.products, rates.moving(size))
    return Limit(sum(counted), moved, seconds)


def _least(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(_REPEATS):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)
