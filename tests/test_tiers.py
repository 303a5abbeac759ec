"""The two tiers of tests, and the measured durations that tell them apart."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import (
    FILE,
    LATE,
    MODULE_LIMIT,
    SHORT,
    TEST_LIMIT,
    Tiers,
    left_out,
    listing,
    longest_first,
    module_of,
)

TESTS = Path(__file__).parent
NAMES = st.builds("tests/test_{}.py::test_{}".format, st.sampled_from("abcd"), st.integers(0, 5))
SECONDS = st.floats(0, 20)


@given(st.sets(NAMES), st.dictionaries(NAMES, SECONDS), st.dictionaries(NAMES.map(module_of), SECONDS), st.sets(NAMES))
def test_what_stays_is_quick_essential_or_the_cheapest_of_its_module(
    tests: set[str], calls: dict[str, float], fixtures: dict[str, float], essential: set[str]
) -> None:
    kept = tests - left_out(tests, calls, fixtures, essential)
    assert tests & essential <= kept
    for module in {module_of(test) for test in tests}:
        members = {test for test in tests if module_of(test) == module}
        before = fixtures.get(module, 0.0)
        least = min(calls.get(test, 0.0) for test in members)
        affordable = before <= MODULE_LIMIT and (least <= TEST_LIMIT or before + least <= MODULE_LIMIT)
        assert bool(members & kept) == affordable or members & essential
        for test in (members & kept) - essential:
            assert calls.get(test, 0.0) <= max(TEST_LIMIT, least)


def test_each_test_is_in_one_tier(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    quick, slow = (Tiers(tier, update=False).of_tier(items) for tier in ("quick", "slow"))
    assert quick | slow == Tiers("all", update=False).of_tier(items) == set(items)
    assert not quick & slow


def test_no_test_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_END", str(time.time() + 3600))
    Tiers("all", update=False).pytest_runtest_setup()
    monkeypatch.setenv("TESTS_END", str(time.time() - 1))
    with pytest.raises(pytest.skip.Exception, match=LATE):
        Tiers("all", update=False).pytest_runtest_setup()


def test_modules_come_longest_first() -> None:
    calls, fixtures = {"a::x": 1.0, "b::x": 2.0, "b::y": 1.5}, {"c": 9.0}
    assert longest_first(["a::x", "b::x", "b::y", "c::x"], calls, fixtures) == ["c", "b", "a"]


def test_what_may_be_left_out_for_want_of_time_is_few_modules() -> None:
    calls = {"a::x": 1.0, "b::x": SHORT + 1, "c::x": SHORT, "d::x": SHORT + 2}
    assert longest_first([*calls], calls, {}, hurried=True) == ["c", "a", "d", "b"]


def test_what_did_not_run_keeps_what_was_listed() -> None:
    known = {"a::quicker": 2.0, "a::slower": 0.4, "b::not run": 9.0}
    assert listing(known, {"a::quicker": 0.1, "a::slower": 3.14}) == {"a::slower": 3.1, "b::not run": 9.0}


def test_few_modules_have_no_test_in_the_quick_tier() -> None:
    fixtures = json.loads(FILE.read_text())["fixtures"]
    slow = [module for module, seconds in fixtures.items() if seconds > MODULE_LIMIT]
    assert len(slow) <= 0.15 * len(list(TESTS.rglob("test_*.py"))), slow


def test_the_measured_durations_are_those_of_modules_that_exist() -> None:
    measured = json.loads(FILE.read_text())
    modules = {module_of(test) for test in measured["tests"]} | set(measured["fixtures"])
    missing = sorted(module for module in modules if not (TESTS.parent / module).exists())
    assert not missing, "run `make durations`"
