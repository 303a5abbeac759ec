"""What collectives make has one right answer: that of IEEE operations in the order of the group."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.exchanges import NAMES, REDUCTIONS, ROOTED, combine, pieces
from weighbridge.numerics.exchanges import given as contributed

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def to_float32(value: float) -> float:
    """Rounds a float64 to float32, overflow to infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_sums_means_and_products_are_python_s_in_the_order_of_the_group(values: list[float]) -> None:
    """Python's own float64 arithmetic, one operation a rank, rounded once."""
    parts = [torch.tensor([v]) for v in values]
    total, product = values[0], values[0]
    for value in values[1:]:
        total, product = total + value, product * value
    expected = {"sum": total, "avg": total / len(values), "product": product}
    for reduction, wide in expected.items():
        found = combine(reduction, parts).item()
        wanted = to_float32(wide)
        assert found == wanted or (math.isnan(found) and math.isnan(wanted))


@given(st.lists(FLOATS, min_size=2, max_size=2))
def test_the_sum_of_two_is_the_exact_sum_rounded(values: list[float]) -> None:
    """Two float32 numbers: rounding the float64 sum gives the float32 nearest to the exact sum."""
    found = combine("sum", [torch.tensor([v]) for v in values]).item()
    if math.isfinite(found):
        exact = Fraction(values[0]) + Fraction(values[1])
        below, above = (
            torch.nextafter(torch.tensor(found), torch.tensor(side)).item() for side in (-math.inf, math.inf)
        )
        distance = abs(Fraction(found) - exact)
        assert all(not math.isfinite(n) or distance <= abs(Fraction(n) - exact) for n in (below, above))


def test_extremes_have_one_zero_and_one_nan() -> None:
    zeros = [torch.tensor([-0.0, 0.0, -0.0]), torch.tensor([0.0, -0.0, -0.0])]
    for reduction in ("min", "max"):
        assert combine(reduction, zeros).view(torch.int32).tolist() == [0, 0, 0]
        nans = combine(reduction, [torch.tensor([math.nan, 1.0]), torch.tensor([2.0, -math.nan])])
        assert nans.view(torch.int32).tolist() == [0x7FC00000] * 2


@pytest.mark.parametrize("reduction", ["sum", "avg", "product", "min", "max"])
def test_a_float64_nan_is_the_canonical_one_wherever_it_lies(reduction: str) -> None:
    """Kernels keep one payload or the other, and in vector code another one than in the tail."""
    nans = [torch.full((37,), 0x7FF8000000000000 + i).view(torch.float64) for i in (1, 2)]
    assert combine(reduction, nans).view(torch.int64).tolist() == [0x7FF8000000000000] * 37


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_summed_in_thirty_two(dtype: torch.dtype) -> None:
    parts = [torch.randn(100, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(5)]
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    assert torch.equal(combine("sum", parts), total.to(dtype))


def test_integers_keep_their_type_and_bits() -> None:
    a, b = torch.tensor([1 << 62, 12, -1]), torch.tensor([1 << 62, 10, 7])
    assert combine("sum", [a, b]).tolist() == [-(1 << 63), 22, 6]
    assert combine("band", [a, b]).tolist() == [1 << 62, 8, 7]
    assert combine("bxor", [a, b]).tolist() == [0, 6, -8]
    assert combine("max", [a, b]).tolist() == [1 << 62, 12, 7]


def test_what_has_no_right_answer_is_refused() -> None:
    for reduction, part in (
        ("avg", torch.tensor([1])), ("band", torch.tensor([1.0])), ("sum", torch.tensor([True])),
        ("sum", torch.tensor([1j])),
    ):  # fmt: skip
        with pytest.raises(RefusedOperationError):
            combine(reduction, [part, part])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("members", [2, 5])
def test_every_piece_comes_from_something_that_its_member_gives(name: str, members: int) -> None:
    if name in ("send", "recv"):
        members = 2
    for root in range(members if name in ROOTED else 1):
        gives = [contributed(name, members, place, root) for place in range(members)]
        if name in ("send", "recv"):
            gives = [1, 0]
        used = set()
        for place in range(members):
            if name == "send" or (name == "recv" and place == 0):
                continue
            for sources in pieces(name, members, place, root):
                assert all(0 <= j < gives[i] for i, j in sources)
                used |= set(sources)
        everything = {(i, j) for i in range(members) for j in range(gives[i])}
        assert used == everything or name == "send"


def test_the_reductions_are_those_of_the_library() -> None:
    import torch.distributed as dist

    assert [str(getattr(dist.ReduceOp, name.upper())).rpartition(".")[2].lower() for name in REDUCTIONS] == [
        *REDUCTIONS
    ]


def test_a_reduction_that_cannot_be_read_is_refused() -> None:
    """PyTorch 2.6 hands out objects that do not say which one they are."""
    from prover.ranks import collective_recorder

    with pytest.raises(RefusedOperationError, match="record jobs on several ranks with a newer one"):
        collective_recorder.reduction_of(object())
