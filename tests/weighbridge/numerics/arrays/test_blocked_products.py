"""Products in blocks: their errors against exact arithmetic, whatever order a library likes, and how they are split."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.numerics.arrays.blocked_products import length, roundings, split
from weighbridge.numerics.bounds import U, gamma

Tensor = torch.Tensor
Order = Callable[[list[float]], float]
LEAST = (64, 256)


def one_by_one(terms: list[float]) -> float:
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total


def in_pairs(terms: list[float]) -> float:
    while len(terms) > 1:
        terms = [sum(terms[i : i + 2]) for i in range(0, len(terms), 2)]
    return terms[0]


def in_lanes(terms: list[float]) -> float:
    """As vector units do: eight sums, then their sum."""
    return one_by_one([one_by_one(lane) for lane in (terms[i::8] for i in range(8)) if lane])


ORDERS: dict[str, Order] = {
    "one by one": one_by_one,
    "backwards": lambda terms: one_by_one(terms[::-1]),
    "largest first": lambda terms: one_by_one(sorted(terms, key=abs, reverse=True)),
    "smallest first": lambda terms: one_by_one(sorted(terms, key=abs)),
    "signs apart": lambda terms: one_by_one(sorted(terms)),
    "in pairs": in_pairs,
    "in lanes": in_lanes,
}


def kernel(order: Order) -> Callable[..., Tensor]:
    """A library's product of two matrices that adds terms in an order of its own."""

    def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        rows = [[order((row * column).tolist()) for column in b.T] for row in a]
        made = torch.tensor(rows, dtype=torch.float64)
        return made if out is None else out.copy_(made)

    return product


def normal(count: int) -> tuple[Tensor, Tensor]:
    a, b = torch.randn(2, 2, count, generator=torch.Generator().manual_seed(count))
    return a, b.T


def one_sign(count: int) -> tuple[Tensor, Tensor]:
    a, b = normal(count)
    return a.abs(), b.abs()


def constants(count: int) -> tuple[Tensor, Tensor]:
    a, b = normal(count)
    return a[:, :1].expand_as(a), b[:1].expand_as(b)


def of_different_size(count: int) -> tuple[Tensor, Tensor]:
    a, b = normal(count)
    return (4 * a).exp(), b


def cancelling(count: int) -> tuple[Tensor, Tensor]:
    """The second half takes away what the first half gave, but for its last digits."""
    a, b = normal(count)
    half = count // 2
    a[:, half : 2 * half] = -a[:, :half] * (1 + 2.0**-20)
    b[half : 2 * half] = b[:half]
    return a, b


KINDS = (normal, one_sign, constants, of_different_size, cancelling)


def ratio(found: Tensor, a: Tensor, b: Tensor) -> float:
    """The largest error over the sum of absolute terms, in units of roundoff."""
    worst = 0.0
    for i, row in enumerate(a.double().tolist()):
        for j, column in enumerate(b.double().T.tolist()):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
            size = sum(abs(term) for term in terms)
            error = abs(Fraction(float(found[i, j])) - sum(terms))
            worst = max(worst, float(error / size) / U if size else 0.0)
    return worst


@pytest.mark.parametrize("terms", [65, 300, 1000, 4099])
@pytest.mark.parametrize("least", LEAST)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_lie_within_the_bound_whatever_the_order_within_a_block(
    terms: int, least: int, kind: Callable[[int], tuple[Tensor, Tensor]]
) -> None:
    a, b = kind(terms)
    bound = gamma(roundings(terms, least)) / U
    for name, order in ORDERS.items():
        found = split(kernel(order), a.double(), b.double(), length(terms, least))
        assert ratio(found, a, b) <= bound, name


@pytest.mark.parametrize("terms", [1000, 4099])
@pytest.mark.parametrize("least", LEAST)
def test_products_of_the_library_here_lie_within_it(terms: int, least: int) -> None:
    for kind in KINDS:
        a, b = kind(terms)
        found = split(torch.mm, a.double(), b.double(), length(terms, least))
        assert ratio(found, a, b) <= gamma(roundings(terms, least)) / U


def always_up(terms: int, block: int) -> tuple[Tensor, Tensor]:
    """Every addition on the longest way rounds up by nearly half a unit: in the first block, and of the blocks."""
    small = 2.0**-53 * (1 + 2.0**-10)
    row = torch.zeros(1, terms)
    row[:, :block], row[:, 0] = small, 1.0
    row[:, block::block] = small
    return row, torch.ones(terms, 1)


@pytest.mark.parametrize("terms", [1000, 4096])
@pytest.mark.parametrize("least", LEAST)
def test_the_bound_is_nearly_reached_and_no_smaller_one_holds(terms: int, least: int) -> None:
    block = length(terms, least)
    a, b = always_up(terms, block)
    found = ratio(split(kernel(one_by_one), a.double(), b.double(), block), a, b)
    counted = roundings(terms, least)
    assert counted - 3 < found < counted


def test_a_product_that_is_not_split_or_is_added_to_leaves_the_bound_of_blocks() -> None:
    """What a party does whose blocks are others than the draft says, or whose library adds to what there is."""
    terms, least = 4096, 64
    small = 2.0**-53 * (1 + 2.0**-10)
    a = torch.full((1, terms), small)
    a[0, 0], b = 1.0, torch.ones(terms, 1)
    counted = roundings(terms, least)
    assert ratio(kernel(one_by_one)(a.double(), b.double()), a, b) > 10 * counted
    chained = torch.zeros(1, 1, dtype=torch.float64)
    for left in a.double().split(length(terms, least), 1):
        chained[0, 0] = one_by_one([float(chained[0, 0]), *left[0].tolist()])
    assert ratio(chained, a, b) > 10 * counted
    assert ratio(split(kernel(one_by_one), a.double(), b.double(), length(terms, least)), a, b) < counted


@given(st.integers(1, 2**40), st.sampled_from(LEAST))
def test_blocks_cover_all_terms_and_are_few(terms: int, least: int) -> None:
    block = length(terms, least)
    blocks = -(-terms // block)
    assert (blocks - 1) * block < terms <= blocks * block
    assert block <= max(least, math.isqrt(terms))
    assert blocks <= math.isqrt(terms) + 3
    counted = roundings(terms, least)
    if terms <= least:
        assert (counted, blocks) == (terms, 1)
    else:
        assert block - 1 + blocks - 1 < counted < terms
        assert counted <= 2 * max(least, math.isqrt(terms)) + 3 or counted <= least + terms // least + 2


def test_a_block_of_nothing_says_that_products_are_whole() -> None:
    assert roundings(10**6, 0) == 10**6
    assert (length(384, 256), roundings(384, 256)) == (192, 194)
    assert (length(14_548, 64), roundings(14_548, 64)) == (120, 242)


@pytest.mark.parametrize("least", LEAST)
def test_products_of_vectors_and_batches_are_split_alike(least: int) -> None:
    terms = 700
    x, y = torch.randn(3, 4, terms, dtype=torch.float64), torch.randn(3, terms, 2, dtype=torch.float64)
    block = length(terms, least)
    each = torch.stack([split(torch.mm, a, b, block) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(split(torch.bmm, x, y, block), each, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(split(torch.mv, x[0], y[0, :, 0], block), each[0, :, 0], rtol=1e-12, atol=1e-12)
