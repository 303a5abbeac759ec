"""What a session finds is what an inspection that asks finds; here in this process, which confines nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from support.outcomes import TERMS, start
from support.sealed_here import examined, given, said, statuses
from support.station import Station

from firmware_sim.opening import opened
from verifier.contact.clients import ChipClient
from verifier.model.agreed_population import AgreedPopulation
from verifier.registry import Registry
from verifier.report import published_findings
from verifier.sealed import session_worker
from verifier.sealed.case import Case
from verifier.sealed.inputs import opening, place, token_openings
from verifier.sealed.session import Examined
from verifier.stages.read_logs import snapshots_in
from verifier.store.cache import Cache
from weighbridge.attest.signed_outcome import open_record
from weighbridge.attest.worker_openings import pack
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError
from weighbridge.execution.worker_process import Limits


def test_a_session_finds_what_an_inspection_that_asks_finds(station: Station, honest: Examined) -> None:
    asked = station.inspect(*station.chips, replay_env={})
    assert statuses(honest.report) == statuses(asked)
    assert said(honest.report) == said(asked)
    counts = [{name: each["probability"]["inputs"][name] for name in "Csw"} for each in (honest.report, asked)]
    assert counts[0] == counts[1]
    assert honest.missing == {}


@pytest.mark.finding("chip.identity.agreed")
def test_a_chip_with_another_certificate_than_was_agreed_on_is_found(
    station: Station, case: Case, population: AgreedPopulation, honest: Examined, tmp_path: Path
) -> None:
    """Another device with the UEID of one that was agreed on; its manufacturer issued it a certificate as well."""
    assert all(found for ueid, found in population.chips.items() if ueid != station.ueids["dead"])
    assert "chip.identity.agreed" not in [name for name, _ in said(honest.report)]
    chips = {**population.chips, station.ueids["honest"]: bytes(32)}
    found = examined(
        station, replace(case, population=AgreedPopulation(chips).text), given(station, case, tmp_path / "files")
    )
    assert ("chip.identity.agreed", f"chip {station.ueids['honest'].hex()} head") in said(found.report)
    assert found.report["counts"]["verified"] == honest.report["counts"]["verified"] - 1
    assert found.report["probability"]["inputs"]["w"] == honest.report["probability"]["inputs"]["w"] + 1


def test_a_report_that_is_too_large_is_an_inspection_that_was_aborted(
    station: Station, case: Case, honest: Examined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Prover makes a report as large as it likes. The record leaves all the same, with the length of every other."""
    named = {"findings": published_findings.digest(), "finding_count": len(published_findings.published())}
    begun = start(replace(TERMS, inspection="sealed-1", **named))
    monkeypatch.setattr(session_worker, "OUTCOME_LIMIT", 1000)
    files = given(station, case, tmp_path / "files")
    registry = Registry(tmp_path / "registry")
    session = session_worker.Session(case, begun.agreement, begun.key, files, time.monotonic() + 120)
    record, report = session.run(registry, Cache(tmp_path / "cache"), Limits(seconds=300))
    registry.close()
    assert (open_record(record).status, len(record), report) == ("aborted", 793, b"{}")


@pytest.mark.finding("outcome.withheld")
def test_a_snapshot_that_is_not_opened_is_withheld(station: Station, case: Case, tmp_path: Path) -> None:
    """A Prover that hides the opening of what it cannot explain does not get away with it."""
    files = given(station, case, tmp_path / "files", ("honest", 0))
    found = examined(station, case, files)
    assert statuses(found.report) == {"honest": ["unverified"], "hidden": ["unexplained"], "idle": [], "dead": []}
    ((ueid, _),) = found.missing
    assert ueid == station.ueids["honest"].hex()
    assert found.missing == {each: "withheld" for each in found.missing}


