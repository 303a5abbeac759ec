"""The budget of requests in memory: never exceeded, and given back whichever way a call ends."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.memory import SHARES, Memory, keep

TOTAL = 1000


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 400)), max_size=60))
def test_neither_budget_nor_share_is_exceeded(takes: list[tuple[str, int]]) -> None:
    memory = Memory(TOTAL)
    with ExitStack() as calls:
        held = {name: calls.enter_context(memory.of_call(name)) for name in "abcdefgh"}
        for name, size in takes:
            with suppress(BusyError):
                held[name].take(size)
            assert held[name].size <= TOTAL // SHARES
            assert memory.held == sum(each.size for each in held.values()) <= TOTAL
    assert memory.held == 0


def test_calls_of_one_caller_share_and_errors_give_back() -> None:
    memory = Memory(TOTAL)
    with memory.of_call("a") as one, memory.of_call("a") as two:
        one.take(200)
        with pytest.raises(BusyError, match="this certificate's"):
            two.take(100)
        one.give_back(150)
        two.take(100)
    with suppress(ZeroDivisionError), memory.of_call("a") as one:
        one.take(200)
        raise ZeroDivisionError
    assert memory.held == 0
    with ExitStack() as calls:
        for name in "abcd":
            calls.enter_context(memory.of_call(name)).take(250)
        with memory.of_call("e") as last, pytest.raises(BusyError, match="all callers'"):
            last.take(1)
    assert memory.held == 0


def test_a_service_says_what_it_keeps() -> None:
    memory = Memory(TOTAL)
    keep(10**9)  # No server's call: nothing is counted.
    with memory.of_call("a"):
        keep(250)
        assert memory.held == 250
        with pytest.raises(BusyError):
            keep(1)
    assert memory.held == 0
    keep(10**9)
