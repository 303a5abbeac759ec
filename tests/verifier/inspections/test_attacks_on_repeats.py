"""Provers who declare repeats and then commit late, never, to other logs, or record another run instead.

Chips' logs are written here, with times of their own; the witness, the beacon, the Prover's service and the inspection
are those of every day. Each segment is due.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.exactly import found
from support.on_demand import flipped, key_of, resigned
from support.repeating import Told, declaring
from support.written_chips import Bench

from prover.service import ProverService
from verifier.contact.witness import Witness, load_signer
from verifier.model.policies import SegmentPolicy
from verifier.report import consistency
from weighbridge.attest.beacon import FileBeacon, LocalBeacon
from weighbridge.attest.manifest import Predicate, open_manifest, sign_manifest
from weighbridge.attest.repeats import Declared
from weighbridge.core.errors import UsageError
from weighbridge.transcript.files import checkpoint_path
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of, key_path

DELAY = 10
USUAL = {"data.not_precommitted"}
NONE = SegmentPolicy(random=0, largest=0, recognise=0)


@pytest.fixture(scope="module")
def beacon(bench: Bench) -> LocalBeacon:
    """A beacon that began an hour ago."""
    LocalBeacon.load(bench.root / "beacon-key", clock=lambda: time.time() - 3600)
    return LocalBeacon.load(bench.root / "beacon-key")


@pytest.fixture(scope="module")
def run(bench: Bench, beacon: LocalBeacon) -> Path:
    """A run of the segments 0:1, 1:3 and 3:4 that declares repeats, with all logs."""
    return declaring(bench.runs / "declared" / "run", said(beacon))


def said(beacon: LocalBeacon) -> dict[str, Any]:
    """What a draft declares."""
    return Declared(beacon=beacon.info.chain, share=1.0, delay_s=DELAY).to_map()


Inspected = Callable[..., dict[str, Any]]


@pytest.fixture
def inspected(bench: Bench, beacon: LocalBeacon) -> Inspected:
    """The report on a chip, once it has shown the end of the run."""

    def inspect(told: Told, **also: Any) -> dict[str, Any]:
        told.chip.saw(told.run, 4)
        told.waits(max(0.0, time.time() - told.chip.log.time_ms / 1000))
        signer = load_signer(bench.root / "witness-key")
        witness = Witness(bench.registry, bench.manufacturer.certificate, signer)
        given = {"witness": witness, "beacon": beacon, **also.pop("given", {})}
        report = bench.inspected(told.run.parent, told.chip, given=given, **{"segments": NONE, **also})
        assert consistency.check(report) == []
        return report

    return inspect


def states(report: dict[str, Any]) -> list[str]:
    """What became of the segments, in their order."""
    (told,) = report["evidence"]["repeats"]
    return [each["state"] for each in told["segments"]]


def outcome(report: dict[str, Any]) -> tuple[set[str], bool, int]:
    """What was found, whether the chip counts as verified, and how many chips count as withheld in p."""
    return found(report) - USUAL, report["chips"][0]["verified"], report["counts"]["unverified_after_draw"]


def test_who_repeats_every_segment_in_time_is_clean(bench: Bench, run: Path, inspected: Inspected) -> None:
    report = inspected(Told.begins(bench, run).repeats(0, 1).repeats(1, 3).repeats(3, 4))
    assert (outcome(report), states(report)) == ((set(), True, 0), ["repeated"] * 3), report["findings"]


@pytest.mark.finding("transcript.repeat.missing")
def test_who_never_commits_has_the_chip_counted_as_withheld(bench: Bench, run: Path, inspected: Inspected) -> None:
    """And the segments beside the missing one are replayed, whichever else the plan wants."""
    told = Told.begins(bench, run).repeats(0, 1).repeats(1, 3).ends(4).reports().waits(1)
    report = inspected(told, segments=SegmentPolicy(random=0, largest=1, recognise=0))
    assert outcome(report) == ({"transcript.repeat.missing"}, False, 1), report["findings"]
    assert states(report) == ["repeated", "repeated", "missing"]
    (selection,) = [each["selection"] for each in report["evidence"]["segments"]]
    assert [each["begin"] for each in selection["chosen"] if "unrepeated" in each["reasons"]] == [1, 3]


@pytest.mark.essential
@pytest.mark.finding("transcript.repeat.late")
def test_who_commits_late_is_found(bench: Bench, run: Path, inspected: Inspected) -> None:
    """Though the logs are right. By one second: the round comes a second after the contact."""
    told = Told.begins(bench, run).repeats(0, 1).ends(3).reports().waits(DELAY + 2).commits(1, 3).reports()
    report = inspected(told.repeats(3, 4))
    assert outcome(report) == ({"transcript.repeat.late"}, False, 1), report["findings"]
    assert states(report) == ["repeated", "late", "repeated"]


@pytest.mark.finding("transcript.repeat.differs")
def test_a_commitment_to_another_segments_logs_is_no_commitment(bench: Bench, run: Path, inspected: Inspected) -> None:
    told = Told.begins(bench, run).ends(1).reports().repeats(1, 3).commits(1, 3, about=0).reports()
    report = inspected(told.repeats(3, 4))
    assert outcome(report) == ({"transcript.repeat.differs"}, False, 1), report["findings"]
    assert states(report) == ["differs", "repeated", "repeated"]


@pytest.mark.parametrize("ended", ["attached", "begun another"])
def test_a_workload_that_never_leaves_hides_no_segment(
    bench: Bench, run: Path, inspected: Inspected, ended: str
) -> None:
    """What is still going on is not held against a run; what was begun after it says that it is over."""
    told = Told.begins(bench, run).repeats(0, 1).repeats(1, 3)
    told.chip.log.attach()
    if ended == "begun another":
        told.chip.log.event("manifest-draft", b"a" * 32)
    report = inspected(told)
    assert states(report) == ["repeated", "repeated", "unlogged" if ended == "begun another" else "open"]


def test_two_commitments_to_choose_from_are_none(bench: Bench, run: Path, inspected: Inspected) -> None:
    """One to the logs, and one to others that it may hand out if it likes those better."""
    told = Told.begins(bench, run).ends(1).reports().commits(0, 1).commits(0, 1, logs=[b"a" * 32]).reports()
    report = inspected(told.repeats(1, 3).repeats(3, 4))
    assert (outcome(report)[0], states(report)[0]) == ({"transcript.repeat.differs"}, "differs")


class Refuses(ProverService):
    """Says that its repeat differs."""

    def FetchSupplements(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        raise UsageError("the repeat differs", code="replay.mismatch")
        yield


@pytest.mark.essential
@pytest.mark.finding("transcript.repeat.unanswered")
def test_who_committed_cannot_say_that_its_repeat_differs(bench: Bench, run: Path, inspected: Inspected) -> None:
    """It committed to digests that are no logs', and so has nothing to hand out."""
    told = Told.begins(bench, run).repeats(0, 1).ends(3).reports().commits(1, 3, logs=[b"a" * 32] * 2).reports()
    report = inspected(told.repeats(3, 4), service=Refuses)
    refused = {"transcript.repeat.unanswered", "prover.supplements.refused", "prover.supplements.missing"}
    assert outcome(report) == (refused, False, 1), report["findings"]
    assert states(report) == ["unanswered"] * 3


