# ruff: noqa: N802 (gRPC names the methods)
"""Inspections over real chips, trainings and a real Prover: the honest pass, and each cheat costs only its own part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.forging import at_step, forge
from support.hostile_tapes import endless
from support.populated_station import populate
from support.station import Station, ids

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.keeping.archive import Archive
from prover.service import ALLOW, ProverService
from verifier.report.page import render_html
from verifier.store.cache import Cache
from weighbridge.execution.worker_process import Limits
from weighbridge.rpc import endpoints
from weighbridge.transcript.reader import Transcript

JOBS = {"honest": "declared", "hidden": "hidden", "beside": "beside"}


pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest run, an undeclared one, one with a second model beside it, an idle chip and a dead one."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        populate(station, JOBS, "idle")
        yield station


@pytest.fixture(scope="module")
def report(station: Station) -> dict[str, Any]:
    """An inspection of all five chips."""
    return station.inspect(*station.chips)


def chip(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in report["chips"] if each["site"] == name)


def findings(report: dict[str, Any], station: Station, name: str) -> list[str]:
    """Violations about one chip."""
    ueid = station.ueids[name].hex()
    return [f["id"] for f in report["findings"] if ueid in f["subject"] and f["severity"] == "violation"]


def test_the_honest_run_is_explained_to_the_last_byte(report: dict[str, Any], station: Station) -> None:
    assert findings(report, station, "honest") == []
    honest = chip(report, "honest")
    assert honest["verified"]
    (snapshot,) = honest["snapshots"]
    assert snapshot["status"] == "explained"
    assert snapshot["step"] == 3
    assert snapshot["op"] > 0
    assert snapshot["memory"]["unexplained"] == snapshot["memory"]["missing"] == 0
    assert snapshot["memory"]["explained"] == snapshot["bytes"] > 10_000
    assert ids(report).count("snapshot.memory.unexplained") == 1  # of another chip; and there is no warning
    assert snapshot["replay"]["verdict"] == "match"
    assert snapshot["replay"]["steps"] == [3, 4]  # from the nearest checkpoint, not from the beginning


def test_the_undeclared_run_is_unexplained(report: dict[str, Any], station: Station) -> None:
    assert findings(report, station, "hidden") == ["snapshot.unexplained"]
    assert not chip(report, "hidden")["verified"]
    assert not chip(report, "hidden")["snapshots"][0]["safepoint"]


def test_a_second_model_in_memory_is_not_accounted_for(report: dict[str, Any], station: Station) -> None:
    assert findings(report, station, "beside") == ["snapshot.memory.unexplained"]
    (snapshot,) = chip(report, "beside")["snapshots"]
    assert snapshot["replay"]["verdict"] == "match"
    assert snapshot["memory"]["unexplained"] > 20_000
    assert snapshot["status"] == "mismatch"


def test_a_dead_chip_costs_only_itself(report: dict[str, Any], station: Station) -> None:
    assert findings(report, station, "dead") == ["chip.unreachable"]
    assert not chip(report, "dead")["reachable"]
    assert chip(report, "idle")["verified"]


def test_only_verified_chips_count_in_p(report: dict[str, Any]) -> None:
    assert report["counts"]["sampled"] == 5
    assert report["counts"]["verified"] == 2
    inputs = report["probability"]["inputs"]
    assert (inputs["s"], inputs["w"]) == (5, 1), "the dead chip was drawn, and may have been what the run was on"
    assert report["probability"]["hypergeometric"] == 0, (
        "one chip is enough for a run of that size, and one fell silent"
    )


def test_the_report_lists_programs_and_the_seed(report: dict[str, Any]) -> None:
    names = {each["name"]: each for each in report["transcripts"]}
    assert set(names) == {"honest", "beside"}
    (tape,) = names["honest"]["tapes"].values()
    assert tape["kind"] == "step"
    assert tape["operations"] > 20
    assert len(report["plan"]["seed"]) == 32
    assert "snapshot.unexplained" in render_html(report)


def test_the_log_of_a_chip_restored_from_a_backup_is_a_finding(station: Station, tmp_path: Path) -> None:
    station.chip("restored")
    shutil.copytree(station.root / "chips" / "restored", tmp_path / "backup")
    station.chips["restored"].kill()
    station.chips["restored"].start()  # one more boot entry
    station.register("restored")
    assert ids(station.inspect("restored")) == []
    station.chips["restored"].kill()
    shutil.rmtree(station.root / "chips" / "restored")
    shutil.copytree(tmp_path / "backup", station.root / "chips" / "restored")
    station.chips["restored"].start()
    station.register("restored")
    assert ids(station.inspect("restored")) == ["chip.log.changed"]


def test_one_altered_byte_in_a_declared_transcript(station: Station, tmp_path: Path) -> None:
    path = next((station.runs / "honest" / "batches").iterdir())
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    try:
        cheated = station.inspect("honest", "idle")
    finally:
        path.write_bytes(intact)
    assert ids(cheated) == ["transcript.file.altered"]
    assert chip(cheated, "honest")["snapshots"][0]["status"] == "unverified"
    assert chip(cheated, "idle")["verified"]
    assert cheated["counts"]["verified"] == 1


class Liar(ProverService):
    """A Prover that answers every question about a snapshot in the same way."""

    def __init__(self, archive: Archive, **answer: Any) -> None:
        super().__init__(archive)
        self._answer = answer

    def Explain(self, request: Any, context: Any) -> prover_pb2.ExplainResponse:
        return prover_pb2.ExplainResponse(explained=True, **self._answer)


@contextmanager
def liar(station: Station, runs: Path | None = None, **answer: Any) -> Iterator[str]:
    server, address = endpoints.server(station.authority.issue_role("prover", "liar"), allow=ALLOW)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(  # type: ignore[no-untyped-call]
        Liar(Archive(runs or station.runs), **answer), server
    )
    server.start()
    try:
        yield address
    finally:
        server.stop(0)


def lie(station: Station, name: str, cache: Cache, **answer: Any) -> dict[str, Any]:
    """Inspects one chip while its Prover lies."""
    honest = station.registry.chip(station.ueids[name]).prover_address
    with liar(station, **answer) as address:
        station.register(name, address)
        try:
            return station.inspect(name, cache=cache)
        finally:
            station.register(name, honest)


def test_lies_about_provenance(station: Station, report: dict[str, Any], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    ours = next(each["id"] for each in report["transcripts"] if each["name"] == "honest")
    op = chip(report, "honest")["snapshots"][0]["op"]
    # Another run's transcript for an undeclared run: another memory, not named there, and no commitment.
    stolen = lie(station, "hidden", cache, transcript_id=ours, step=3, op=op)
    assert set(ids(stolen, "violation")) == {
        "transcript.commitment.missing",
        "snapshot.position.mismatch",
        "snapshot.memory.missing",
        "snapshot.memory.unexplained",
    }
    assert chip(stolen, "hidden")["snapshots"][0]["status"] == "mismatch"
    # A wrong operation, a position that no transcript has, and a transcript that does not exist.
    assert "snapshot.position.mismatch" in ids(lie(station, "honest", cache, transcript_id=ours, step=3, op=op + 1))
    assert "snapshot.position.mismatch" in ids(lie(station, "honest", cache, transcript_id=ours, step=77, op=0))
    assert "snapshot.position.mismatch" in ids(lie(station, "honest", cache, transcript_id=ours, step=3, op=99_999))
    assert ids(lie(station, "honest", cache, transcript_id="0" * 64, step=3, op=op)) == ["transcript.unknown"]
    assert ids(lie(station, "honest", cache, transcript_id="../../etc", step=3, op=op)) == ["transcript.fetch.id"]


@pytest.mark.finding("prover.unreachable")
def test_a_prover_that_is_gone(station: Station, report: dict[str, Any]) -> None:
    address = station.registry.chip(station.ueids["honest"]).prover_address
    station.register("honest", "127.0.0.1:1")
    try:
        found = station.inspect("honest", "idle")
    finally:
        station.register("honest", address)
    assert ids(found) == ["prover.unreachable"]
    assert chip(found, "idle")["verified"]


@pytest.mark.slow
def test_a_tape_that_hangs_costs_only_itself(station: Station, tmp_path: Path) -> None:
    """One that kills its worker does no more: see `test_farm`."""
    forged = forge(station.runs / "honest", tmp_path / "runs" / "honest", at_step(3, endless))
    address = station.registry.chip(station.ueids["honest"]).prover_address
    with liar(station, tmp_path / "runs", transcript_id=Transcript.open(forged).digest, step=4, op=0) as lying:
        station.register("honest", lying)
        try:
            found = station.inspect("honest", "idle", limits=Limits(seconds=12))
        finally:
            station.register("honest", address)
    assert "replay.worker" in ids(found, "warning")
    assert "replay.mismatch" not in ids(found), "without seeing the end of it there is no violation"
    assert not chip(found, "honest")["verified"]
    assert chip(found, "idle")["verified"]
