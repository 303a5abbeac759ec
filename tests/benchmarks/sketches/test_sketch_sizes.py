"""The model of how much differs, and the sizes that follow from it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sketches import capacity, schemes
from benchmarks.sketches.truth import Output


def output(step: int, index: int, operation: str, differing: int, contested: int = 20_000) -> Output:
    at = np.arange(0, 97 * differing, 97)
    return Output(step, index, index, operation, True, 1 << 19, contested, at, 0, 0, differing // 20, float(differing))


def steps(count: int, mean: float) -> list[Output]:
    random = np.random.default_rng(5)
    product = [output(s, i, "mm.default", int(random.poisson(mean))) for s in range(1, count + 1) for i in range(40)]
    return product + [output(s, 40, "tanh_backward.default", 0) for s in range(1, count + 1)]


def test_capacities_hold_what_comes_by_chance_and_little_more() -> None:
    model = capacity.fit(steps(4, 50.0))
    assert model.spreads[0] < 0.03
    found = model.capacity(3, 1.0)
    mean = model.means[3][0]
    allowed = capacity.FAILURES / (2 * 41)
    assert capacity.tail(mean, model.spreads[0], found.parities + 1) <= allowed
    assert capacity.tail(mean, model.spreads[0], found.parities) > allowed
    assert mean < found.parities < 4 * mean
    assert model.capacity(3, 2.0).parities > found.parities


def test_an_operation_that_never_differed_has_the_capacity_of_the_worst_one() -> None:
    model = capacity.fit(steps(4, 50.0))
    assert model.means[40][0] == pytest.approx(50.0, rel=0.1)
    without = [output(s, i, "mm.default", 0, 0 if i else 9) for s in (1, 2) for i in range(3)]
    assert capacity.fit(without).means == dict.fromkeys(range(3), (0.0, 0.0))


def test_counts_that_vary_more_than_chance_need_more() -> None:
    varying = [output(s, i, "mm.default", 25 if s % 2 else 75) for s in range(1, 5) for i in range(40)]
    model, even = capacity.fit(varying), capacity.fit(steps(4, 50.0))
    assert model.spreads[0] > 5 * even.spreads[0]
    assert model.capacity(3, 1.0).parities > even.capacity(3, 1.0).parities


def test_a_model_of_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="two steps or more"):
        capacity.fit(steps(1, 50.0))


def test_differences_side_by_side_are_seen_as_dispersed() -> None:
    together = Output(1, 0, 0, "mm.default", True, 1 << 16, 999, np.arange(300), 0, 0, 0, 0.0)
    alone = Output(1, 0, 0, "mm.default", True, 1 << 16, 999, np.arange(0, 1 << 16, 211), 0, 0, 0, 0.0)
    clustered, spread = (capacity.dispersion([each], 64) for each in (together, alone))
    assert clustered is not None
    assert spread is not None
    assert clustered > 20 > 1 > spread


@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_no_scheme_is_below_the_floor(margin: float) -> None:
    model = capacity.fit(steps(4, 50.0))
    differences = model.differences(3, margin)
    floor = schemes.floor_of_capacity(20_000, differences)
    assert schemes.floor(20_000, 50, 0.0) < floor
    sizes = [
        schemes.two_stages(1 << 19, model.capacity(3, margin)), schemes.reed_solomon(1 << 19, differences),
        schemes.reed_solomon_blocks(model, 3, 1 << 19, 1 << 14, margin), schemes.iblt(1 << 19, differences, 41),
    ]  # fmt: skip
    assert min(sizes) > floor
    assert sizes[0] < sizes[1] < sizes[3]
