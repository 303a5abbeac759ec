"""p by proven time alone: what it is worth against every choice of unproven time, and what reports say of it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from verifier.report import proven_time
from verifier.report.earlier_reports import as_current

FLEET, DRAWN, RATE = 6, 2, 1.5


def inputs(size: float, *, w: int = 0, chips: int = FLEET, drawn: int = DRAWN) -> dict[str, Any]:
    return {"s": drawn, "w": w, "C": chips, "H": size, "a": 1.0, "T": 1.0, "T_m": 1.0, "f": RATE}


def chip(unproven: float, verified: bool = True) -> dict[str, Any]:
    return {"proven_days": 1 - unproven, "verified": verified}


def test_all_time_proven_leaves_p_as_it_is() -> None:
    found = proven_time.section([chip(0.0), chip(0.0)], inputs(2.0), None)
    both_missed = (6 - 2) * (6 - 3) / (6 * 5)
    one_hit = 2 * 2 * 4 / (6 * 5)
    missed = both_missed + one_hit * math.exp(-RATE) + (1 - both_missed - one_hit) * math.exp(-2 * RATE)
    assert found["p"] == pytest.approx(1 - missed)
    assert (found["unproven_share"], found["unproven_flops"], found["H"]) == (0.0, 0.0, 2.0)


def test_a_run_that_fits_into_unproven_time_is_never_seen() -> None:
    found = proven_time.section([chip(0.0), chip(0.4)], inputs(2.3), None)
    assert (found["p"], found["H"], found["unproven_flops"]) == (0.0, 0.0, pytest.approx(2.4))


def test_a_chip_that_did_not_verify_is_in_w_and_not_in_u() -> None:
    found = proven_time.section([chip(0.1), chip(1.0, verified=False)], inputs(2.0, w=1), None)
    assert found["unproven_share"] == pytest.approx(0.1)
    assert 0 < found["p"] < proven_time.section([chip(0.1), chip(0.1)], inputs(2.0), None)["p"]
    assert proven_time.section([chip(0.0, verified=False)], inputs(2.0, w=1), None)["p"] == 0.0


@pytest.mark.parametrize("involved", [1, 2, 3])
@pytest.mark.parametrize("everywhere", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("dark", range(4))
def test_no_choice_of_unproven_time_beats_it(involved: int, everywhere: float, dark: int) -> None:
    """Some chips prove no time at all, all others leave out a share; what is left of the run fills chips one by one.

    The chance that the run goes unseen while the report states p >= x is at most 1 - x, for every x.
    """
    size = involved * (1 - everywhere) + FLEET * everywhere
    unproven = [1.0] * dark + [everywhere] * (FLEET - dark)
    left = max(0.0, size - sum(unproven))
    shown = []
    for share in unproven:
        worked = min(left, 1 - share)
        left -= worked
        shown.append(-math.expm1(-RATE * worked))
    assert left < 1e-9
    draws = list(itertools.combinations(range(FLEET), DRAWN))
    outcomes = []
    for drawn in draws:
        stated = proven_time.section([chip(unproven[each]) for each in drawn], inputs(size), None)["p"]
        outcomes.append((stated, math.prod(1 - shown[each] for each in drawn) / len(draws)))
    assert any(stated > 0 for stated, _ in outcomes)
    for x, _ in outcomes:
        assert sum(chance for stated, chance in outcomes if stated >= x) <= 1 - x + 1e-9


def test_a_draw_from_strata_counts_every_groups_speed() -> None:
    groups = [
        {"chips": 4, "drawn": 2, "unverified": 0, "chip_flops_per_day": 1.0, "kind": "random"},
        {"chips": 2, "drawn": 2, "unverified": 0, "chip_flops_per_day": 3.0, "kind": "random"},
    ]
    worth = {"groups": groups, "unverified": 0}
    found = proven_time.section([chip(0.2)], inputs(4.0), worth)
    assert found["unproven_flops"] == pytest.approx(0.2 * 10)
    assert found["p"] == pytest.approx(proven_time.strata({**inputs(2.0), "T": 0.8}, worth))


def test_a_report_that_does_not_say_what_was_proven_is_read_as_if_nothing_was() -> None:
    old = {
        "schema": "weighbridge-report/4",
        "chips": [{"verified": True, "snapshots": []}],
        "probability": {"inputs": inputs(2.0, drawn=1)},
        "draw": {"kind": "given"},
        "ledger": {"meaning": ""},
        "evidence": {},
    }
    read = as_current(old)
    assert read["chips"][0]["proven_days"] == 0
    assert (read["probability"]["proven"]["p"], read["probability"]["proven"]["unproven_share"]) == (0, 1)
