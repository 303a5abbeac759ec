"""What ranks exchange in shares is what combining all contributions in one place gives, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks_here import Ranks, ranks_here

from prover.capture.storages import Memory
from prover.ranks.exchange import Exchange
from prover.ranks.job import alone_group
from weighbridge.core.errors import RefusedOperationError, UsageError, WeighbridgeError
from weighbridge.numerics import exchanges

Tensor = torch.Tensor

MOST = 5
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


class InShares(Exchange):
    """An exchange that divides everything."""

    _combined_whole = 0


@pytest.fixture(scope="module")
def ranks() -> Iterator[dict[int, Ranks]]:
    """Groups of two to five ranks."""
    with ranks_here(2) as two, ranks_here(3) as three, ranks_here(4) as four, ranks_here(MOST) as five:
        yield {2: two, 3: three, 4: four, MOST: five}


def contributions(dtype: torch.dtype, count: int, size: int, seed: int) -> list[Tensor]:
    """Tensors whose elements have any bits: all kinds of NaN, infinities, subnormal numbers and both zeros."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return [torch.rand(size, generator=generator) < 0.5 for _ in range(count)]
    octets = [torch.randint(0, 256, (size * dtype.itemsize,), generator=generator) for _ in range(count)]
    made = [t.to(torch.uint8).view(dtype) for t in octets]
    if dtype.is_floating_point:
        special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0]).to(dtype)
        for t in made:
            chosen = torch.rand(size, generator=generator) < 0.3
            t[chosen] = special[torch.randint(0, 6, (int(chosen.sum()),), generator=generator)]
    return made


def reduced(group: Ranks, kind: type[Exchange], name: str, reduction: str, ins: list[list[Tensor]]) -> list[Any]:
    """What every rank gets of a reduction, or the code of the error that it ends with; the last rank is the root."""
    members = len(ins)
    root = members - 1 if name == "reduce" else 0

    def one(rank: int) -> Any:
        outs = [torch.empty_like(ins[rank][0]) for _ in exchanges.pieces(name, members, rank, root)]
        exchange = kind(None, torch.device("cpu"))
        try:
            exchange.exchange(group.groups[rank], name, outs, ins[rank], reduction, root, 0)
        except WeighbridgeError as error:
            return error.code
        return outs

    return group.all(members, one)


def bits(t: Tensor) -> list[int]:
    whole: list[int] = t.reshape(-1).view(torch.uint8).tolist()
    return whole


@settings(max_examples=60, deadline=None)
@given(
    members=st.sampled_from([2, 3, 4, MOST]),
    name=st.sampled_from(sorted(exchanges.REDUCING)),
    reduction=st.sampled_from(exchanges.REDUCTIONS),
    dtype=st.sampled_from(DTYPES),
    size=st.one_of(st.integers(0, 7), st.integers(0, 700)),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from([InShares, Exchange]),
)
def test_a_reduction_gives_what_its_formula_gives(
    ranks: dict[int, Ranks], members: int, name: str, reduction: str, dtype: torch.dtype, size: int, seed: int,
    kind: type[Exchange],
) -> None:  # fmt: skip
    """On all ranks, of tensors that do not divide evenly, that are smaller than the group, and empty."""
    given_by = members if name == "reduce_scatter" else 1
    whole = contributions(dtype, members * given_by, size, seed)
    ins = [whole[rank * given_by : (rank + 1) * given_by] for rank in range(members)]
    found = reduced(ranks[members], kind, name, reduction, ins)
    for rank in range(members):
        sources = exchanges.pieces(name, members, rank, members - 1 if name == "reduce" else 0)
        expected: Any = RefusedOperationError.code
        with contextlib.suppress(RefusedOperationError):
            expected = [bits(exchanges.combine(reduction, [ins[i][j] for i, j in wanted])) for wanted in sources]
        refused = found[rank] == RefusedOperationError.code
        if refused != (expected == RefusedOperationError.code):
            assert not (size and sources)  # a rank that gets nothing, or only empty tensors, may refuse or not
        else:
            assert expected == (found[rank] if refused else [bits(t) for t in found[rank]])