def test_a_transcript_that_was_altered_explains_nothing(station: Station, case: Case, tmp_path: Path) -> None:
    files = given(station, case, tmp_path / "files")
    (transcript,) = (files / "transcripts").iterdir()
    step = next((transcript / "steps").iterdir())
    content = bytearray(step.read_bytes())
    content[len(content) // 2] ^= 1
    step.unlink()  # it is a link to the run's own
    step.write_bytes(content)
    assert statuses(examined(station, case, files).report)["honest"] == ["unexplained"]


def test_an_opening_of_other_memory_is_found(station: Station, case: Case, tmp_path: Path) -> None:
    files = given(station, case, tmp_path / "files")
    (path,) = (files / "openings" / station.ueids["honest"].hex()).iterdir()
    raw = cbor2.loads(path.read_bytes())
    raw["leaves"][1] = bytes(32) + raw["leaves"][1][32:]
    path.write_bytes(cbor(raw))
    found = examined(station, case, files)
    assert statuses(found.report)["honest"] != ["explained"]
    assert found.missing == {}


def test_what_a_chip_opens_itself_comes_before_the_provers_files(
    station: Station, case: Case, honest: Examined, tmp_path: Path
) -> None:
    """A Prover that also gives an opening, or has a file in its way, gains nothing; what cannot be put is withheld."""
    files = given(station, case, tmp_path / "files")
    openings = {}
    for log in case.logs:
        name = next(name for name, ueid in station.ueids.items() if ueid == log.chip.ueid)
        for each in snapshots_in(log):
            openings[log.chip.ueid, "snapshot", each.index] = pack(*opened(station.chips[name].socket, each.index))
    for path in (files / "openings").rglob("*.cbor"):
        path.write_bytes(b"another opening")
    place(files, openings)  # type: ignore[arg-type]
    found = examined(station, case, files)
    assert (statuses(found.report), found.missing) == (statuses(honest.report), {})
    (ueid, kind, index), content = next(iter(openings.items()))
    in_the_way = tmp_path / "other" / "openings" / ueid.hex() / f"{index}.cbor"
    in_the_way.mkdir(parents=True)
    place(tmp_path / "other", {(ueid, "snapshot", index): content, (ueid, "token", 0): b"t"})
    assert in_the_way.is_dir()
    assert token_openings(tmp_path / "other", next(log for log in case.logs if log.chip.ueid == ueid)) == {0: b"t"}
    assert kind == "snapshot"


@pytest.mark.parametrize(
    "content", [b"", b"\xff", cbor({"salt": b"", "leaves": [[1], b""], "weights": [[], b""]}), cbor({"salt": 1})]
)
def test_what_is_no_opening_is_none(station: Station, case: Case, tmp_path: Path, content: bytes) -> None:
    (snapshot,) = (s for log in case.logs for s in snapshots_in(log) if s.chip.site == "honest")
    path = tmp_path / "openings" / snapshot.chip.ueid.hex() / f"{snapshot.index}.cbor"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = opening(tmp_path, snapshot)
    assert isinstance(found, ChipError)
    assert found.reason == "chip.unreachable"


@pytest.mark.parametrize(("seconds", "status"), [(0.0, "late"), (120.0, "complete")])
def test_an_outcome_that_is_late_says_so_in_the_same_length(
    station: Station, case: Case, honest: Examined, tmp_path: Path, seconds: float, status: str
) -> None:
    named = {"findings": published_findings.digest(), "finding_count": len(published_findings.published())}
    begun = start(replace(TERMS, inspection="sealed-1", **named))
    # The agreement is another, with the same terms but for what the draw follows from; a worker would refuse that.
    agreed = replace(begun.agreement.terms, flops_threshold=case.plan.flops_threshold)
    assert agreed == begun.agreement.terms
    files = given(station, case, tmp_path / "files")
    deadline = time.monotonic() + seconds
    registry = Registry(tmp_path / "registry")
    session = session_worker.Session(case, begun.agreement, begun.key, files, deadline)
    record, _ = session.run(registry, Cache(tmp_path / "cache"), Limits(seconds=300))
    registry.close()
    assert len(record) == 793
    assert open_record(record).status == status


def test_a_chip_opens_snapshots_to_its_own_machine_alone(station: Station, case: Case) -> None:
    socket = station.chips["honest"].socket
    assert socket.stat().st_mode & 0o077 == 0
    with pytest.raises(ChipError):
        opened(socket, 10_000)
    with pytest.raises(ChipError):
        opened(station.root / "no-socket", 1)


def test_asking_for_an_opening_attaches_no_workload(station: Station, case: Case) -> None:
    (snapshot,) = (s for log in case.logs for s in snapshots_in(log) if s.chip.site == "honest")
    chip = station.registry.chip(station.ueids["honest"])
    with ChipClient(chip.address, station.verifier, chip.ueid) as client:
        before = client.identity(b"n" * 16, station.manufacturer.certificate).token.body["size"]
        opened(station.chips["honest"].socket, snapshot.index)
        assert client.identity(b"m" * 16, station.manufacturer.certificate).token.body["size"] == before
