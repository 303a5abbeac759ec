"""Inspections that replay one rank alone: an honest job passes, kept apart from full matches; a false sum is caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.false_sums import lying
from support.sharded_runs import record
from support.station import Station, ids

from protos.weighbridge.v1 import prover_pb2_grpc
from prover.archive import Archive
from prover.service import ALLOW, ProverService
from verifier.cache import Cache
from verifier.report import render_html
from verifier.reportcheck import check
from weighbridge import rpc
from weighbridge.given import GIVEN
from weighbridge.identity import Credentials

RANKS = 2


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """A station on whose chips two jobs have run, a snapshot in step 2 of each: an honest one and a false one."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        for kind in ("ddp", "false"):
            sockets = [station.chip(f"{kind}-{rank}").socket for rank in range(RANKS)]
            record([kind], RANKS, station.runs, sockets)
        yield station


@contextmanager
def prover(station: Station, *, lie: bool = False) -> Iterator[None]:
    """The Prover of all chips; a lying one answers with what its ranks kept, and not with a replay."""
    archive = Archive(station.runs)
    service = ProverService(archive)
    if lie:
        service._cells = lying(archive, station.runs)
    server, address = rpc.server(Credentials.load(station.root / "prover"), allow=ALLOW)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.start()
    for name in station.chips:
        station.register(name, address)
    yield
    server.stop(grace=1).wait()


def snapshots(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [snapshot for chip in report["chips"] for snapshot in chip["snapshots"]]


def test_a_cell_explains_a_snapshot_but_is_no_match(station: Station, tmp_path: Path) -> None:
    with prover(station):
        report = station.inspect("ddp-0", "ddp-1", cache=Cache(tmp_path), sharded="cells", chunks=50)
    assert ids(report, "violation") == []
    for snapshot in snapshots(report):
        assert (snapshot["status"], snapshot["step"]) == ("explained given collectives", 2)
        assert snapshot["replay"]["verdict"] == GIVEN
        cell = snapshot["cell"]
        assert cell["drawn"] == cell["chunks"] > 0
        assert cell["share_found"] == pytest.approx(1 / cell["chunks"])
    assert (report["counts"]["explained"], report["counts"]["explained_given_collectives"]) == (0, RANKS)
    assert all(chip["verified"] for chip in report["chips"])
    assert check(report) == []
    page = render_html(report)
    assert "explained given collectives" in page
    assert "chunks checked" in page


def test_a_false_sum_is_caught_by_its_chunks(station: Station, tmp_path: Path) -> None:
    with prover(station, lie=True):
        report = station.inspect("false-0", cache=Cache(tmp_path), sharded="cells", chunks=10_000)
    assert "job.chunk.mismatch" in ids(report, "violation")
    (snapshot,) = snapshots(report)
    assert (snapshot["status"], snapshot["replay"]["verdict"]) == ("mismatch", GIVEN)
    assert snapshot["cell"]["findings"] == 4
    assert not report["chips"][0]["verified"]


def test_a_prover_that_cannot_lie_has_no_results_to_show(station: Station, tmp_path: Path) -> None:
    with prover(station):
        report = station.inspect("false-1", cache=Cache(tmp_path), sharded="cells")
    assert "job.results.missing" in ids(report, "violation")
    assert [snapshot["replay"] for snapshot in snapshots(report)] == [None]


def test_a_false_sum_is_caught_by_a_replay_of_all_ranks(station: Station, tmp_path: Path) -> None:
    with prover(station, lie=True):
        report = station.inspect("false-0", cache=Cache(tmp_path), sharded="all")
    assert "replay.mismatch" in ids(report, "violation")
    assert [snapshot["status"] for snapshot in snapshots(report)] == ["mismatch"]
