"""The page of counters: many writers lose nothing, and nothing takes back what was counted."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_sim.work_page import MOST, SLOT, SLOTS, Slots, WorkPage
from weighbridge.attest.work import END, NAMES, NONE, Work
from weighbridge.core.errors import ChipError

count = st.integers(0, END - 1)
works = st.builds(Work, **dict.fromkeys(NAMES, count))


@pytest.fixture
def page(tmp_path: Path) -> WorkPage:
    page = WorkPage(tmp_path, NONE)
    page.attach()
    return page


def test_a_new_chip_has_done_nothing(tmp_path: Path) -> None:
    assert WorkPage(tmp_path, NONE).totals() == NONE
    assert list(tmp_path.iterdir()) == []  # an idle chip needs no page


def test_slots_of_all_writers_add_up(page: WorkPage) -> None:
    """Each thread has a slot of its own, whichever process it is of."""
    users = [Slots(page.path) for _ in range(2)]

    def write(user: Slots) -> None:
        slot = user.take()
        for number in range(1, 501):
            SLOT.pack_into(user.memory, slot, number, 0, 0, 2 * number, 0)

    threads = [threading.Thread(target=write, args=(user,)) for user in users for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = [page.totals()]
    for thread in threads:
        thread.join()
        seen.append(page.totals())
    assert page.totals() == Work(kernels=4000, flops=8000)
    assert not any(later.decreased(earlier) for earlier, later in pairwise(seen))


def test_another_boot_goes_on_where_the_last_one_ended(page: WorkPage, tmp_path: Path) -> None:
    user = Slots(page.path)
    SLOT.pack_into(user.memory, user.take(), 1, 2, 3, MOST, 5)
    SLOT.pack_into(user.memory, user.take(), 1, 2, 3, MOST, 5)
    total = Work(kernels=2, busy_ns=4, moved=6, flops=2 * MOST, unknown_ns=10)
    for _ in range(3):
        later = WorkPage(tmp_path, NONE)
        assert later.totals() == total
        later.attach()
        assert later.totals() == total


def test_neither_an_older_page_nor_none_takes_work_back(page: WorkPage, tmp_path: Path) -> None:
    said = Work(kernels=7, flops=9)
    assert WorkPage(tmp_path, said).totals() == said
    page.path.write_bytes(b"cut off")
    assert WorkPage(tmp_path, said).totals() == said
    page.path.unlink()
    assert WorkPage(tmp_path, said).totals() == said


def test_what_was_said_is_never_less_later(page: WorkPage) -> None:
    """A page that a workload writes zeros over changes nothing: the chip remembers what it has said."""
    user = Slots(page.path)
    slot = user.take()
    SLOT.pack_into(user.memory, slot, 5, 5, 5, 5, 5)
    before = page.totals()
    SLOT.pack_into(user.memory, slot, 0, 0, 0, 6, 0)
    assert page.totals() == Work(kernels=5, busy_ns=5, moved=5, flops=6, unknown_ns=5)
    assert not page.totals().decreased(before)


def test_slots_run_out_and_the_next_workload_has_some(page: WorkPage) -> None:
    user = Slots(page.path)
    for _ in range(SLOTS):
        SLOT.pack_into(user.memory, user.take(), 1, 0, 0, 0, 0)
    with pytest.raises(ChipError, match="Too many threads"):
        user.take()
    page.attach()
    assert page.totals().kernels == SLOTS
    Slots(page.path).take()


def test_without_a_page_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(ChipError):
        Slots(tmp_path / "none")


@settings(max_examples=50)
@given(works, works)
def test_work_is_an_ordered_sum(one: Work, other: Work) -> None:
    """(a + b) - b == a; the larger of two is at least both."""
    assert (one + other) - other == one
    larger = one.at_least(other)
    assert not larger.decreased(one)
    assert not larger.decreased(other)
    assert Work.from_json(one.to_json()) == one
