"""How probably bounds fail, and how probably that accuses an honest run."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.bound_failure import MOST_TERMS, SPREAD, failure, false_accusation


@given(st.integers(0, 10**25))
def test_the_probability_of_a_failure_adds_up(rounded: int) -> None:
    assert failure(rounded) == pytest.approx(min(1.0, rounded * MOST_TERMS * 2 * math.exp(-(SPREAD**2) / 2)), rel=1e-9)
    assert failure(10**12) < 1e-18


@given(st.integers(0, 10**25))
def test_either_of_two_machines_may_leave_its_bound(rounded: int) -> None:
    assert false_accusation(rounded) == pytest.approx(min(1.0, 2 * failure(rounded)))


@pytest.mark.parametrize(("rounded", "found"), [(0, 0.0), (-5, 0.0), (10**4000, 1.0)])
def test_numbers_of_hostile_answers_give_a_probability(rounded: int, found: float) -> None:
    assert failure(rounded) == false_accusation(rounded) == found


def test_readers_of_reports_need_no_torch() -> None:
    program = "import sys, verifier.report.false_accusation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
