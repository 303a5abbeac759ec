"""Counts of schedules cost nothing while they go on as before, and else what describes them."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.program.schedule_counts import ScheduleCounts


def bits(counts: list[list[int]]) -> float:
    code = ScheduleCounts()
    return sum(map(code.next, counts)) + code.end()


@pytest.mark.parametrize("every", [1, 4, 100])
def test_a_schedule_that_goes_by_steps_or_epochs_costs_next_to_nothing(every: int) -> None:
    assert bits([[t // every] for t in range(10_000)]) < (30 if every == 1 else 30 + 3 * math.log2(10_000 / every) ** 2)


def test_a_run_without_schedules_costs_nothing() -> None:
    assert bits([[]] * 100) == 0


@pytest.mark.parametrize("size", [1, 8, 32])
def test_chosen_counts_cost_what_they_carry(size: int) -> None:
    choose = random.Random(size)
    assert bits([[choose.getrandbits(size)] for _ in range(400)]) >= 0.95 * 400 * size


def test_when_it_goes_on_is_a_choice_too() -> None:
    choose, count, counts = random.Random(1), 0, []
    for _ in range(2000):
        count += choose.random() < 0.5
        counts.append([count])
    assert bits(counts) > 0.95 * 2000


def test_to_say_nothing_of_a_schedule_is_a_choice_too() -> None:
    """Every other step needs no count. One that has none delays the schedule, and the next count tells."""
    choose, count, counts = random.Random(2), 0, []
    for _ in range(2000):
        said = choose.random() < 0.5
        counts += [[count := count + 1] if said else [], [count := count + 1]]
    assert bits(counts) > 0.95 * 2000


def test_records_that_never_have_a_count_cost_next_to_nothing() -> None:
    """An edit after every step, say."""
    assert bits([[], *([t // 2] if t % 2 else [] for t in range(10_000))]) < 100


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=2), max_size=6))
def test_any_counts_have_a_length(counts: list[list[int]]) -> None:
    assert math.isfinite(bits(counts))
