"""Sequences of float32 operations: the loop, PyTorch's operations and scalar arithmetic agree in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.float_strategies import any_values, arrays

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations import chains
from weighbridge.numerics.rounding import cpu_kernels

aten = torch.ops.aten
Tensor = torch.Tensor

NAMES = {
    "lerp": ("end", "end", "weight"),
    "addcmul": ("tensor1", "tensor2", "value"),
    "addcdiv": ("tensor1", "tensor2", "value"),
    "add": ("other", "other", "alpha"),
    "sub": ("other", "other", "alpha"),
}
names = st.sampled_from(list(NAMES))
factors = st.one_of(
    st.floats(allow_nan=False, min_value=-3e38, max_value=3e38),
    st.integers(-(1 << 53), 1 << 53),
    st.sampled_from([0.0, -0.0, 1, 1.0, -1, 0.1, 1e-3, 2.0**-149, 2.0**-150, 1 + 2.0**-24, (1 << 53) - 1]),
)


def bound(name: str, x: Tensor, first: Tensor, second: Tensor, value: Any) -> dict[str, Any]:
    a, b, c = NAMES[name]
    return {"self": x, b: second, a: first, c: value}


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


class Sums:
    """Takes what `evaluate` accounts for."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def __call__(self, result: Tensor, checksum: int | None = None) -> None:
        own = cpu_kernels.pass_exact(result.numpy().view(np.uint32))  # also: NaN becomes the canonical one
        assert checksum in (None, own)
        self.found.append(int(own))


def ways(name: str, x: Tensor, first: Tensor, second: Tensor, value: Any) -> Tensor:
    """The result, after all ways of computing it were compared."""
    results = []
    for change in (True, False):  # in place, elements are counted in rows; else as they lie
        sums = Sums()
        for loop in (True, False):
            own = x.clone(memory_format=torch.preserve_format)
            out = chains.evaluate(name, bound(name, own, first, second, value), change=change, exact=sums, loop=loop)
            assert (out is own) == change
            assert change or torch.equal(bits(own), bits(x))
            results.append(out.clone())
        assert len(set(sums.found)) <= 1
    assert all(torch.equal(bits(r), bits(results[0])) for r in results)
    return results[0]


def one_by_one(name: str, a: np.float32, b: np.float32, c: np.float32, value: Any) -> np.float32:
    """The definition, in scalar arithmetic."""
    v = np.float32(value)
    if name == "lerp":
        return a + (b - a) * v
    if name in ("add", "sub"):
        return a + b * v if name == "add" else a - b * v
    return a + (b * c if name == "addcmul" else b / c) * v


@given(names, st.data(), st.sampled_from([1, 7, 2048, 2049, 5000]), factors)
def test_all_ways_give_the_same_bits(name: str, data: st.DataObject, size: int, value: float) -> None:
    with np.errstate(all="ignore"):
        x, first, second = (data.draw(arrays(size, any_values)).astype(np.float32) for _ in range(3))
        result = ways(name, *(torch.from_numpy(v) for v in (x, first, second)), value)
        for i in (*range(min(size, 40)), size - 1):
            wanted = one_by_one(name, x[i], first[i], second[i], value)
            found = result.numpy()[i]
            assert (np.isnan(wanted) and found.view(np.uint32) == cpu_kernels.CANONICAL_NAN) or (
                wanted.view(np.uint32) == found.view(np.uint32)
            )


def test_no_multiplication_and_addition_are_contracted() -> None:
    """With one rounding instead of two, 1 - (1 + d)(1 - d) would be d*d, and not 0."""
    d = 2.0**-13
    x, first, second = torch.ones(4000), torch.full((4000,), 1 + d), torch.full((4000,), 1 - d)
    assert bool((ways("addcmul", x, first, second, -1) == 0).all())
    assert bool((ways("sub", x, first, first, 1 - d) == 0).all())


@pytest.mark.parametrize("name", list(NAMES))
def test_operands_that_lie_otherwise(name: str) -> None:
    """Broadcast, transposed, strided and without dimensions: by PyTorch's operations, in the same layout."""
    x, first, second = torch.rand(3, 6, 8)
    for operands in (
        (x.t(), first.t(), second.t()),
        (x[:, ::2], first[:, ::2], second[:, 1::2]),
        (x, first[0], second[:, :1]),
        (x, first, torch.tensor(2.0)),
        (torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)),
        (x[:0], first[:0], second[:0]),
    ):
        wide = [v.double() for v in operands]
        result = ways(name, *operands, 0.3)
        op = getattr(torch, name)
        wanted = op(wide[0], wide[1], alpha=0.3) if name in ("add", "sub") else None
        wanted = torch.lerp(wide[0], wide[1].expand_as(wide[0]), 0.3) if name == "lerp" else wanted
        wanted = op(*wide, value=0.3) if wanted is None else wanted
        torch.testing.assert_close(result, wanted.float())


def test_a_result_may_be_larger_than_self() -> None:
    out = chains.evaluate(
        "addcmul", bound("addcmul", torch.ones(2, 1), torch.ones(3), torch.ones(3), 2), change=False, exact=Sums()
    )
    assert out.tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("shift", [-1000, -1, 1, 1000])
def test_operands_that_overlap(shift: int) -> None:
    """What the loop has written must not be what it reads next."""
    memory = torch.rand(9000)
    place = 2000
    x, other = (memory.clone() for _ in range(2))
    view, end = x[place : place + 5000], x[place + shift : place + shift + 5000]
    chains.evaluate("lerp", bound("lerp", view, end, end, 0.25), change=True, exact=Sums())
    apart = other[place : place + 5000].clone()
    end = other[place + shift : place + shift + 5000]
    chains.evaluate("lerp", bound("lerp", apart, end, end, 0.25), change=True, exact=Sums())
    assert torch.equal(bits(view), bits(apart))


def test_an_operand_may_be_self() -> None:
    x = torch.rand(5000)
    assert torch.equal(ways("addcmul", x, x, x, 2), x + (x * x) * 2)


@pytest.mark.parametrize("value", [1e300, -1e300, float("inf"), float("nan"), (1 << 53) + 1, 3.4028235677973366e38])
def test_numbers_that_no_float32_holds(value: float) -> None:
    """PyTorch decides what they become."""
    ways("lerp", *torch.rand(3, 10), value)


@pytest.mark.parametrize(
    ("op", "operands", "options"),
    [
        (aten.lerp.Scalar, ("double", "float", 0.5), {}),
        (aten.lerp_.Scalar, ("bfloat16", "bfloat16", 0.5), {}),
        (aten.addcmul_.default, ("float", "half", "float"), {}),
        (aten.add_.Tensor, ("float", "double"), {"alpha": 2}),
        (aten.add.Tensor, ("int", "int"), {"alpha": 2}),
        (aten.add.Scalar, ("float", 1.0, 2), {}),
        (aten.rsub.Tensor, ("float", "float"), {"alpha": 2}),
    ],
)
def test_other_types_are_refused(op: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Recorded they are steps of their own; a tape has no such operation."""
    args = [getattr(torch.ones(2), v)() if isinstance(v, str) else v for v in operands]
    with pytest.raises(RefusedOperationError, match="no rule"):
        evaluate(op, args, options, Recording(0, Generators()))
