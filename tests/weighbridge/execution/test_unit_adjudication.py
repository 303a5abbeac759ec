"""What a declared unit's model was not asked about, in the ledger; and which numbers of flips are remarkable."""

from __future__ import annotations

import pytest
import torch

from weighbridge.execution import rounding_findings
from weighbridge.execution.choice_statistics import Tally
from weighbridge.execution.rounding_surprise import Overruled
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.tape_policy import TapePolicy


def tally(unjudged: float, overruled: Overruled | None = None) -> Tally:
    made = Tally()
    made.surprise.add(1, 100_000, True, "mm.default", overruled)
    made.surprise.leave(1, unjudged)
    return made


@pytest.mark.parametrize("here", [True, False])
def test_the_unjudged_rest_is_charged_and_accuses_no_party(here: bool) -> None:
    made, ledger = tally(5_000.0), ChosenBits()
    made.surprise.enter(ledger)
    assert ledger.total("roundings") == 5_000.0
    assert "0 roundings overruled, most of it in none; 5000 flips" in ledger.what["roundings"][1]
    assert rounding_findings.findings(made, TapePolicy(), "run", lambda _: here) == []
    chosen = tally(5_000.0, Overruled(100_000, 100, 90, 0, 900.0))
    (found,) = rounding_findings.findings(chosen, TapePolicy(), "run", lambda _: here)
    assert found.id == "replay.rounding.freedom", "it hides nothing else"


@pytest.mark.parametrize(
    ("overruled", "rest", "differs"),
    [(1_000, 5.0, False), (1_100, 5.0, False), (0, 5.0, True), (0, 0.0, False), (2_000, 5.0, True)],
)  # fmt: skip
def test_flips_are_counted_where_some_were_not_judged(overruled: int, rest: float, differs: bool) -> None:
    made = Adjudication(overruled=overruled, expected=1_000.0, spread=900.0, rest={1: rest} if rest else {})
    found = rounding_findings.of_unit(made, TapePolicy(), "run")
    assert [each.id for each in found] == (["replay.unit.flips"] if differs else [])


@pytest.mark.parametrize("elements", [1000, (1 << 24) + 8])
def test_some_are_drawn_of_any_number_by_their_weights(elements: int) -> None:
    """PyTorch draws of 2^24 at most; an operation that raised there would accuse an honest Prover."""
    made, weights = Adjudication(), torch.full((elements,), 2.0**-30, dtype=torch.float64)
    weights[::100] = 1.0
    made._left = 1, 50
    drawn = made._draw(1, 10, weights)
    assert len(drawn.unique()) == 5  # type: ignore[no-untyped-call]
    assert bool((drawn % 100 == 0).all())
    assert made._left == (1, 0)
    made._left = 1, 10 * elements
    assert torch.equal(made._draw(1, 10, weights), torch.arange(elements))


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({("exact", 0): 3, ("a100", 0): 9}, "9 of 10 that were compared are those of a100 in one chain"),
        ({("exact", 0): 9, ("h100", 512): 9},
         "9 of 10 that were compared are those of sums that are rounded once, or h100 in chains of 512"),
        ({("exact", 0): 5}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_what_gives_most_is_named(others: dict[tuple[str, int], int], said: str) -> None:
    assert Adjudication(compared=10, others=others).likely() == said
