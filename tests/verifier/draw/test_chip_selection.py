"""Draws of a Verifier with real chips: asked for their heads, waited for, taken up after a kill, given up when late.

The Verifier's clock runs as fast as any, but jumps over what it waits for; one test waits in earnest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.draws import beacon_key
from support.station import LIMITS, Station

from verifier.contact.log_reading import acknowledge, read_log
from verifier.contact.witness import Witness, load_signer
from verifier.draw.chip_selection import Sampler
from verifier.draw.own_log import PREFIX, OwnLog
from verifier.draw.procedure import Drawing
from verifier.draw.recomputation import Trusted, verify_draw
from verifier.draw.record import DrawRecord, parse_record
from verifier.draw.rolling_periods import Draws
from verifier.inspection import Inspection
from verifier.model.facts import Plan
from verifier.model.policies import DrawPolicy
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Chip
from verifier.report.consistency import check
from verifier.report.page import render_html
from verifier.store.cache import Cache
from verifier.store.sealing import Sealing
from weighbridge.attest import tlog
from weighbridge.attest.beacon import Beacon, FileBeacon, LocalBeacon
from weighbridge.core.errors import UsageError

DEAD = b"\x01" + b"d" * 16
PLAN = Plan(
    samples=1, seed=b"", flops_threshold=1.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=1.0,
    draw=DrawPolicy(cutoff_s=2.0, margin_s=2.0),
)  # fmt: skip


class KilledError(Exception):
    """Stands for the end of a process at a line of progress."""


class Office:
    """A Verifier's part that draws, over the registry of a station with two living chips and a dead one."""

    def __init__(self, station: Station, path: Path) -> None:
        self.station, self.path = station, path
        self.said: list[str] = []
        self.ahead, self.sleep = 0.0, self.skip
        signer = load_signer(path / "witness-key")
        self.witness = Witness(station.registry, station.manufacturer.certificate, signer, clock=self.now)
        log_key = load_signer(path / "log-key", PREFIX, tlog.LOG)
        self.log = OwnLog(station.registry.session, log_key, [signer], clock=self.now)
        self.draws, self.cache = Draws(station.registry.session), Cache(path / "cache")
        self.count = 0
        self.beacon: Beacon = LocalBeacon(beacon_key(), period_s=1, genesis_s=int(time.time()) - 100, clock=self.now)

    def now(self) -> float:
        """The Verifier's time, in seconds since 1970."""
        return time.time() + self.ahead

    def skip(self, seconds: float) -> None:
        """Lets time pass."""
        self.ahead += seconds

    @property
    def sampler(self) -> Sampler:
        """As a new process would make it."""
        drawing = Drawing(
            registry=self.station.registry, witness=self.witness, log=self.log, witnesses=(self.witness.key,),  # type: ignore[arg-type]
            beacon=self.beacon, credentials=self.station.verifier,
            manufacturer=self.station.manufacturer.certificate, sleep=self.sleep,
            sealing=Sealing.load(self.path / "draw-key"),
        )  # fmt: skip
        return Sampler(
            drawing=drawing, draws=self.draws, log=self.log, registry=self.station.registry, cache=self.cache
        )

    def start(self) -> str:
        self.count += 1
        name = f"{self.path.name} {self.count}"
        self.station.registry.start_inspection(name, seed=b"", plan=PLAN.to_json(), chips=[])
        return name

    def draw(self, name: str, plan: Plan = PLAN, die_at: str = "") -> Any:
        def say(stage: str, done: int, total: int, message: str) -> None:
            self.said.append(message)
            if die_at and die_at in message:
                raise KilledError(message)

        return self.sampler.draw(name, plan, say)

    def findings(self, name: str, now_s: float = 0.0) -> tuple[DrawRecord, list[str]]:
        """Returns the record as another party gets it, and what that party finds."""
        files = dict(self.sampler.files(name))
        record = parse_record(files["draw.json"])
        assert self.witness.key is not None
        trusted = Trusted(
            now_ms=int((now_s or self.now()) * 1000),
            log=self.log.key,
            witnesses=[self.witness.key],
            whole_log=(files["log/checkpoint"], self.log.entries()),
            registry_log=list(self.station.registry.log.entries(0, self.station.registry.tree_size)),
        )
        return record, [finding.id for finding in verify_draw(record, trusted)]


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        station.chip("one")
        station.chip("two")
        station.registry.register(Chip(ueid=DEAD, address="127.0.0.1:1", site="nowhere"))
        yield station


@pytest.fixture
def office(station: Station, tmp_path: Path) -> Office:
    with station.registry.session.begin() as session:
        for table in ("draws", "verifier_log", "held_logs", "held_entries", "contacts"):
            session.connection().exec_driver_sql(f"DELETE FROM {table}")
    return Office(station, tmp_path)


