"""Jobs whose ranks repeat segments while they go on: an honest one on real chips, and Provers who cheat with one rank.

Each rank's chip logs its own segments, and each rank's are drawn by themselves; all ranks repeat a segment together.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.exactly import found
from support.forging import forge
from support.on_demand import key_of, place
from support.recording_store import RecordingStore
from support.repeating import Told, WitnessedStation
from support.sharded_runs import record
from support.station import ids
from support.workers_here import workers_here
from support.written_chips import Bench

from prover.service import ProverService
from verifier.contact.witness import Witness, load_signer
from verifier.model.policies import SegmentPolicy
from verifier.report import consistency
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.repeats import Declared
from weighbridge.core.errors import UsageError
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.supplements import folder_of, key_path, read_statement

KINDS, RANKS, DELAY = ["tied", "fsdp"], 2, 10
USUAL = {"data.not_precommitted"}
NONE = SegmentPolicy(random=0, largest=0, recognise=0)


def test_an_honest_job_repeats_while_it_goes_on_and_is_clean(tmp_path: Path) -> None:
    """Each segment of each rank is due. Its processes make all logs, and each chip commits to those of its rank."""
    with WitnessedStation(tmp_path) as station:
        prover = station.prover()
        chips = [station.watched(rank_name(rank), prover) for rank in range(RANKS)]
        sockets = [chip.socket for chip in chips]
        record(["ddp"], RANKS, station.runs, sockets, logs="on-demand", beacon=str(station.values))
        job = station.runs / "ddp"
        assert [len(list(folder_of(each).iterdir())) for each in ranks_of(job)] == [4] * RANKS
        assert [each.name for each in job.iterdir() if "repeat" in each.name] == []
        with workers_here():
            report = station.inspect(
                *(rank_name(rank) for rank in range(RANKS)),
                given={"witness": station.witness, "beacon": station.beacon},
                segments=SegmentPolicy(random=1, largest=0, recognise=0), replay_env={"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        assert set(ids(report)) <= USUAL, report["findings"]
        for told in report["evidence"]["repeats"]:
            assert [(each["begin"], each["end"], each["state"]) for each in told["segments"]] == [
                (0, 1, "repeated"), (1, 3, "repeated"), (3, 4, "repeated"),
            ]  # fmt: skip
            assert (told["beacon_known"], told["abandoned"], len(told["chips"])) == (True, [], 1)
        assert len(report["evidence"]["repeats"]) == RANKS
        assert all(each["verified"] for each in report["chips"])
        assert consistency.check(report) == []


# -- Provers who cheat with one rank: chips' logs are written here ---------------------------------------------------


@pytest.fixture(scope="module")
def beacon(bench: Bench) -> LocalBeacon:
    """A beacon that began an hour ago."""
    LocalBeacon.load(bench.root / "job-beacon-key", clock=lambda: time.time() - 3600)
    return LocalBeacon.load(bench.root / "job-beacon-key")


@pytest.fixture(scope="module")
def job(recordings: RecordingStore, bench: Bench, beacon: LocalBeacon) -> Path:
    """A job of the segments 0:1, 1:3 and 3:4 whose ranks declare repeats, with all logs."""
    stored = recordings.get("bare", lambda path: record(KINDS, RANKS, path, logs="on-demand"), KINDS, RANKS)
    there = bench.runs / "declared-job" / "job"
    there.mkdir(parents=True)
    shutil.copy(stored / "tied" / "job.cbor", there / "job.cbor")
    said = Declared(beacon=beacon.info.chain, share=1.0, delay_s=DELAY).to_map()
    for run in ranks_of(stored / "tied"):
        shutil.copy(key_path(run), key_path(there / run.name))
        forge(run, there / run.name, lambda *_: None, key=key_of(run), repeats=said)
    regenerate_job(ranks_of(there), [key_of(each) for each in ranks_of(there)])
    return there


Inspected = Callable[..., dict[str, Any]]


@pytest.fixture
def inspected(bench: Bench, beacon: LocalBeacon) -> Inspected:
    """The report on the chips of some ranks, once each has shown the end of its run."""

    def inspect(*ranks: Told, **also: Any) -> dict[str, Any]:
        for told in ranks:
            told.chip.saw(told.run, 4)
            told.waits(max(0.0, time.time() - told.chip.log.time_ms / 1000))
        witness = Witness(bench.registry, bench.manufacturer.certificate, load_signer(bench.root / "witness-key"))
        given, chips = {"witness": witness, "beacon": beacon}, [told.chip for told in ranks]
        report = bench.inspected(ranks[0].run.parent.parent, *chips, given=given, **{"segments": NONE, **also})
        assert consistency.check(report) == []
        return report

    return inspect


def begins(bench: Bench, job: Path, rank: int) -> Told:
    """The chip of a rank."""
    return Told.begins(bench, job / rank_name(rank))


def honest(bench: Bench, job: Path, rank: int) -> Told:
    """The chip of a rank that repeats all its segments in time."""
    return begins(bench, job, rank).repeats(0, 1).repeats(1, 3).repeats(3, 4)


def states(report: dict[str, Any]) -> dict[str, list[str]]:
    """What became of the segments of each rank, in their order."""
    names = {each["id"]: each["name"] for each in report["transcripts"]}
    return {
        names[told["transcript"]]: [each["state"] for each in told["segments"]]
        for told in report["evidence"]["repeats"]
    }


def outcome(report: dict[str, Any]) -> tuple[set[str], list[bool], int]:
    """What was found, which chips count as verified, and how many chips count as withheld in p."""
    verified = [each["verified"] for each in report["chips"]]
    return found(report) - USUAL, verified, report["counts"]["unverified_after_draw"]


REPEATED = ["repeated"] * 3


@pytest.mark.parametrize("sharded", ["all", "cells"])
def test_a_job_that_repeats_every_segment_in_time_is_clean(
    bench: Bench, job: Path, inspected: Inspected, sharded: str
) -> None:
    report = inspected(*(honest(bench, job, rank) for rank in range(RANKS)), sharded=sharded)
    assert outcome(report) == (set(), [True] * RANKS, 0), report["findings"]
    assert states(report) == {rank_name(rank): REPEATED for rank in range(RANKS)}


@pytest.mark.parametrize("sharded", ["all", "cells"])
@pytest.mark.finding("transcript.repeat.missing")
def test_a_rank_that_never_commits_withholds_the_chips_of_all_ranks(
    bench: Bench, job: Path, inspected: Inspected, sharded: str
) -> None:
    """They repeat together: what one of them cannot show, none can."""
    lazy = begins(bench, job, 1).repeats(0, 1).repeats(1, 3).ends(4).reports().waits(1)
    report = inspected(honest(bench, job, 0), lazy, sharded=sharded)
    assert outcome(report) == ({"transcript.repeat.missing"}, [False] * RANKS, RANKS), report["findings"]
    assert states(report) == {"rank-0000": REPEATED, "rank-0001": ["repeated", "repeated", "missing"]}


@pytest.mark.finding("transcript.repeat.late")
def test_a_rank_that_commits_late_is_found(bench: Bench, job: Path, inspected: Inspected) -> None:
    late = begins(bench, job, 1).repeats(0, 1).ends(3).reports().waits(DELAY + 2).commits(1, 3).reports()
    report = inspected(honest(bench, job, 0), late.repeats(3, 4))
    assert outcome(report)[:2] == ({"transcript.repeat.late"}, [False] * RANKS), report["findings"]
    assert states(report)["rank-0001"] == ["repeated", "late", "repeated"]


@pytest.mark.finding("transcript.repeat.differs")
def test_a_commitment_to_another_ranks_logs_is_a_false_one(bench: Bench, job: Path, inspected: Inspected) -> None:
    """As of a Prover who repeats one replica, and takes its logs for those of all."""
    logs = [bytes.fromhex(read_statement(place(job / rank_name(0), step))[0].rounding) for step in (1, 2)]
    false = begins(bench, job, 1).repeats(0, 1).ends(3).reports().commits(1, 3, logs=logs).reports()
    report = inspected(honest(bench, job, 0), false.repeats(3, 4))
    assert outcome(report)[:2] == ({"transcript.repeat.differs"}, [False] * RANKS), report["findings"]
    assert states(report)["rank-0001"] == ["repeated", "differs", "repeated"]


@pytest.mark.finding("transcript.repeat.unlogged")
def test_a_rank_whose_chip_logs_no_end_of_a_segment_is_found(bench: Bench, job: Path, inspected: Inspected) -> None:
    report = inspected(honest(bench, job, 0), begins(bench, job, 1).repeats(0, 1).repeats(3, 4))
    assert outcome(report)[0] == {"transcript.repeat.unlogged"}, report["findings"]
    assert states(report)["rank-0001"] == ["repeated", "unlogged", "repeated"]


class Refuses(ProverService):
    """Says that its repeat differs."""

    def FetchSupplements(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise UsageError("the repeat differs", code="replay.mismatch")


@pytest.mark.finding("transcript.repeat.unanswered")
def test_a_job_that_committed_cannot_say_that_its_repeat_differs(bench: Bench, job: Path, inspected: Inspected) -> None:
    report = inspected(*(honest(bench, job, rank) for rank in range(RANKS)), service=Refuses)
    refused = {"transcript.repeat.unanswered", "prover.supplements.refused", "prover.supplements.missing"}
    assert outcome(report)[:2] == (refused, [False] * RANKS), report["findings"]
    assert states(report) == {rank_name(rank): ["unanswered"] * 3 for rank in range(RANKS)}


def test_a_rank_that_is_not_drawn_does_not_count(bench: Bench, job: Path, inspected: Inspected) -> None:
    """Its chip is not asked, as that of a run whose chip is not drawn."""
    report = inspected(honest(bench, job, 0))
    assert outcome(report) == (set(), [True], 0), report["findings"]
    assert states(report) == {"rank-0000": REPEATED}
