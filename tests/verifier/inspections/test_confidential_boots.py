"""Chips in a confidential boot: an inspection that is not sealed verifies nothing about them, and says so by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import drawing, start
from support.station import LIMITS, Station, ids

from firmware_sim.opening import hidden, opened
from prover.keeping.sealed_inputs import gather
from verifier.contact.witness import Witness
from verifier.model.facts import LogFacts
from verifier.model.hidden_tokens import places
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Registry
from verifier.report import consistency
from verifier.report.page import render_html
from verifier.sealed.case import Case
from verifier.sealed.making import Inspectorate, make
from verifier.sealed.population import population_of
from verifier.sealed.session import Examined, examine
from verifier.stages.read_logs import snapshots_in
from verifier.store.cache import Cache
from weighbridge.execution.worker_process import Limits

JOBS = {"secret": "declared", "hidden": "hidden"}


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest run and an undeclared one, each on a chip in a confidential boot."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        for name in JOBS:
            station.chip(name, confidential=True)
        jobs = [station.train(mode, name) for name, mode in JOBS.items()]
        assert [job.wait(timeout=300) for job in jobs] == [0, 0]
        prover = station.prover()
        for name in JOBS:
            station.register(name, prover)
        yield station


@pytest.fixture(scope="module")
def made(station: Station, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """It is made before the ordinary inspection, whose witness would know the logs."""
    return case(station, tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def tokens(station: Station, made: Case) -> Mapping[tuple[bytes, int], bytes]:
    """What opens the tokens of all chips."""
    found: dict[tuple[bytes, int], bytes] = {}
    for log in made.logs:
        assert places(log) == list(range(len(log.entries)))
        own = hidden(socket_of(station, log), places(log))
        found |= {(log.chip.ueid, index): data for index, data in own.items()}
    return found


@pytest.fixture(scope="module")
def sealed(
    station: Station, made: Case, tokens: Mapping[tuple[bytes, int], bytes], tmp_path_factory: pytest.TempPathFactory
) -> Examined:
    """What a sealed session finds."""
    return examined(station, made, tokens, tmp_path_factory.mktemp("sealed"))


def socket_of(station: Station, log: LogFacts) -> Path:
    (name,) = (name for name, ueid in station.ueids.items() if ueid == log.chip.ueid)
    return station.chips[name].socket


def examined(station: Station, made: Case, tokens: Mapping[tuple[bytes, int], bytes], root: Path) -> Examined:
    """Has a session examine the case, with what is said to open the tokens."""
    openings = {}
    for log in made.logs:
        for each in snapshots_in(log):
            assert each.confidential
            openings[log.chip.ueid, each.index] = opened(socket_of(station, log), each.index)
    gather(root / "files", station.runs, openings, tokens)
    registry = Registry(root / "registry")
    try:
        return examine(
            made, root / "files", registry, Cache(root / "cache"), station.verifier, limits=Limits(seconds=300),
            cancelled=lambda: False,
        )  # fmt: skip
    finally:
        registry.close()


def case(station: Station, root: Path) -> Case:
    trusted = station.manufacturer.certificate
    witness = Witness(station.registry, trusted)
    population = population_of(station.registry, witness, station.verifier, trusted)
    agreement = start(drawing(population, len(JOBS))).agreement
    by = Inspectorate(
        registry=station.registry, cache=Cache(root / "case-cache"), credentials=station.verifier,
        manufacturer=trusted, firmware=FirmwarePolicy.of([station.root / "firmware.img"], trusted, limits=LIMITS),
        witness=witness,
    )  # fmt: skip
    return make(agreement, population, by)


@pytest.fixture(scope="module")
def asked(station: Station, sealed: Examined) -> dict[str, Any]:
    """The report of an ordinary inspection of the same chips."""
    return station.inspect(*JOBS, cache=Cache(station.root / "asked"), replay_env={})


def statuses(report: dict[str, Any]) -> dict[str, set[str]]:
    return {chip["site"]: {each["status"] for each in chip["snapshots"]} for chip in report["chips"]}


@pytest.mark.finding("snapshot.confidential")
def test_an_ordinary_inspection_verifies_nothing_and_says_why(station: Station, asked: dict[str, Any]) -> None:
    assert statuses(asked) == {"secret": {"unverified"}, "hidden": {"unverified"}}
    assert ids(asked, "violation") == []
    assert set(ids(asked, "warning")) == {"snapshot.confidential"}
    named = {each["subject"]: each["message"] for each in asked["findings"] if each["id"] == "snapshot.confidential"}
    assert set(named) == {f"chip {station.ueids[name].hex()}" for name in JOBS}
    assert all("sealed inspection" in each for each in named.values())
    assert asked["counts"]["verified"] == 0
    assert asked["probability"]["inputs"]["w"] == 2


def test_an_ordinary_inspection_is_given_no_transcript(station: Station, asked: dict[str, Any]) -> None:
    """It does not even ask for one: explanations name positions, and what is fetched are weights and data."""
    (run,) = (path for path in station.runs.iterdir() if path.is_dir())
    there = [path for path in (station.root / "asked").rglob("*") if path.is_file()]
    checkpoints = {path.read_bytes() for path in (run / "checkpoints").iterdir()}
    assert checkpoints
    assert not any(path.read_bytes() in checkpoints for path in there)
    assert asked["transcripts"] == []


def test_a_sealed_session_finds_what_it_would_find_on_any_chip(sealed: Examined) -> None:
    assert statuses(sealed.report) == {"secret": {"explained"}, "hidden": {"unexplained"}}
    assert ids(sealed.report, "violation") == ["snapshot.unexplained"]
    assert "snapshot.confidential" not in ids(sealed.report)
    assert sealed.missing == {}


def test_a_report_says_nothing_of_what_is_hidden_and_holds_together(asked: dict[str, Any]) -> None:
    rows = [each for chip in asked["chips"] for each in chip["snapshots"]]
    names = ("bytes", "storages", "weights_bytes", "kernels", "flops", "held", "stall_us", "unobserved", "safepoint")
    assert [row[name] for row in rows for name in names] == [None] * len(rows) * len(names)
    assert consistency.check(json.loads(json.dumps(asked))) == []
    assert "off safepoint" not in render_html(asked)
    assert all(each["ms"]["explained"] == 0 for each in asked["ledger"]["chips"])


@pytest.mark.finding("chip.hidden.mismatch")
@pytest.mark.finding("chip.hidden.withheld")
def test_a_session_verifies_nothing_of_a_chip_whose_log_it_cannot_read(
    station: Station, made: Case, tokens: Mapping[tuple[bytes, int], bytes], tmp_path: Path
) -> None:
    """One event is withheld of a chip that is honest otherwise; of another the opening of another entry is given."""
    honest, other = (next(log for log in made.logs if log.chip.site == name) for name in JOBS)
    (draft,) = (index for index in places(honest) if b"manifest-draft" in tokens[honest.chip.ueid, index])
    last = len(other.entries) - 1
    given = {place: data for place, data in tokens.items() if place != (honest.chip.ueid, draft)}
    given[other.chip.ueid, 0] = tokens[other.chip.ueid, last]
    found = examined(station, made, given, tmp_path)
    assert statuses(found.report) == {"secret": {"unverified"}, "hidden": {"unverified"}}
    silent = {"chip.unreachable", "prover.unreachable"}  # as of every snapshot that is not opened
    assert set(ids(found.report, "violation")) - silent == {"chip.hidden.mismatch"}
    (false,) = (each for each in found.report["findings"] if each["id"] == "chip.hidden.mismatch")
    assert false["subject"] == f"chip {other.chip.ueid.hex()} entry 0"
    assert "chip.hidden.withheld" in ids(found.report, "warning")
    assert found.report["counts"]["verified"] == 0
    assert found.report["probability"]["inputs"]["w"] == 2
    snapshots = [(log.chip.ueid.hex(), each.index) for log in made.logs for each in snapshots_in(log)]
    assert found.missing == dict.fromkeys(snapshots, "withheld")