def test_living_chips_are_drawn_from_and_a_silent_one_is_drawn_with_certainty(office: Office) -> None:
    name, office.sleep = office.start(), time.sleep
    plan, sampled = office.draw(name)
    living = {office.station.ueids["one"], office.station.ueids["two"]}
    assert sampled.certain == [DEAD]
    assert set(sampled.drawn.draw.random) < living
    assert office.station.registry.sampled(name) == [*sampled.drawn.draw.random, DEAD]
    assert office.station.registry.inspection(name).seed == plan.seed == sampled.drawn.draw.opening.seed
    record, found = office.findings(name)
    assert found == []
    assert record == sampled.drawn.record
    heads = record.heads.decode().splitlines()
    assert [line.split("\t")[0] for line in heads[1:]] == sorted(ueid.hex() for ueid in living)
    again, taken_up = office.draw(name)  # an inspection that goes on later has the same draw
    assert (again, taken_up.drawn) == (plan, sampled.drawn)
    assert len(office.log.entries()) == 3
    section = sampled.section(sampled.drawn.draw.random)
    assert json.loads(json.dumps(section)) == section
    assert section["detection"]["p"] == 0.0  # the run may be on the chip that could not be inspected
    assert sampled.section(sampled.drawn.draw.chips)["detection"]["p"] > 0.3
    assert [each["periods"] for each in section["periods"]] == [1]


def test_a_report_of_a_draw_says_what_it_is_worth_and_can_be_checked(office: Office) -> None:
    station, name = office.station, office.start()
    plan, sampled = office.draw(name)
    built = Inspection(
        identifier=name, plan=plan, sampled=sampled, registry=station.registry, cache=office.cache,
        credentials=station.verifier, manufacturer=station.manufacturer.certificate, witness=office.witness,
        firmware=FirmwarePolicy.of(
            [station.root / "firmware.img"], station.manufacturer.certificate, limits=LIMITS
        ),
        progress=lambda *_: None,
    ).run()  # fmt: skip
    report = json.loads(json.dumps(built))
    assert [finding["id"] for finding in report["findings"]] == ["chip.unreachable"]
    assert report["draw"]["certain"] == report["ledger"]["certain"] == [DEAD.hex()]
    assert report["counts"]["sampled"] == 2
    inputs, worth = report["probability"]["inputs"], report["draw"]["detection"]
    assert (inputs["s"], inputs["C"]) == (worth["drawn"], worth["chips"]) == (1, 2)
    assert inputs["w"] == worth["unverified"] == 0, "the chip was silent before the cut-off, and not after the draw"
    counts = report["counts"]
    assert (counts["silent_before_cutoff"], counts["unverified_after_draw"], report["verdict"]) == (1, 0, "findings")
    assert report["probability"]["strata"] == worth["p"] == report["miss"]["p"] == 0.0
    assert any("drawn with certainty" in note for note in report["probability"]["notes"])
    assert any("drawn with certainty" in sentence for sentence in report["assumptions"])
    assert any("local one" in sentence for sentence in report["assumptions"])
    assert render_html(report)
    assert check(report) == []
    for where, value in (("p", 0.9), ("verified", 2), ("chips", 3), ("certain", 0), ("certain_verified", 1)):
        altered = json.loads(json.dumps(report))
        altered["draw"]["detection"][where] = value
        altered["probability"]["strata"] = altered["draw"]["detection"]["p"]
        assert "report.inconsistent" in [finding.id for finding in check(altered)], where
    altered = json.loads(json.dumps(report))
    altered["draw"]["detection"]["groups"] = altered["draw"]["detection"]["groups"][:1]  # the silent chip is forgotten
    assert {finding.subject for finding in check(altered)} == {
        *("draw.detection.certain", "probability.strata", "probability.proven.unproven_flops")
    }
    assert "drawn with certainty" in render_html(report)


def test_a_head_that_was_witnessed_within_the_period_is_not_asked_for(office: Office) -> None:
    station = office.station
    chip = station.registry.chip(station.ueids["one"])
    log = read_log(chip, station.verifier, station.manufacturer.certificate, office.witness)
    acknowledge(log, station.verifier, office.witness)
    name = office.start()
    office.draw(name)
    assert "asking 2 chips for the heads of their logs" in office.said
    assert office.findings(name)[1] == []
    old = replace(PLAN, period_days=1e-9)
    second = office.start()
    office.draw(second, old)
    assert "asking 3 chips for the heads of their logs" in office.said
    assert office.findings(second)[1] == []