def test_a_tensor_of_several_pieces_is_reduced_piece_by_piece(
    ranks: dict[int, Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prover.ranks.exchange._PIECE", 100)
    whole = contributions(torch.float32, 4, 1234, 1)
    (expected,) = {tuple(bits(exchanges.combine("sum", whole)))}
    found = reduced(ranks[4], InShares, "all_reduce", "sum", [[t] for t in whole])
    assert {tuple(bits(t)) for (t,) in found} == {expected}


@pytest.mark.parametrize("name", ["all_gather", "gather", "scatter", "all_to_all", "broadcast"])
def test_what_is_only_moved_arrives_unchanged(ranks: dict[int, Ranks], name: str) -> None:
    """With sizes that differ from pair to pair, where that is allowed."""
    members, root = 3, 1 if name in exchanges.ROOTED else 0
    sizes = [[(3 * i + j if name == "all_to_all" else 5) for j in range(members)] for i in range(members)]
    ins = [
        [contributions(torch.float32, 1, sizes[i][j], 10 * i + j)[0]
         for j in range(exchanges.given(name, members, i, root))]
        for i in range(members)
    ]  # fmt: skip

    def one(rank: int) -> list[tuple[Tensor, Tensor]]:
        expected = [ins[i][j] for ((i, j),) in exchanges.pieces(name, members, rank, root)]
        outs = [torch.empty_like(t) for t in expected]
        exchange = Exchange(None, torch.device("cpu"))
        exchange.exchange(ranks[members].groups[rank], name, outs, ins[rank], "", root, 0)
        return list(zip(outs, expected, strict=True))

    pairs = [pair for rank in ranks[members].all(members, one) for pair in rank]
    assert len(pairs) >= members
    assert all(bits(found) == bits(expected) for found, expected in pairs)


@pytest.mark.parametrize("kind", [InShares, Exchange])
@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("all_reduce", torch.zeros(10, dtype=torch.int32)),
        ("all_reduce", torch.zeros(20, dtype=torch.bfloat16)),
        ("reduce_scatter", torch.zeros(10, dtype=torch.int32)),
    ],
)
def test_a_rank_that_contributes_another_dtype_is_named(
    ranks: dict[int, Ranks], kind: type[Exchange], name: str, odd: Tensor
) -> None:
    """Of as many bytes, which would otherwise be read as numbers of the own type."""
    given_by = 2 if name == "reduce_scatter" else 1
    ins = [[torch.ones(10)] * given_by, [odd] * given_by]
    assert reduced(ranks[2], kind, name, "sum", ins) == [UsageError.code] * 2
    with pytest.raises(UsageError, match=rf"{name} sum of 10 torch.float32, and that of member 1 .* {odd.dtype}"):
        ranks[2].all(2, lambda rank: kind(None, torch.device("cpu")).exchange(
            ranks[2].groups[rank], name, [torch.empty_like(ins[rank][0])], ins[rank], "sum", 0, 0))  # fmt: skip


def test_a_rank_that_contributes_another_number_of_elements_is_named(ranks: dict[int, Ranks]) -> None:
    """Shares of 10 and of 12 elements among four ranks are equal but for the last one, which would get too little."""
    ins = [[torch.ones(10)], [torch.ones(10)], [torch.ones(10)], [torch.ones(12)]]
    assert reduced(ranks[4], InShares, "all_reduce", "sum", ins) == [UsageError.code] * 4


def test_ranks_that_reduce_differently_are_named(ranks: dict[int, Ranks]) -> None:
    def one(rank: int) -> str:
        out, reduction = torch.empty(3), ("sum", "max")[rank]
        with pytest.raises(UsageError) as raised:
            Exchange(None, torch.device("cpu")).exchange(
                ranks[2].groups[rank], "all_reduce", [out], [torch.ones(3)], reduction, 0, 0
            )
        return str(raised.value)

    first, second = ranks[2].all(2, one)
    assert "all_reduce max of 3 torch.float32" in first
    assert "member 0" in second


class Counting:
    """A group that counts the bytes that this rank sends to others."""

    def __init__(self, group: Any) -> None:
        self.group, self.sent = group, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def alltoall_base(self, received: Tensor, sent: Tensor, takes: list[int], gives: list[int], options: Any) -> Any:
        self.sent += sum(gives) - gives[self.group.rank()]
        return self.group.alltoall_base(received, sent, takes, gives, options)


@pytest.mark.parametrize(("name", "times"), [("all_reduce", 2.0), ("reduce", 2.0), ("reduce_scatter", 1.0)])
def test_a_rank_sends_no_more_than_in_a_ring(ranks: dict[int, Ranks], name: str, times: float) -> None:
    members, size = 4, 200_000
    ins = [contributions(torch.bfloat16, members if name == "reduce_scatter" else 1, size, r) for r in range(members)]
    groups = [Counting(group) for group in ranks[members].groups]

    def one(rank: int) -> None:
        outs = [torch.empty_like(ins[rank][0]) for _ in exchanges.pieces(name, members, rank, 0)]
        Exchange(None, torch.device("cpu")).exchange(groups[rank], name, outs, ins[rank], "sum", 0, 0)

    ranks[members].all(members, one)
    data = sum(t.numel() * t.itemsize for t in ins[0])
    most = times * (members - 1) / members * data + 64 * members
    assert max(group.sent for group in groups) <= most


def test_a_tensor_that_was_reduced_dies_when_the_program_drops_it() -> None:
    """The library's thread does not hold it any longer, so births and deaths are the same in every run."""
    exchange, memory, late = Exchange(alone_group(torch.device("cpu"), 0), torch.device("cpu")), Memory(), 0
    for _ in range(1000):
        t = torch.ones(3)
        address = memory.watch(t.untyped_storage())
        work = exchange.done(t)
        del work, t
        while memory.storage(address) is not None:
            late += 1
    assert late == 0