def test_a_made_up_log_that_was_committed_to_does_not_replay(
    bench: Bench, beacon: LocalBeacon, inspected: Inspected, tmp_path: Path
) -> None:
    there = declaring(tmp_path / "made-up" / "made-up", said(beacon))  # of its own: what a key signed is remembered
    resigned(there, 3, entries=flipped)
    told = Told.begins(bench, there).repeats(0, 1).repeats(1, 3).repeats(3, 4)
    report = inspected(told, segments=SegmentPolicy(random=3, largest=0, recognise=0))
    assert states(report) == ["repeated"] * 3
    assert "replay.mismatch" in outcome(report)[0], report["findings"]


@pytest.mark.finding("transcript.repeat.unwitnessed")
def test_who_keeps_the_chip_from_its_witness_is_found(bench: Bench, run: Path, inspected: Inspected) -> None:
    """Until it likes the time: the first segment's end is reported too late, and the others never."""
    told = Told.begins(bench, run).ends(1).waits(DELAY + 1).reports().commits(0, 1).reports().ends(3).ends(4)
    report = inspected(told)
    assert outcome(report) == ({"transcript.repeat.unwitnessed"}, False, 1), report["findings"]
    assert states(report) == ["unwitnessed"] * 3


def test_the_first_contact_counts_whatever_is_logged_later(bench: Bench, run: Path, inspected: Inspected) -> None:
    """Who does not like a round logs the end of the segment again, for another one."""
    told = Told.begins(bench, run).ends(1).reports().waits(DELAY + 2).repeats(0, 1)
    report = inspected(told.repeats(1, 3).repeats(3, 4))
    assert (outcome(report)[0], states(report)) == ({"transcript.repeat.late"}, ["late", "repeated", "repeated"])


@pytest.mark.finding("transcript.repeat.unlogged")
def test_who_logs_no_end_of_a_segment_is_found(bench: Bench, run: Path, inspected: Inspected) -> None:
    report = inspected(Told.begins(bench, run).repeats(0, 1).repeats(3, 4))
    assert outcome(report) == ({"transcript.repeat.unlogged"}, False, 1), report["findings"]
    assert states(report) == ["repeated", "unlogged", "repeated"]


@pytest.mark.finding("transcript.repeat.abandoned")
def test_who_records_a_due_segment_otherwise_is_found(bench: Bench, run: Path, inspected: Inspected) -> None:
    """It took the run back to the checkpoint before, as after a crash, and had other luck."""
    told = Told.begins(bench, run).repeats(0, 1)
    told.chip.log.event("segment", b"a" * 32)
    report = inspected(told.reports().repeats(1, 3).repeats(3, 4))
    assert outcome(report) == ({"transcript.repeat.abandoned"}, False, 1), report["findings"]


