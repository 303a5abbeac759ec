"""The Triton kernels in Triton's interpreter, against the CPU's kernels: `TRITON_INTERPRET=1 python interpreted.py`.

A process of its own, because Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bound_factors import LAYOUTS, factors, positive
from support.float_strategies import Floats, any_values, arrays, finite_values

from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import (
    contested,
    cpu_kernels,
    cpu_passes,
    device_passes,
    formats,
    narrow,
    triton_kernels,
)
from weighbridge.numerics.rounding.bound import Bound

Tensor = torch.Tensor

CPU = torch.device("cpu")
SIZES = [1, 7, triton_kernels.BLOCK - 1, triton_kernels.BLOCK, 2 * triton_kernels.BLOCK + 5]
NARROW = list(formats.NARROW)

relative = st.sampled_from([0.0, 2.0**-53, 2.0**-40, 2.0**-24, 1e-3])
absolute = st.sampled_from([0.0, 5e-324, 2.0**-149, 2.0**-30])
data = st.sampled_from(SIZES).flatmap(lambda size: arrays(size, any_values))
shapes = st.sampled_from([(1, 1, 1), (3, 5, 7), (2, 40, 33), (1, triton_kernels.BLOCK, 3), (5, 1, 300)])


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def bits(t: Tensor) -> Tensor:
    return t.view(torch.int32 if t.itemsize == 4 else torch.int16)


def numba(x: Tensor, bound: Bound) -> tuple[Tensor, int, Tensor, Tensor]:
    """What the CPU's kernels make of a wide result: (out, checksum, contested positions, their bounds)."""
    out = torch.empty_strided(x.shape, x.stride(), dtype=torch.float32)
    checksum, positions, _, bounds = cpu_passes.record(x, bound, out)
    return out, checksum, torch.from_numpy(positions), torch.from_numpy(bounds)


def triton(x: Tensor, bound: Bound, dtype: torch.dtype, reach: float) -> tuple[Tensor, int, Tensor, Tensor]:
    out = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
    return out, *device_passes._with_kernels(triton_kernels, x, bound, out, reach)


def agree(a: tuple[Tensor, int, Tensor, Tensor], b: tuple[Tensor, int, Tensor, Tensor]) -> None:
    assert torch.equal(bits(flat(a[0])), bits(flat(b[0])))
    assert a[1] == b[1]
    assert torch.equal(a[2], b[2])
    assert same(a[3], b[3])


@settings(max_examples=60, deadline=None)
@given(data, relative, absolute)
def without_factors(values: Floats, rel: float, least: float) -> None:
    x, bound = torch.from_numpy(values), Bound(rel, least)
    agree(numba(x, bound), triton(x, bound, torch.float32, cpu_kernels.REACH))
    out = torch.empty(x.shape)
    assert triton_kernels.round_plain(x, out) == int(numba(x, bound)[1])


@settings(max_examples=80, deadline=None)
@given(st.data(), shapes, st.sampled_from([*LAYOUTS, "four"]), relative)
def with_factors(draw: st.DataObject, shape: tuple[int, int, int], kind: str, rel: float) -> None:
    x = torch.from_numpy(draw.draw(arrays(int(np.prod(shape)), finite_values))).view(shape)
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32 - 1)))
    b, r, c = shape
    if kind == "four":  # no three nested loops walk these two
        x = x.view(b, r, 1, c).expand(b, r, 2, c).clone()
        found: tuple[Tensor, ...] = (positive(rng, b, 1, 2, 1), positive(rng, 1, r, 1, c))
    else:
        found = factors(kind, shape, rng)
        if draw.draw(st.booleans()):
            x = x.permute(0, 2, 1).contiguous().permute(0, 2, 1)
    bound = Bound(rel, 0.0, found)
    agree(numba(x, bound), triton(x, bound, torch.float32, cpu_kernels.REACH))


@settings(max_examples=80, deadline=None)
@given(data, st.sampled_from(NARROW), st.booleans(), relative, absolute)
def to_sixteen_bits(values: Floats, dtype: torch.dtype, wider: bool, rel: float, least: float) -> None:
    """The kernel evaluates bounds in float64 whatever the wide type, so the oracle is given float64."""
    x = torch.from_numpy(values)
    x = x if wider else x.to(torch.float32)
    bound, out = Bound(rel, least), torch.empty(x.shape, dtype=dtype)
    expected = (out, *device_passes._record(x.double(), bound, out, narrow.REACH))
    agree(expected, triton(x, bound, dtype, narrow.REACH))
    plain, checksum = narrow.round_plain(x, dtype)
    again = torch.empty_like(plain)
    assert triton_kernels.round_plain(x, again) == checksum
    assert torch.equal(bits(plain), bits(again))


def every_pattern_of_sixteen_bits() -> None:
    """All float32 whose upper half is any pattern, at, below and above the tie: each rounds as on the CPU."""
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (upper | lower).to(torch.int32).view(torch.float32)
        for dtype in NARROW:
            out, got = formats.to_format(x, dtype), torch.empty(x.shape, dtype=dtype)
            triton_kernels.round_plain(x, got)
            assert torch.equal(bits(out), bits(got)), (dtype, lower)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, *NARROW]))
def any_bits_made_canonical(size: int, seed: int, dtype: torch.dtype) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, size * dtype.itemsize, dtype=np.uint8)
    ours, theirs = (torch.from_numpy(raw.copy()).view(dtype) for _ in range(2))
    expected = (narrow if dtype in NARROW else contested).canonicalise(ours)
    assert triton_kernels.canonicalise(theirs) == expected
    assert torch.equal(bits(ours), bits(theirs))


def a_kernel_that_differs_is_not_used() -> None:
    """The comparison before first use: it passes as things are, and fails if a kernel rounds one element otherwise."""
    assert device_passes._conforms(triton_kernels, CPU)
    honest = triton_kernels.round_plain

    def wrong(x: Tensor, out: Tensor) -> int:
        checksum = honest(x, out)
        at = int((out == 1.0).nonzero()[0])
        out[at] = 1.0 + torch.finfo(out.dtype).eps
        return checksum

    triton_kernels.round_plain = wrong
    assert not device_passes._conforms(triton_kernels, CPU)
    triton_kernels.round_plain = honest


def main() -> None:
    """Runs all of it; an assertion that fails ends the process."""
    np.seterr(all="ignore")
    for check in (
        without_factors, with_factors, to_sixteen_bits, every_pattern_of_sixteen_bits, any_bits_made_canonical,
        a_kernel_that_differs_is_not_used,
    ):  # fmt: skip
        check()
        print(check.__name__)


if __name__ == "__main__":
    main()