def test_a_population_that_is_not_the_registrys_is_caught_by_the_registrys_log(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Verifier leaves a friend's chip out of the population before it commits."""
    everybody = list(office.station.registry.population())
    friend = office.station.ueids["one"]
    others = [member for member in everybody if member.ueid != friend]
    monkeypatch.setattr(office.station.registry, "population", lambda: iter(others))
    name = office.start()
    office.draw(name)
    record, found = office.findings(name)
    assert found == ["draw.population.unregistered"]
    assert friend not in record.drawn
    files = dict(office.sampler.files(name))
    trusted = Trusted(now_ms=0, whole_log=(files["log/checkpoint"], office.log.entries()), registry_log=[b"other"])
    assert [finding.id for finding in verify_draw(record, trusted)] == ["draw.registry.differs"]


def test_a_verifier_killed_before_the_closing_gives_the_draw_up_and_says_so(office: Office) -> None:
    name = office.start()
    with pytest.raises(KilledError):
        office.draw(name, die_at="asking")
    _, sampled = office.draw(name)
    assert any("draw abandoned: the Verifier was interrupted" in message for message in office.said)
    assert office.findings(name)[1] == ["draw.abandoned"]
    assert len(office.log.entries()) == 5
    assert [(finding.id, finding.severity) for finding in sampled.findings()] == [("draw.abandoned", "info")]
    sampled.section(sampled.drawn.draw.chips)
    _, later = office.draw(office.start())
    assert later.findings() == []  # it was said once


def test_a_verifier_killed_while_it_waits_for_the_beacon_goes_on_with_the_same_draw(office: Office) -> None:
    name = office.start()
    with pytest.raises(KilledError):
        office.draw(name, die_at="waiting for round")
    committed = office.log.entries()
    assert len(committed) == 2
    office.draw(name)
    assert office.log.entries()[:2] == committed
    assert office.findings(name)[1] == []


def test_a_draw_whose_time_ran_out_is_given_up(office: Office) -> None:
    """The process slept between closing and logging: the beacon's value was out before the heads were logged."""
    name = office.start()
    append, slept = office.log.append, []

    def late(data: bytes) -> int:
        if b"draw-closing" in data and not slept:
            slept.append(office.skip(6))
        return append(data)

    office.log.append = late  # type: ignore[method-assign]
    office.draw(name)
    assert "draw abandoned: the heads were logged after the beacon's value was out" in office.said
    assert office.findings(name)[1] == ["draw.abandoned"]


def test_an_unopened_draw_is_in_the_findings_of_later_inspections(office: Office) -> None:
    first = office.start()
    with pytest.raises(KilledError):
        office.draw(first, die_at="waiting for round")
    second = office.start()
    _, sampled = office.draw(second)
    assert sampled.findings() == []
    assert office.findings(second, office.now() + 25 * 3600)[1] == ["draw.commitment.unopened"]


def test_values_of_a_foreign_beacon_come_by_file(office: Office) -> None:
    directory = office.path / "beacon"
    source = office.beacon
    assert isinstance(source, LocalBeacon)
    source.publish(directory, 1)
    office.beacon = FileBeacon(directory)
    name = office.start()
    with pytest.raises(KilledError):
        office.draw(name, die_at="of the beacon to be provided")
    number = int(office.said[-1].split("round ")[1].split(" ")[0])
    source.publish(directory, number)
    office.draw(name)
    assert office.findings(name)[1] == []
    with pytest.raises(UsageError, match="has no beacon's info"):
        FileBeacon(office.path / "missing")


def test_plans_that_cannot_be_drawn_are_refused_before_anything_is_logged(office: Office) -> None:
    for wrong in (
        replace(PLAN, samples=4),
        replace(PLAN, draw=DrawPolicy(allocation="optimal"), flops_threshold=1e30),
    ):
        with pytest.raises(UsageError):
            office.sampler.check(wrong)
    office.sampler.check(PLAN)
    assert office.log.entries() == []
    with pytest.raises(UsageError, match="no record"):
        list(office.sampler.files(office.start()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": ("colour",)}, {"by": ("type", "owner")}, {"allocation": "random"}, {"speeds": {"fast": 1.0}},
        {"by": ("type",), "speeds": {"fast": 0.0}}, {"cutoff_s": -1.0}, {"margin_s": float("nan")},
        {"by": ("type",), "speeds": {f"type {n}": 1.0 for n in range(201)}},
    ],
)  # fmt: skip
def test_policies_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DrawPolicy(**wrong)


def test_a_policy_comes_back_as_it_was() -> None:
    policy = DrawPolicy(by=("site", "type"), allocation="optimal", speeds={"fast": 2.0}, cutoff_s=3.0, margin_s=4.0)
    assert DrawPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy
