"""Cells over RPC and in inspections: honest ones pass and are no full matches; false sums and answers are caught."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.exactly import exactly
from support.false_sums import lying
from support.sharded_runs import record
from support.station import Station, ids

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.keeping.archive import Archive
from prover.keeping.cell_requests import PIECE, Cells
from prover.service import ALLOW, ProverService
from verifier.contact import cell_material
from verifier.contact.clients import ProverClient
from verifier.farm.local_farm import execute
from verifier.model.facts import Cell, Explanation, Shard
from verifier.model.replay_task import Task
from verifier.report.consistency import check
from verifier.report.page import render_html
from verifier.store.cache import Cache
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import IdentityError, ProverError, TranscriptError, UsageError, WeighbridgeError
from weighbridge.execution.collective_openings import Commitments, Opening, Piece, Target
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.job_replay import replay_job
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.rpc import endpoints
from weighbridge.transcript.job_record import MeshCoordinate, rank_name, read_job
from weighbridge.transcript.reader import Transcript

SALT = bytes(32)
RANKS = 2


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """Two chips on which an honest job has run, and one whose ranks agree on a false all-reduce in step 2.

    Each has one snapshot in step 2 of each job.
    """
    with Station(tmp_path_factory.mktemp("station")) as station:
        sockets = [station.chip(f"rank-{rank}").socket for rank in range(RANKS)]
        for kind in ("ddp", "false"):  # in processes of their own: a chip sees all that lives in one
            record([kind], RANKS, station.runs, sockets)
        yield station


@pytest.fixture(scope="module")
def runs(station: Station) -> Path:
    return station.runs


@pytest.fixture(scope="module")
def authority(station: Station) -> CertificateAuthority:
    return station.authority


Answering = Callable[[Archive], Cells]

ANSWERS: dict[Any, list[Any]] = {}
"""What an honest service has answered: the same question is not worth another replay by the Prover."""


class Remembering(Cells):
    """An honest service that answers a question of this module once by a replay, and then as it did before."""

    def results(self, transcript_id: str, ranks: Sequence[str], steps: tuple[int, int], going: Any) -> Iterator[bytes]:
        key = (transcript_id, tuple(ranks), steps)
        if key not in ANSWERS:
            ANSWERS[key] = list(super().results(transcript_id, ranks, steps, going))
        yield from ANSWERS[key]

    def openings(
        self, transcript_id: str, ranks: Sequence[str], targets: Sequence[Target], going: Any
    ) -> Iterator[Opening]:
        key = (transcript_id, tuple(ranks), tuple(targets))
        if key not in ANSWERS:
            ANSWERS[key] = list(super().openings(transcript_id, ranks, targets, going))
        yield from ANSWERS[key]


@contextmanager
def serving(authority: CertificateAuthority, runs: Path, answering: Answering = Cells) -> Iterator[str]:
    """Serves; yields the address."""
    server, address = endpoints.server(authority.issue_role("prover", "p"), allow=ALLOW)
    archive = Archive(runs)
    service = ProverService(archive)
    service._cells = answering(archive)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.start()
    yield address
    server.stop(grace=1).wait()


@contextmanager
def prover(
    authority: CertificateAuthority, runs: Path, answering: Answering = Cells
) -> Iterator[cell_material.Connect]:
    """Serves; yields what connects a Verifier to it."""
    with serving(authority, runs, answering) as address:
        verifier = authority.issue_role("verifier", "v")
        yield lambda: ProverClient(address, verifier)


def claim_of(job: Path, rank: int, step: int, op: int) -> tuple[Shard, Explanation]:
    """What the Prover says about a snapshot of a rank, and the job as the Verifier has put it together."""
    ids = tuple(Transcript.open(job / rank_name(each)).digest for each in range(2))
    shard = Shard(coordinate=MeshCoordinate(read_job(job), rank), job=job)
    return shard, Explanation(transcript_id=ids[rank], step=step, op=op, ranks=ids)


def copied(runs: Path, name: str, tmp_path: Path) -> Path:
    """The Verifier's own copy of a job; the transcripts are not written to."""
    (tmp_path / name).symlink_to(runs / name)
    return tmp_path / name


def prepared(connect: cell_material.Connect, job: Path, step: int = 2, op: int = 3, **options: Any) -> Cell:
    found = cell_material.Cells(**{"chunks": 50, **options}).prepare(*claim_of(job, 0, step, op), connect)
    assert isinstance(found, Cell), found
    return found


def refusal(connect: cell_material.Connect, job: Path, **options: Any) -> WeighbridgeError:
    found = cell_material.Cells(**{"chunks": 50, **options}).prepare(*claim_of(job, 0, 2, 3), connect)
    assert isinstance(found, WeighbridgeError), found
    return found


def replayed(job: Path, cell: Cell, rank: int, step: int, op: int) -> ReplayResult:
    """What a farm's replay of the cell finds; raises why there was none."""
    task = Task(key="cell", name="cell", path=job, rank=rank, stop=(step, op), salt=SALT, results=cell.results)
    found = execute(task, "cpu", lambda done, steps: None, lambda: False).result
    if isinstance(found, WeighbridgeError):
        raise found
    return found


def test_an_honest_cell_reproduces_what_a_replay_of_all_ranks_does(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    job = copied(runs, "ddp", tmp_path)
    last = max(each.call.op for each in Commitments(job).step(0, 2).values())
    with prover(authority, runs) as connect:
        cell = prepared(connect, job, 2, last + 5)
    assert cell.findings == []
    assert cell.drawn == min(50, cell.chunks) > 0
    alone, whole = replayed(job, cell, 0, 2, last + 5), replay_job(job, stop=(0, 2, last + 5), salt=SALT).ranks[0]
    assert whole is not None
    assert (alone.verdict, whole.verdict) == (GIVEN, "match")
    assert sorted(alone.live or []) == sorted(whole.live or [])
    assert alone.running == whole.running
    assert {finding.id for finding in alone.findings} <= {"data.not_precommitted"}


def test_a_cell_is_asked_for_once(authority: CertificateAuthority, runs: Path, tmp_path: Path) -> None:
    asked = []

    class Counting(Cells):
        def results(self, *arguments: Any) -> Iterator[bytes]:
            asked.append(arguments)
            return super().results(*arguments)

    job = copied(runs, "ddp", tmp_path)
    with prover(authority, runs, Counting) as connect:
        preparing = cell_material.Cells(5)
        first = preparing.prepare(*claim_of(job, 1, 2, 3), connect)
        assert preparing.prepare(*claim_of(job, 1, 2, 9), connect) is first
    assert len(asked) == 1


# -- ranks that agree on a false sum -----------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_false_sum_is_found_by_chunks_at_the_stated_rate(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    job, trials, count = copied(runs, "false", tmp_path), 40, 6
    last = max(each.call.op for each in Commitments(job).step(0, 2).values())

    with prover(authority, runs, lambda archive: lying(archive, runs)) as connect:
        cell = prepared(connect, job, 2, last + 5, chunks=10_000)  # all of them
        false = {finding.subject for finding in cell.findings}
        assert {finding.id for finding in cell.findings} == {"job.chunk.mismatch"}
        assert (cell.drawn, len(false)) == (cell.chunks, 4)
        assert replayed(job, cell, 0, 2, last + 5).verdict == GIVEN  # the replay alone does not notice
        draws = (prepared(connect, job, chunks=count, chooser=random.Random(seed)) for seed in range(trials))
        caught = sum(bool(each.findings) for each in draws)
    total = cell.chunks
    expected = 1 - math.comb(total - 4, count) / math.comb(total, count)
    assert 0.1 < expected < 0.9
    assert abs(caught / trials - expected) < 4 * math.sqrt(expected * (1 - expected) / trials)


def test_an_honest_service_does_not_go_through_with_a_false_sum(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    with prover(authority, runs) as connect:
        assert refusal(connect, copied(runs, "false", tmp_path)).reason == "job.results.missing"


# -- hostile answers ---------------------------------------------------------------------------------------------------


def answering(opened: Callable[[Iterator[Opening]], Iterator[Opening]]) -> Answering:
    """A Prover that changes what it opens."""

    class Changing(Remembering):
        def openings(self, *arguments: Any) -> Iterator[Opening]:
            return opened(super().openings(*arguments))

    return Changing


def altered(honest: Iterator[Opening]) -> Iterator[Opening]:
    for each in honest:
        other = bytes([each.parts[0].data[0] ^ 1]) + each.parts[0].data[1:]
        yield replace(each, parts=(replace(each.parts[0], data=other), *each.parts[1:]))


def made_up(honest: Iterator[Opening]) -> Iterator[Opening]:
    """Other bytes in the result too, so that the sum is right."""
    for each in honest:
        zero = bytes(len(each.result.data))
        parts = tuple(replace(part, data=zero) for part in each.parts)
        yield replace(each, result=replace(each.result, data=zero), parts=parts)


def half(honest: Iterator[Opening]) -> Iterator[Opening]:
    both = list(honest)
    yield from both[: len(both) // 2]


def one_rank_twice(honest: Iterator[Opening]) -> Iterator[Opening]:
    for each in honest:
        yield replace(each, parts=(each.parts[0], each.parts[0]))


def one_rank(honest: Iterator[Opening]) -> Iterator[Opening]:
    for each in honest:
        yield replace(each, parts=each.parts[:1])


def endless(honest: Iterator[Opening]) -> Iterator[Opening]:
    while True:
        yield from [first := next(honest)]
        yield replace(first, parts=first.parts * 100_000)


def too_many(honest: Iterator[Opening]) -> Iterator[Opening]:
    first = next(honest)
    while True:
        yield first


def too_large(honest: Iterator[Opening]) -> Iterator[Opening]:
    for each in honest:
        yield replace(each, result=Piece(bytes(1 << 20), each.result.proof))


def nothing(honest: Iterator[Opening]) -> Iterator[Opening]:
    yield from ()


def refusing(honest: Iterator[Opening]) -> Iterator[Opening]:
    yield next(honest)
    raise UsageError("not today")


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        (altered, {"merkle.proof"}),
        (made_up, {"merkle.proof"}),
        (one_rank_twice, {"merkle.proof"}),
        (one_rank, {"merkle.proof"}),
        (half, {"job.chunk.missing"}),
        (nothing, {"job.chunk.missing"}),
        (refusing, {"job.chunk.missing"}),
        (endless, {"job.chunk.missing"}),
        (too_many, {"job.chunk.missing"}),
        (too_large, {"job.chunk.missing"}),
    ],
)
def test_false_openings_are_findings(
    authority: CertificateAuthority,
    runs: Path,
    tmp_path: Path,
    lie: Callable[[Iterator[Opening]], Iterator[Opening]],
    expected: set[str],
) -> None:
    with prover(authority, runs, answering(lie)) as connect:
        cell = prepared(connect, copied(runs, "ddp", tmp_path), deadline_s=60, chooser=random.Random(0))
    assert expected <= {finding.id for finding in cell.findings} <= expected | {"merkle.proof"}
    assert all(finding.severity == "violation" for finding in cell.findings)


def sending(pieces: Callable[[], Iterator[bytes]]) -> Answering:
    """A Prover that sends something else for results."""

    class Changing(Remembering):
        def results(self, *arguments: Any) -> Iterator[bytes]:
            return pieces()

    return Changing


def zeros() -> Iterator[bytes]:
    while True:
        yield bytes(PIECE)


def silent_until(over: threading.Event) -> Callable[[], Iterator[bytes]]:
    def silence() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    return silence


def test_endless_results_are_refused(authority: CertificateAuthority, runs: Path, tmp_path: Path) -> None:
    with prover(authority, runs, sending(zeros)) as connect:
        found = refusal(connect, copied(runs, "ddp", tmp_path))
    assert found.reason == "job.results.missing"
    assert not list((tmp_path / "ddp-cells").iterdir())


def test_a_prover_that_says_nothing_is_not_waited_for(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    over = threading.Event()
    with prover(authority, runs, sending(silent_until(over))) as connect:
        begin = time.monotonic()
        assert isinstance(refusal(connect, copied(runs, "ddp", tmp_path), deadline_s=1.0), ProverError)
        assert time.monotonic() - begin < 30, "the Prover is silent for a minute"
        over.set()


def test_results_that_are_none_are_refused_by_the_replay(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    job = copied(runs, "ddp", tmp_path)
    with prover(authority, runs, sending(lambda: iter([b"no tensor file"]))) as connect:
        cell = prepared(connect, job, chooser=random.Random(0))
    with pytest.raises(WeighbridgeError) as caught:
        replayed(job, cell, 0, 2, 3)
    assert caught.value.reason == "format.malformed"


def test_results_of_another_rank_are_refused_by_the_replay(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    class Swapping(Remembering):
        def results(self, transcript_id: str, ranks: Sequence[str], *rest: Any) -> Iterator[bytes]:
            return super().results(next(each for each in ranks if each != transcript_id), ranks, *rest)

    job = copied(runs, "ddp", tmp_path)
    with prover(authority, runs, Swapping) as connect:
        cell = prepared(connect, job, chooser=random.Random(0))
    with pytest.raises(TranscriptError) as caught:
        replayed(job, cell, 0, 2, 3)
    assert caught.value.reason == "job.results.mismatch"


# -- what a Prover's service refuses -----------------------------------------------------------------------------------


def test_a_service_names_what_is_wrong_with_a_request(
    authority: CertificateAuthority, runs: Path, tmp_path: Path
) -> None:
    _, claim = claim_of(runs / "ddp", 0, 2, 3)
    reasons = []
    with prover(authority, runs) as connect, connect() as client:
        for transcript, ranks, steps in (
            (claim.transcript_id, claim.ranks[:1], (1, 2)),
            (claim.transcript_id, claim.ranks[::-1], (1, 2)),
            (claim.transcript_id, [claim.ranks[0], "00" * 32], (1, 2)),
            ("00" * 32, claim.ranks, (1, 2)),
            (claim.transcript_id, [], (1, 2)),
            (claim.transcript_id, claim.ranks, (1, 99)),
            (claim.transcript_id, claim.ranks, (2, 1)),
        ):
            with pytest.raises(WeighbridgeError) as caught:
                list(client.cell_results(transcript, ranks, steps, limit=1 << 30, deadline_s=30))
            reasons.append(caught.value.reason)
        for targets in ([Target(2, 0, 0, 0)], [Target(99, 0, 0, 0)], [Target(2, 1, 0, 0)] * 2):
            with pytest.raises(WeighbridgeError):
                list(client.open_chunks(claim.transcript_id, claim.ranks, targets, limit=9, deadline_s=30))
    assert reasons == [
        "job.incomplete", "job.incomplete", "transcript.unknown", "job.incomplete", "job.incomplete", "usage", "usage",
    ]  # fmt: skip
    assert not list((runs / ".open").iterdir())


@pytest.mark.parametrize("role", ["chip", "prover", "operator"])
def test_other_roles_get_no_results(authority: CertificateAuthority, runs: Path, role: str) -> None:
    with (
        serving(authority, runs) as address,
        endpoints.channel(address, authority.issue_role(role, "x"), "prover") as channel,
    ):
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        for method, request in (
            (stub.FetchResults, prover_pb2.FetchResultsRequest()),
            (stub.OpenContributions, prover_pb2.OpenContributionsRequest()),
        ):
            with pytest.raises(IdentityError):
                list(endpoints.stream(method, request))


# -- in an inspection --------------------------------------------------------------------------------------------------


@contextmanager
def registered(station: Station, *, lie: bool) -> Iterator[None]:
    """The Prover of both chips; a lying one answers about the false job with what its ranks kept."""

    def answering(archive: Archive) -> Cells:
        return lying(archive, station.runs) if lie else Cells(archive)

    with serving(station.authority, station.runs, answering) as address:
        for name in station.chips:
            station.register(name, address)
        yield


def snapshots(report: dict[str, Any], job: Path) -> list[dict[str, Any]]:
    """The snapshots of one of the jobs in a report."""
    found = [snapshot for chip in report["chips"] for snapshot in chip["snapshots"]]
    return [snapshot for snapshot in found if snapshot["shard"]["job"] == read_job(job).id.hex()]


@pytest.mark.finding("job.chunk.mismatch")
def test_an_inspection_by_cells_explains_one_job_and_catches_the_other(station: Station, tmp_path: Path) -> None:
    with registered(station, lie=True):
        report = station.inspect("rank-0", "rank-1", cache=Cache(tmp_path), sharded="cells", chunks=10_000)
    exactly(report, "job.chunk.mismatch")
    honest, false = snapshots(report, station.runs / "ddp"), snapshots(report, station.runs / "false")
    assert (len(honest), len(false)) == (RANKS, RANKS)
    for snapshot in honest:
        assert (snapshot["status"], snapshot["step"]) == ("explained given collectives", 2)
        assert snapshot["replay"]["verdict"] == GIVEN
        cell = snapshot["cell"]
        assert (cell["drawn"], cell["findings"]) == (cell["chunks"], 0)
        assert cell["share_found"] == pytest.approx(1 / cell["chunks"])
    for snapshot in false:  # the replay alone does not notice
        assert (snapshot["status"], snapshot["replay"]["verdict"]) == ("mismatch", GIVEN)
        assert snapshot["cell"]["findings"] == 4
    assert (report["counts"]["explained"], report["counts"]["explained_given_collectives"]) == (0, RANKS)
    assert not any(chip["verified"] for chip in report["chips"])
    assert check(report) == []
    page = render_html(report)
    assert "explained given collectives" in page
    assert "chunks checked" in page


def test_a_replay_of_all_ranks_catches_it_too_and_says_match(station: Station, tmp_path: Path) -> None:
    with registered(station, lie=True):
        report = station.inspect("rank-0", cache=Cache(tmp_path), sharded="all")
    assert "replay.mismatch" in ids(report, "violation")
    (honest,), (false,) = snapshots(report, station.runs / "ddp"), snapshots(report, station.runs / "false")
    assert (honest["status"], honest["replay"]["verdict"], honest["cell"]) == ("explained", "match", None)
    assert (false["status"], false["replay"]["verdict"]) == ("mismatch", "mismatch")


@pytest.mark.finding("job.results.missing")
def test_a_prover_that_cannot_lie_has_no_results_to_show(station: Station, tmp_path: Path) -> None:
    with registered(station, lie=False):
        report = station.inspect("rank-1", cache=Cache(tmp_path), sharded="cells")
    exactly(report, "job.results.missing")
    assert [snapshot["replay"] for snapshot in snapshots(report, station.runs / "false")] == [None]
