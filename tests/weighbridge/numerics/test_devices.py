"""On which devices bounds and decompositions make their helper tensors, asked of tensors that only say where they are.

Fake tensors compute nothing; but an operation on two devices at once fails as it would on a GPU. PyTorch makes fake
CUDA tensors in its builds for CUDA only, with or without a GPU (older ones: only with). What looks at values ends early
there.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_calls import CALLS, Draw
from support.operator_examples import EXAMPLES, Maker
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map

from weighbridge.numerics.conformance.bound_policy import STRICT, Policy, calibrated
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random import variates
from weighbridge.numerics.rewrites.rewrite_table import TABLE
from weighbridge.numerics.rounding.bound import Bound, dense_bound


def fakes_can_be_on_a_gpu() -> bool:
    """Whether this build of PyTorch makes fake CUDA tensors here."""
    try:
        with FakeTensorMode() as fake:
            return fake.from_tensor(torch.ones(1)).to("cuda").device.type == "cuda"
    except (RuntimeError, AssertionError):
        return False


pytestmark = pytest.mark.skipif(not fakes_can_be_on_a_gpu(), reason="this PyTorch makes no fake CUDA tensors here")

Tensor = torch.Tensor
LOOKS_AT_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
OF_NO_DEVICE = {
    "linspace.default", "logspace.default", "arange.default/float", "arange.start/float", "arange.start_step/float",
}  # fmt: skip
"""Their examples name no device, so they are the CPU's."""


class Places(Context):
    """Asserts that results and everything that their bounds are made of are on the GPU."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        assert wide.device.type == "cuda"
        assert dense_bound(wide, bound).device == wide.device
        if bound.products is not None:
            assert bound.products.left.device == bound.products.right.device == wide.device
        return wide.to(dtype)

    def exact(self, bits: Tensor) -> None:
        assert bits.device.type == "cuda"

    def draw(self, generator: torch.Generator | None, device: torch.device) -> variates.Draw:
        return variates.Draw(1, 0, 1)

    def host(self, value: bool | int | float) -> bool | int | float:
        return value


def moved(value: Any, fake: FakeTensorMode, dtype: torch.dtype | None = None) -> Any:
    """Operands as fake tensors on the GPU, floating ones in another type if wanted."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return torch.device("cuda") if isinstance(leaf, torch.device) else leaf
        there = fake.from_tensor(leaf)
        return there.to("cuda", dtype) if dtype is not None and there.is_floating_point() else there.to("cuda")

    return tree_map(move, value)


def test_a_helper_left_on_the_cpu_is_seen() -> None:
    with FakeTensorMode() as fake, pytest.raises(RuntimeError, match="different devices"):
        moved(torch.ones(3), fake) + torch.ones(3)


@pytest.mark.parametrize("policy", [STRICT, calibrated()], ids=["strict", "calibrated"])
@pytest.mark.parametrize("key", sorted(set(EXAMPLES) - OF_NO_DEVICE))
def test_bounds_are_made_where_the_result_is(key: str, policy: Policy) -> None:
    for example in EXAMPLES[key](Maker("plain")):
        with FakeTensorMode() as fake, torch.no_grad():
            dtype = torch.bfloat16 if policy.calibrated else None
            args, kwargs = moved(example.args, fake, dtype), moved(example.kwargs, fake, dtype)
            try:
                evaluate(example.op, args, kwargs, Places(policy))
            except LOOKS_AT_VALUES:
                continue


@pytest.mark.parametrize("key", sorted(set(CALLS) - OF_NO_DEVICE))
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_decompositions_stay_on_the_device(key: str, data: st.DataObject) -> None:
    draw = Draw(data)
    draw.dtype = torch.float32  # type: ignore[misc]
    call = CALLS[key](draw)
    with FakeTensorMode() as fake, torch.no_grad():
        args, kwargs = moved(call.args, fake), moved(call.kwargs, fake)
        try:
            out = TABLE[key](*args, **kwargs)
        except LOOKS_AT_VALUES:
            return
    for value in out if isinstance(out, (tuple, list)) else [out]:
        assert not isinstance(value, Tensor) or value.device.type == "cuda"