@pytest.mark.parametrize("shown", ["as an attempt", "as a parent", "as a run of its own"])
def test_who_shows_the_run_that_was_taken_back_too_is_found(
    bench: Bench, beacon: LocalBeacon, inspected: Inspected, tmp_path: Path, shown: str
) -> None:
    """The ends of its segments are known then, but not as those of the run. Two honest runs on one chip are clean."""
    runs = tmp_path / "runs"
    declaring(runs / "run", said(beacon), seed=7 if shown == "as an attempt" else 8, first=9)
    first = (runs / "run").rename(runs / "first")
    shutil.move(folder_of(runs / "run"), folder_of(first))
    parent = Parent.of(first) if shown == "as a parent" else None
    later = declaring(runs / "run", said(beacon), parent=parent)  # with the key of the first
    same = Transcript.open(first).draft_digest == Transcript.open(later).draft_digest
    assert same is (shown == "as an attempt")
    before = Told.begins(bench, first)
    chip = before.chip.told(later)
    before.repeats(0, 1).repeats(1, 3)
    if shown != "as a parent":
        before.repeats(3, 4)
        chip.saw(first, 4)
    report = inspected(Told(bench, chip, later).repeats(0, 1).repeats(1, 3).repeats(3, 4))
    found = "transcript.repeat.abandoned" in outcome(report)[0]
    assert found is (shown != "as a run of its own"), report["findings"]


def test_who_leaves_a_checkpoint_out_of_its_manifest_does_not_merge_segments(
    bench: Bench, run: Path, inspected: Inspected
) -> None:
    """The segment 1:3 was due and could not be repeated; as a part of 1:4 another draw would decide about it."""
    merged = run.parent.with_name("merged") / "run"
    shutil.copytree(run, merged)
    shutil.copy(key_path(run), key_path(merged))
    shutil.copytree(folder_of(run), folder_of(merged))
    manifest = open_manifest((merged / "manifest.json").read_bytes())
    told = {each.name: getattr(manifest, each.name) for each in fields(Predicate)}
    left = tuple(step for step in manifest.checkpoints if step != 3)
    files = tuple(each for each in manifest.files if each[0] != checkpoint_path(3))
    assert len(left) == len(manifest.checkpoints) - 1
    (merged / checkpoint_path(3)).unlink()
    predicate = Predicate(**{**told, "checkpoints": left, "files": files})
    (merged / "manifest.json").write_bytes(sign_manifest(predicate, key_of(run)))
    chip = Told.begins(bench, merged).repeats(0, 1).ends(3).reports().waits(1)
    report = inspected(chip.ends(4).reports().waits(1).commits(1, 4).reports())
    wrong = {"transcript.repeat.differs", "transcript.repeat.missing"}
    assert outcome(report) == (wrong, False, 1), report["findings"]
    assert states(report) == ["repeated", "differs", "missing"]


@pytest.mark.finding("transcript.repeat.value")
def test_a_value_that_is_not_the_beacons_decides_nothing(
    bench: Bench, run: Path, beacon: LocalBeacon, inspected: Inspected, tmp_path: Path
) -> None:
    """A Prover who brings the files cannot choose the value: that of another round is not signed for this one."""
    for number in range(1, 3):
        beacon.publish(tmp_path, number)
    for number in range(3300, 3700):
        (tmp_path / "public" / str(number)).write_bytes((tmp_path / "public" / "2").read_bytes())
    told = Told.begins(bench, run).ends(1).reports().ends(3).reports().ends(4).reports().waits(1)
    report = inspected(told, given={"beacon": FileBeacon(tmp_path)})
    assert outcome(report) == ({"transcript.repeat.value"}, False, 1), report["findings"]
    assert states(report) == ["unvalued"] * 3


@pytest.mark.finding("transcript.repeat.beacon")
def test_a_beacon_of_the_provers_own_is_said_to_be_unknown(bench: Bench, run: Path, inspected: Inspected) -> None:
    """Such a run counts for as much as one that declares nothing."""
    report = inspected(Told.begins(bench, run), given={"beacon": None})
    assert outcome(report) == ({"transcript.repeat.beacon"}, True, 0), report["findings"]


@pytest.mark.finding("transcript.repeat.malformed")
def test_a_draft_that_says_nonsense_of_repeats_is_a_violation(
    bench: Bench, inspected: Inspected, tmp_path: Path
) -> None:
    there = declaring(tmp_path / "runs" / "run", {"beacon": b"a" * 32, "share": 2.0, "delay_s": 5})
    assert outcome(inspected(Told.begins(bench, there)))[0] == {"transcript.repeat.malformed"}


def test_a_run_that_no_drawn_chip_logged_is_judged_too(bench: Bench, run: Path, inspected: Inspected) -> None:
    """It shows the run for a snapshot of a chip that never had its draft."""
    report = inspected(Told(bench, bench.written(), run))
    findings, verified, _ = outcome(report)
    assert {"transcript.repeat.unlogged", "transcript.commitment.missing"} <= findings, report["findings"]
    assert (verified, states(report)) == (False, ["unlogged"] * 3)
