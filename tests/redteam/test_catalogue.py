"""Every attack of the catalogue is tried once, and comes out as its row says; an honest run in its place passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from redteam import tolerance
from redteam.catalogue import ROWS
from redteam.row import Row
from redteam.workshop import Training, Workshop, digits, distance
from support.written_chips import Bench

SEED = 1


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Bench(tmp_path_factory.mktemp("workshop")) as bench:
        yield Workshop(bench, apart=False)


def test_an_honest_run_is_accused_of_nothing(shop: Workshop) -> None:
    run = shop.record(Training(batches=digits(SEED, 3)), SEED, verifiable=True, checkpoint_every=1)
    assert shop.accused(run.path) == frozenset()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_attack_comes_out_as_its_row_says(shop: Workshop, row: Row) -> None:
    outcome = row.attack(shop, SEED)
    assert row.as_said(outcome), (row.expected, outcome)
    assert outcome.gain >= row.least, outcome
    assert outcome.control in (None, True), "a control that the attack does not beat"
    assert row.simulated is (outcome.histories is not None)


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


# -- the tolerance verifier --------------------------------------------------------------------------------------------


def test_the_tolerance_verifier_accepts_what_is_honest() -> None:
    assert tolerance.verifier().accepts(tolerance.honest_proof(SEED))


def test_the_tolerance_verifier_accepts_another_machines_rounding() -> None:
    proof = tolerance.honest_proof(SEED)
    nudged = [{name: t * (1 + 1e-6) for name, t in state.items()} for state in proof.checkpoints]
    again = tolerance.Proof.of(nudged, proof.segments, proof.rate)
    assert tolerance.verifier().accepts(again)


def test_the_tolerance_verifier_refuses_a_jump() -> None:
    proof = tolerance.honest_proof(SEED)
    aim = tolerance.wanted(SEED)
    jump = tolerance.Proof.of([*proof.checkpoints[:-1], aim], proof.segments, proof.rate)
    assert distance(proof.checkpoints[-1], aim) > 0
    assert not tolerance.verifier().accepts(jump)


def test_the_tolerance_verifier_refuses_other_data_and_first_weights() -> None:
    proof = tolerance.honest_proof(SEED)
    other = [[{**batch, "x": batch["x"] + 1e-3} for batch in segment] for segment in proof.segments]
    assert not tolerance.verifier().accepts(
        tolerance.Proof(checkpoints=proof.checkpoints, segments=other, digests=proof.digests, rate=proof.rate)
    )
    first = {name: torch.randn_like(t) for name, t in proof.checkpoints[0].items()}
    assert not tolerance.verifier().accepts(
        tolerance.Proof.of([first, *proof.checkpoints[1:]], proof.segments, proof.rate)
    )
