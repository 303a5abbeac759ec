"""Budgets of chosen bits follow from what honest trainings were measured to choose."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from weighbridge.program.tape_policy import BUDGETS, TapePolicy

MEASURED = json.loads((Path(__file__).parents[3] / "benchmarks/results/chosen_bits.json").read_text())
TRAININGS = {**MEASURED["models"], **MEASURED["zoo"]}
LEAST = 1024


def most(channel: str) -> float:
    """The most bits that an honest training chose in a channel."""
    return max(training["bits"].get(channel, 0.0) for training in TRAININGS.values())


@pytest.mark.parametrize("channel", sorted(BUDGETS.keys() - {"values", "tensors"}))
def test_a_budget_is_four_times_the_most_that_an_honest_training_chose(channel: str) -> None:
    assert most(channel) > 0, "a channel that no training used has no measured budget"
    assert BUDGETS[channel] == max(LEAST, 1000 * math.ceil(4 * most(channel) / 1000))


def test_values_without_a_formula_have_the_least_budget() -> None:
    """The trainings declare no formulas, so their learning rates count as chosen: that is not what is budgeted."""
    assert BUDGETS["values"] == LEAST < most("values")


def test_undeclared_tensors_have_the_least_budget_as_a_ledger_and_as_bytes() -> None:
    assert BUDGETS["tensors"] == 8 * TapePolicy().free_tensors == LEAST


def test_the_policy_has_these_budgets() -> None:
    assert TapePolicy().budgets == BUDGETS
