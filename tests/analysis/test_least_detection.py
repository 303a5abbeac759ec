"""The least probability over all spreads of a run: against every spread, and the exact formula for one group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chip_groups import GROUPS, spreads

from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.hypergeometric import seen_probability
from analysis.least_detection import least_probability


def everything(groups: list[tuple[int, int, float]], speeds: list[float], needed: float) -> float:
    """Returns the least p over all spreads that do at least `needed`, by trying each."""
    least = 1.0
    for spread in spreads(groups, speeds, needed):
        missed = [
            1 - float(seen_probability(population=chips, marked=some, drawn=drawn, shown=shown))
            for some, (chips, drawn, shown) in zip(spread, groups, strict=True)
        ]
        least = min(least, 1 - float(np.prod(missed)))
    return least


@given(GROUPS, st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_no_spread_over_chips_of_one_speed_is_missed_more_often(
    groups: list[tuple[int, int, float]], part: float
) -> None:
    needed = part * sum(chips for chips, _, _ in groups)
    chips, drawn, shown = zip(*groups, strict=True)
    found = least_probability(
        chips=chips, drawn=drawn, shown=shown, chip_flops_per_day=2.0, flops_threshold=needed * 6, run_days=3.0
    )
    assert found.probability == pytest.approx(everything(groups, [1.0] * len(groups), needed), rel=1e-9, abs=1e-12)
    assert sum(found.involved) == np.ceil(needed * (1 - 1e-12))


@given(GROUPS, st.floats(0.01, 1.0), st.permutations([1.0, 2.0, 5.0]))
@settings(max_examples=40, deadline=None)
def test_where_speeds_differ_it_is_a_lower_bound(
    groups: list[tuple[int, int, float]], part: float, all_speeds: list[float]
) -> None:
    speeds = all_speeds[: len(groups)]
    chips, drawn, shown = zip(*groups, strict=True)
    needed = part * float(np.dot(chips, speeds))
    found = least_probability(
        chips=chips, drawn=drawn, shown=shown, chip_flops_per_day=speeds, flops_threshold=needed, run_days=1.0
    )
    assert found.probability <= everything(groups, speeds, needed) + 1e-9
    if len(groups) > 1:  # one group is of one speed, and needs whole chips
        assert np.dot(found.involved, speeds) == pytest.approx(needed)


@pytest.mark.parametrize(("chips", "drawn", "involved"), [(1000, 100, 20), (100_000, 1000, 57), (10**7, 10**4, 10**4)])
def test_one_group_has_the_exact_hypergeometric_probability(chips: int, drawn: int, involved: int) -> None:
    found = least_probability(
        chips=chips, drawn=drawn, shown=0.95, chip_flops_per_day=1.0, flops_threshold=involved, run_days=1.0
    )
    exact = float(seen_probability(population=chips, marked=involved, drawn=drawn, shown=0.95))
    assert found.probability == pytest.approx(exact, rel=1e-12)
    assert found.involved == (involved,)


@pytest.mark.parametrize("needed", [5, 40, 150, 417, 1200, 2900])
@pytest.mark.parametrize("drawn", [(100, 20), (400, 100), (0, 50), (900, 900)])
def test_large_groups_with_many_samples_have_the_least_of_all_their_spreads(
    drawn: tuple[int, int], needed: int
) -> None:
    """Misses become so small here that float64 does not tell one chip more."""
    chips, shown = np.array([2000, 1000]), 0.95
    first = np.arange(max(0, needed - chips[1]), min(needed, chips[0]) + 1)
    missed = np.ones(first.shape)
    for size, taken, some in zip(chips, drawn, (first, needed - first), strict=True):
        missed = missed * (1 - seen_probability(population=size, marked=some, drawn=taken, shown=shown))
    found = least_probability(
        chips=chips, drawn=drawn, shown=shown, chip_flops_per_day=1.0, flops_threshold=needed, run_days=1.0
    )
    assert found.probability == pytest.approx(1 - missed.max(), rel=1e-9, abs=1e-12)
    assert sum(found.involved) == needed


def test_chips_that_nobody_can_look_at_are_used_first_and_certain_ones_last() -> None:
    options = {"chips": [50, 10, 5], "drawn": [10, 10, 0], "shown": 1.0, "chip_flops_per_day": 1.0, "run_days": 1.0}
    assert least_probability(flops_threshold=5, **options) == least_probability(flops_threshold=4.5, **options)
    assert least_probability(flops_threshold=5, **options).probability == 0.0
    found = least_probability(flops_threshold=8, **options)
    assert found.involved == (3, 0, 5)
    assert found.probability == pytest.approx(float(seen_probability(population=50, marked=3, drawn=10, shown=1.0)))
    assert least_probability(flops_threshold=46, **options).probability == 1.0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"drawn": 11}, InfeasibleError),
        ({"flops_threshold": 11.0}, InfeasibleError),
        ({"flops_threshold": -1.0}, DetectionDomainError),
        ({"shown": 1.5}, DetectionDomainError),
        ({"chips": 0.5}, DetectionDomainError),
        ({"run_days": 0.0}, DetectionDomainError),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float], error: type[DetectionDomainError]) -> None:
    good = {"chips": 10, "drawn": 2, "shown": 0.5, "chip_flops_per_day": 1.0, "flops_threshold": 3.0, "run_days": 1.0}
    with pytest.raises(error):
        least_probability(**{**good, **wrong})  # type: ignore[arg-type]
