"""Inspections that test how weights respond: programs whose data flow is right, and whose values are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redteam.values import added, carrying, drawn_to, least_and_most, times_zero, wanted
from redteam.workshop import Training, Update, Workshop, digits, flat
from support.written_chips import Bench

from verifier.model.policies import SegmentPolicy

TESTED = SegmentPolicy(random=1, largest=1, sensitivity=3)
STEPS, SEED = 4, 1


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Bench(tmp_path_factory.mktemp("sensitivity")) as bench:
        yield Workshop(bench, apart=False)


def test_an_honest_run_is_accused_of_nothing(shop: Workshop) -> None:
    run = shop.record(Training(batches=digits(SEED, STEPS)), SEED, verifiable=True)
    assert shop.accused(run.path, segments=TESTED) == frozenset()


@pytest.mark.parametrize(
    ("step", "rate"),
    [(times_zero, 0.2), (least_and_most, 0.2), (added, 0.2), (drawn_to, 0.5)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_an_import_is_found_by_how_weights_respond(shop: Workshop, step: Update, rate: float) -> None:
    """Without the test an inspection accuses these runs of nothing (`redteam.values`)."""
    batches = digits(SEED, STEPS)
    batches[-1] = carrying(batches[-1], flat(wanted(SEED)))
    run = shop.record(Training(batches=batches, step=step, rate=rate), SEED)
    assert "tape.insensitive" in shop.accused(run.path, segments=TESTED)
    assert "tape.insensitive" not in shop.accused(run.path)


def test_a_finding_about_a_program_says_what_is_recognised_of_it_and_stays(shop: Workshop) -> None:
    """SGD on the squared distance of weights and batch is the gradient of a loss, and imports all the same."""
    batches = digits(SEED, STEPS)
    batches[-1] = carrying(batches[-1], flat(wanted(SEED)))
    run = shop.record(Training(batches=batches, step=drawn_to, rate=0.5), SEED)
    report = shop.bench.inspected(run.path.parent, shop.bench.at_end(run.path), segments=TESTED)
    found = [each for each in report["findings"] if each["id"] == "tape.insensitive"]
    assert {each["severity"] for each in found} == {"warning"}
    assert all(each["evidence"]["training"].startswith("recognised in 2 of 4 steps: ") for each in found)
    assert report["evidence"]["training"][0]["outcome"] == "recognised"
