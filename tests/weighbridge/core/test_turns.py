"""Locks by name: one thread at a time for each, and none of them stays."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from weighbridge.core.turns import Turns


def test_one_thread_at_a_time_for_a_name_and_none_waits_for_another() -> None:
    turns, inside, most = Turns(), dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)
    both = threading.Barrier(2, timeout=10)

    def visit(name: str, number: int) -> None:
        with turns.of(name):
            inside[name] += 1
            most[name] = max(most[name], inside[name])
            if number == 0:
                both.wait()  # Each of the two names is inside while the other is.
            inside[name] -= 1

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(visit, name, number) for number in range(20) for name in "ab"]:
            done.result()
    assert most == {"a": 1, "b": 1}
    assert len(turns) == 0


def test_an_error_gives_the_turn_back() -> None:
    turns = Turns()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), turns.of("a"):
            assert len(turns) == 1 // 0
    assert len(turns) == 0
