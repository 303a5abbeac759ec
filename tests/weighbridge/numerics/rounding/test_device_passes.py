"""The rounding pass out of PyTorch operations, as devices without Triton take it, against the CPU's kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.float_strategies import Floats, arrays

from weighbridge.numerics.rounding import contested, cpu_kernels, cpu_passes, device_passes, formats, narrow
from weighbridge.numerics.rounding.bound import Bound

data = st.sampled_from([1, 8, 100]).flatmap(arrays)
bounds = st.sampled_from([0.0, 2.0**-53, 2.0**-30, 2.0**-24, 1e-3])


@given(data, bounds, bounds, st.booleans())
def test_recording_finds_what_the_compiled_pass_finds(x: Floats, rel: float, absolute: float, extra: bool) -> None:
    wide = torch.from_numpy(x)
    factors = (torch.linspace(0, 2.0**-25, x.size, dtype=torch.float64),) if extra else ()
    bound = Bound(rel, absolute, factors)
    out, ours = torch.empty(x.size), torch.empty(x.size)
    checksum, positions, es = device_passes.record(wide, bound, out, cpu_kernels.REACH)
    expected = cpu_passes.record(wide, bound, ours)
    assert checksum == expected[0]
    assert positions.tolist() == expected[1].tolist()
    np.testing.assert_array_equal(es.numpy(), expected[3])
    assert torch.equal(out.view(torch.int32), ours.view(torch.int32))
    assert device_passes.round_plain(wide, out) == checksum


@pytest.mark.parametrize("dtype", [torch.float32, *formats.NARROW])
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40))
def test_any_bits_become_canonical_as_on_the_cpu(dtype: torch.dtype, seed: int, size: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, size * dtype.itemsize, dtype=np.uint8)
    raw[dtype.itemsize - 1 :: dtype.itemsize] |= 0x7C  # large exponents: many NaN
    ours, theirs = (torch.from_numpy(raw.copy()).view(dtype) for _ in range(2))
    expected = (narrow if dtype in formats.NARROW else contested).canonicalise(ours)
    assert device_passes.canonicalise(theirs) == expected
    assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_no_kernels_are_used_on_the_cpu() -> None:
    assert device_passes.fused(torch.device("cpu")) is None


@pytest.mark.parametrize("dtype", [torch.float32, *formats.NARROW])
def test_the_edges_hold_what_is_special(dtype: torch.dtype) -> None:
    """Before kernels are used, they are compared on these: ties, subnormals, overflow, not finite."""
    info, values = torch.finfo(dtype), torch.tensor(device_passes.edges(dtype), dtype=torch.float64)
    least = info.smallest_normal * info.eps
    narrow_values = values.to(dtype).double()
    assert (narrow_values == 0).any()
    assert {least, -least, info.smallest_normal, info.max, float("inf"), 1.0} <= set(narrow_values.tolist())
    assert narrow_values.isnan().any()
    assert (values.isfinite() & narrow_values.isinf()).any()
    assert (values == least / 2).any()
    assert (values == 1 + info.eps / 2).any()
