"""The compiled rounding passes against the same functions out of PyTorch operations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.bound_factors import LAYOUTS, factors
from support.float_strategies import Floats, arrays, finite_values

from weighbridge.numerics.rounding import contested as rounding
from weighbridge.numerics.rounding import cpu_kernels, formats
from weighbridge.numerics.rounding.bound import Bound, bound_at, dense_bound

SIZES = [
    1,
    2,
    cpu_kernels.BLOCK - 1,
    cpu_kernels.BLOCK,
    cpu_kernels.BLOCK + 1,
    2 * cpu_kernels.BLOCK,
    3 * cpu_kernels.BLOCK + 5,
]
EMPTY = np.empty(0)

bounds = st.sampled_from([0.0, 2.0**-53, 2.0**-40, 2.0**-30, 2.0**-24, 1e-3])
data = st.sampled_from(SIZES).flatmap(arrays)


def run_dense(
    x: Floats, rel: float, absolute: float, e: Floats
) -> tuple[npt.NDArray[np.float32], int, npt.NDArray[np.int64], Floats]:
    out = np.empty(x.size, dtype=np.float32)
    positions, found = np.empty(x.size, dtype=np.int64), np.empty(x.size)
    checksum, count = cpu_kernels.pass_dense(x, rel, absolute, e, out, out.view(np.uint32), positions, found)
    return out, int(checksum), positions[:count], found[:count]


def oracle(x: Floats, e: Floats) -> tuple[npt.NDArray[np.uint32], int, list[int]]:
    wide = torch.from_numpy(x)
    narrow = formats.to_format(wide, torch.float32)
    reach = cpu_kernels.REACH * torch.from_numpy(e)
    odd = (wide - reach).to(torch.float32) != (wide + reach).to(torch.float32)
    odd |= ~torch.isfinite(wide) | ~torch.isfinite(reach)
    return narrow.numpy().view(np.uint32), formats.checksum(narrow), odd.nonzero().flatten().tolist()


@given(data, bounds, bounds, st.booleans())
@example(np.array([0.0, -0.0, 1e-46, -1e-46]), 0.0, 1e-46, False)
def test_the_dense_pass_is_its_oracle_bit_for_bit(x: Floats, rel: float, absolute: float, extra: bool) -> None:
    e = np.abs(np.roll(np.nan_to_num(x, posinf=1.0, neginf=1.0), 1)) * 2.0**-50 if extra else EMPTY
    out, checksum, positions, found = run_dense(x, rel, absolute, e)
    with np.errstate(invalid="ignore", over="ignore"):
        whole = rel * np.abs(x) + absolute + (e if extra else 0.0)
    bits, expected, contested = oracle(x, whole)
    assert (out.view(np.uint32) == bits).all()
    assert checksum == expected
    assert positions.tolist() == contested
    np.testing.assert_array_equal(found, whole[contested])


@given(data)
def test_the_plain_pass_rounds_as_the_recording_one(x: Floats) -> None:
    recorded, checksum, _, _ = run_dense(x, 0.0, 0.0, EMPTY)
    out = np.empty(x.size, dtype=np.float32)
    assert int(cpu_kernels.pass_plain(x, out, out.view(np.uint32))) == checksum
    assert (out.view(np.uint32) == recorded.view(np.uint32)).all()


@given(st.sampled_from(SIZES), st.integers(0, 2**32 - 1))
def test_the_exact_pass_only_makes_nan_canonical(size: int, seed: int) -> None:
    """Any bit pattern may come in: NaN with payloads, -0, subnormals."""
    bits = np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32)
    bits[:: max(1, size // 7)] = 0x80000000
    values = bits.view(np.float32).copy()
    expected = np.where(np.isnan(values), np.uint32(cpu_kernels.CANONICAL_NAN), bits)
    checksum = int(cpu_kernels.pass_exact(values.view(np.uint32)))
    assert (values.view(np.uint32) == expected).all()
    assert checksum == formats.checksum(torch.from_numpy(values))
    pairs = zip(expected.tolist(), cpu_kernels.weights(np.arange(size)).tolist(), strict=True)
    assert checksum == sum(b * w for b, w in pairs) % 2**64


@given(st.sampled_from(SIZES[2:]).flatmap(arrays), st.integers(0, 2**32 - 1))
def test_a_checksum_sees_a_change_of_one_bit_anywhere(x: Floats, seed: int) -> None:
    """Weights are odd, so a change of one element by any amount below 2^64 changes the sum."""
    out, checksum, _, _ = run_dense(x, 0.0, 0.0, EMPTY)
    rng = np.random.default_rng(seed)
    at, bit = rng.integers(out.size), rng.integers(32)
    changed = out.view(np.uint32).copy()
    changed[at] ^= np.uint32(1 << bit)
    if not np.isnan(changed.view(np.float32)[at]):
        assert formats.checksum(torch.from_numpy(changed.view(np.float32))) != checksum


SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (2, 40, 33),
    (1, cpu_kernels.BLOCK, 3),
    (4, 3, cpu_kernels.BLOCK + 1),
    (5, 1, 900),
    (2, 20, 130),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data(), rel=bounds, absolute=bounds)
def test_the_rank_one_pass_is_the_dense_pass_with_the_expanded_bound(
    shape: tuple[int, int, int], layout: str, data: st.DataObject, rel: float, absolute: float
) -> None:
    x = torch.from_numpy(data.draw(arrays(int(np.prod(shape)), finite_values))).view(shape)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    bound = Bound(rel=rel, absolute=absolute, factors=factors(layout, shape, rng))
    result = rounding.record(x, bound, 3, 1)
    e = dense_bound(x, bound).numpy()
    _, checksum, positions, _ = run_dense(x.reshape(-1).numpy(), 0.0, 0.0, e)
    assert result.checksum == checksum
    logged = [] if result.entries is None else result.entries.positions.tolist()
    assert logged == positions.tolist()
    some = torch.arange(0, x.numel(), 7)
    assert torch.equal(bound_at(x, bound, some), torch.from_numpy(e)[some])
    if result.entries is not None:
        assert (result.entries.op, result.entries.output) == (3, 1)


def test_a_pass_over_a_permuted_tensor_walks_its_memory() -> None:
    """Positions and checksums are physical; bounds follow the logical shape."""
    x = torch.linspace(-1, 1, 5 * 4 * 6, dtype=torch.float64).view(5, 4, 6)
    weight = torch.linspace(1, 2, 4, dtype=torch.float64).view(4, 1) * 2.0**-30
    plain = rounding.record(x, Bound(factors=(weight,)), 0, 0)
    channels_last = x.permute(0, 2, 1).contiguous().permute(0, 2, 1)
    moved = rounding.record(channels_last, Bound(factors=(weight,)), 0, 0)
    assert torch.equal(plain.out, moved.out)
    assert plain.entries is not None
    assert moved.entries is not None
    at = torch.arange(x.numel()).view(5, 6, 4).permute(0, 2, 1).reshape(-1)  # physical index of each logical element
    assert sorted(at[plain.entries.positions].tolist()) == moved.entries.positions.tolist()


@given(data)
def test_a_list_without_room_is_still_counted(x: Floats) -> None:
    _, checksum, positions, _ = run_dense(x, 1e-3, 0.0, EMPTY)
    out, room = np.empty(x.size, dtype=np.float32), np.empty(positions.size // 2, dtype=np.int64)
    again = cpu_kernels.pass_dense(x, 1e-3, 0.0, EMPTY, out, out.view(np.uint32), room, np.empty(room.size))
    assert (int(again[0]), int(again[1])) == (checksum, positions.size)
