"""What the draws of several monitoring periods are worth together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.draws import AIM

from analysis.periods import accumulating_probability_followed, seen_in_periods
from analysis.withheld_marks import shown_marks
from verifier.draw.rolling_periods import Draws, Past, accumulated, rolling
from verifier.registry import Registry
from weighbridge.core.errors import UsageError

DAY = 24 * 3600 * 1000
GROUPS = [{"stratum": [], "kind": "random", "chips": 200, "drawn": 20, "chip_flops_per_day": 1.0}]


def past(number: int, day: float, groups: list[dict[str, object]] = GROUPS) -> Past:
    return Past(inspection=f"i{number}", drawn_ms=int(day * DAY), aim=AIM, groups=groups)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(tmp_path / "registry.db")
    for number in range(3):
        registry.start_inspection(f"i{number}", seed=b"", plan={}, chips=[])
    yield registry
    registry.close()


def test_draws_are_kept_for_good(registry: Registry) -> None:
    draws = Draws(registry.session)
    for number in (2, 0, 1):
        draws.keep(f"i{number}", drawn_ms=number * DAY, aim=AIM, record=bytes([number]) * 32)
    draws.keep("i0", drawn_ms=99 * DAY, aim=AIM, record=b"")  # a draw is made once
    assert draws.past() == []  # no inspection is over yet
    for number in (0, 2):
        draws.finish(f"i{number}", GROUPS)
    again = Draws(registry.session)
    assert again.past() == [past(0, 0), past(2, 2)]
    assert again.past(before_ms=DAY) == [past(0, 0)]
    assert again.past(replace(AIM, period_days=3.0)) == []
    assert again.record("i1") == bytes([1]) * 32
    for unknown in ("i3", "nobody"):
        with pytest.raises(UsageError, match="no record"):
            again.record(unknown)


def test_periods_roll_from_the_newest_draw_backwards_until_there_is_a_gap() -> None:
    draws = [past(number, day) for number, day in enumerate([0, 5.0, 6.1, 6.4, 7.2, 8.0])]
    assert [each.inspection for each in rolling(draws, 1.0)] == ["i1", "i2", "i4", "i5"]
    assert [each.inspection for each in rolling(draws, 3.0)] == ["i1", "i5"]
    assert rolling([], 1.0) == []
    assert len(rolling([past(number, number) for number in range(300)], 1.0)) == 120


def test_periods_of_equal_draws_are_those_of_the_analysis() -> None:
    draws = [past(number, number) for number in range(4)]
    found = accumulated(draws, AIM)
    assert [each.periods for each in found] == [1, 2, 3, 4]
    for each in found:
        involved = -(-3 // each.periods)  # H = 3 chip-days
        expected = seen_in_periods(
            samples=20, involved=involved, chips=200, run_days=each.run_days, period_days=1.0, snapshot_rate_per_day=2.0
        )
        assert each.accumulating == pytest.approx(float(expected), rel=1e-12)
        followed = accumulating_probability_followed(
            samples=20, involved=involved, chips=200, run_days=each.run_days, period_days=1.0, snapshot_rate_per_day=2.0
        )
        assert each.at_least <= followed + 1e-12  # the lower bound holds with the chips' memory too
        assert each.at_least <= each.accumulating
    assert found[0].at_least == found[0].accumulating
    assert found[3].inspections == ("i0", "i1", "i2", "i3")
    assert found[1].to_json()["run_days"] == 2.0


def test_a_period_in_which_nothing_could_be_verified_adds_nothing() -> None:
    nothing = [{**GROUPS[0], "drawn": 0}]
    (first,) = accumulated([past(1, 1)], AIM)
    with_nothing = accumulated([past(0, 0, nothing), past(1, 1)], AIM)[1]
    assert with_nothing.at_least < first.at_least  # and the longer run needs fewer chips
    too_few = [{**GROUPS[0], "chips": 1, "drawn": 1}]
    assert accumulated([past(0, 0, too_few)], AIM)[0].at_least == 0.0
    assert accumulated([past(0, 0, [])], AIM)[0].at_least == 0.0


def test_silence_of_several_periods_is_reckoned_together() -> None:
    """Two chips fell silent in the first period, one in the second: more than three hits are needed over both."""
    groups = [[{**GROUPS[0], "drawn": 150, "unverified": count}] for count in (2, 1)]
    draws = [past(number, number, group) for number, group in enumerate(groups)]
    one, both = accumulated(draws, AIM)
    assert one.at_least == one.accumulating
    hits = [shown_marks(200, 2, 150, -np.expm1(-2.0 * days), 3) for days in (1, 2)]
    for days, found in (((0, 0), both.at_least), ((0, 1), both.accumulating)):
        assert found == pytest.approx(1 - np.convolve(hits[days[0]], hits[days[1]])[:4].sum(), rel=1e-9)
    never = [{**GROUPS[0], "drawn": 150, "unverified": 0}]
    assert accumulated([past(0, 0, never), past(1, 1, never)], AIM)[1].at_least > both.at_least
