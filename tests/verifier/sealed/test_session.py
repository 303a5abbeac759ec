"""What a session finds is what an inspection that asks finds; here in this process, which confines nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
from support.drand_values import QUICKNET, VALUES
from support.outcomes import TERMS, drawing, start
from support.populated_station import populate
from support.station import LIMITS, Station

from firmware_sim.opening import opened
from prover.keeping.sealed_inputs import gather
from verifier.contact.clients import ChipClient
from verifier.contact.witness import Witness
from verifier.farm import local_farm
from verifier.model import fact_codec
from verifier.model.agreed_population import AgreedPopulation
from verifier.model.policies import SEGMENTS_AS_DESIGNED
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.replay_task import Outcome, Task
from verifier.registry import Registry
from verifier.registry.transitions import Contradiction
from verifier.report import published_findings
from verifier.sealed import parts, session_worker
from verifier.sealed.case import Case, CaseError, check_agreed, seed_of
from verifier.sealed.inputs import opening, place, token_openings
from verifier.sealed.making import Inspectorate, make
from verifier.sealed.population import population_of
from verifier.sealed.session import Examined, examine
from verifier.sealed.shown import lines, shown
from verifier.stages.read_logs import snapshots_in
from verifier.store.cache import Cache
from weighbridge.attest import drand_signatures
from weighbridge.attest.beacon import LocalBeacon, parse_info
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.attest.outcome_terms import encode_beacon
from weighbridge.attest.sealed_part import PartResults
from weighbridge.attest.signed_outcome import open_record
from weighbridge.attest.worker_openings import pack
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, FormatError, ReplayWorkerError, UsageError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits

JOBS = {"honest": "declared", "hidden": "hidden"}


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest run, an undeclared one, an idle chip, and one that is dead."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        populate(station, JOBS, "idle")
        yield station


@pytest.fixture(scope="module")
def population(station: Station) -> AgreedPopulation:
    """The chips that both parties agree on, before there is a nonce."""
    root = station.manufacturer.certificate
    return population_of(station.registry, Witness(station.registry, root), station.verifier, root)


@pytest.fixture(scope="module")
def agreement(population: AgreedPopulation) -> Agreement:
    """What both parties agreed on."""
    return start(drawing(population, 4)).agreement


def inspectorate(station: Station, cache: str) -> Inspectorate:
    root = station.manufacturer.certificate
    return Inspectorate(
        registry=station.registry, cache=Cache(station.root / cache), credentials=station.verifier,
        manufacturer=root, firmware=FirmwarePolicy.of([station.root / "firmware.img"], root, limits=LIMITS),
        witness=Witness(station.registry, root),
    )  # fmt: skip


@pytest.fixture(scope="module")
def case(station: Station, agreement: Agreement, population: AgreedPopulation) -> Case:
    """All four chips."""
    return make(agreement, population, inspectorate(station, "case-cache"))


def given(station: Station, case: Case, out: Path, *without: tuple[str, int]) -> Path:
    """The Prover's files; without the openings of some snapshots, by chip and place among the chip's snapshots."""
    openings = {}
    names = {ueid: name for name, ueid in station.ueids.items()}
    for log in case.logs:
        for number, each in enumerate(snapshots_in(log)):
            name = names[log.chip.ueid]
            if (name, number) not in without:
                openings[log.chip.ueid, each.index] = opened(station.chips[name].socket, each.index)
    gather(out, station.runs, openings)
    return out


def examined(station: Station, case: Case, files: Path, made: Mapping[str, Outcome] | None = None) -> Examined:
    registry = Registry(files.parent / "registry")
    try:
        return examine(
            case, files, registry, Cache(files.parent / "cache"), station.verifier, limits=Limits(seconds=300),
            cancelled=lambda: False, made=made,
        )  # fmt: skip
    finally:
        registry.close()


@pytest.fixture(scope="module")
def honest(station: Station, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """A session with all that the Prover has."""
    return examined(station, case, given(station, case, tmp_path_factory.mktemp("all") / "files"))


def statuses(report: dict[str, Any]) -> dict[str, list[str]]:
    return {chip["site"]: [each["status"] for each in chip["snapshots"]] for chip in report["chips"]}


def said(report: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((each["id"], each["subject"]) for each in report["findings"])


def test_a_session_finds_what_an_inspection_that_asks_finds(station: Station, honest: Examined) -> None:
    asked = station.inspect(*station.chips, replay_env={})
    assert statuses(honest.report) == statuses(asked)
    assert said(honest.report) == said(asked)
    counts = [{name: each["probability"]["inputs"][name] for name in "Csw"} for each in (honest.report, asked)]
    assert counts[0] == counts[1]
    assert honest.missing == {}


def test_a_case_is_read_as_it_was_written(case: Case) -> None:
    assert Case.from_cbor(case.to_cbor()).to_cbor() == case.to_cbor()


@pytest.mark.finding("sealed.case")
def test_other_bytes_are_no_case(case: Case) -> None:
    data = case.to_cbor()
    raw = cbor2.loads(data)
    wrong: dict[str, Any] = {
        "format": 1, "plan": "{}", "population": b"", "logs": [{}], "witness": "x", "manufacturer": b"",
        "firmware": "[]", "contradictions": [[[1]]] * 4, "created_at": 1, "rules": "",
    }  # fmt: skip
    changed = [cbor({**raw, name: value}) for name, value in wrong.items()]
    for name, value in {"ueid": "00" * 17, "site": 1, "witnessed_size": "x", "owner": None}.items():
        first = {**raw["logs"][0], "chip": {**raw["logs"][0]["chip"], name: value}}
        changed.append(cbor({**raw, "logs": [first, *raw["logs"][1:]]}))
    for each in (b"", data[:-1], data + b"\x00", cbor([]), cbor({**raw, "more": 1}), *changed):
        with pytest.raises(FormatError):
            Case.from_cbor(each)


@pytest.mark.finding("sealed.case")
@pytest.mark.parametrize(
    "asked",
    [
        {"replay_device": "cuda"}, {"replay_env": {"ATEN_CPU_CAPABILITY": "default"}}, {"sharded": "cells"},
        {"segments": replace(SEGMENTS_AS_DESIGNED, records=3)},
    ],
)  # fmt: skip
def test_a_session_says_what_it_does_not_do(case: Case, asked: dict[str, Any]) -> None:
    with pytest.raises(CaseError):
        replace(case, plan=replace(case.plan, **asked))


def drawn_by(case: Case, agreement: Agreement, beacon: bytes = b"") -> Case:
    """The same logs in the order that another agreement, or a beacon, draws them in."""
    seed = seed_of(agreement, beacon)
    logs = {log.chip.ueid: (log, said) for log, said in zip(case.logs, case.contradictions, strict=True)}
    both = [logs[ueid] for ueid in case.agreed.draw(len(logs), seed)]
    return replace(
        case, plan=replace(case.plan, seed=seed), logs=tuple(log for log, _ in both),
        contradictions=tuple(said for _, said in both), beacon=beacon,
    )  # fmt: skip


def test_a_case_is_of_its_agreement(case: Case, agreement: Agreement) -> None:
    check_agreed(case, agreement)
    chosen = replace(case, plan=replace(case.plan, seed=bytes(32)))  # a seed that the Verifier likes
    larger = replace(case, plan=replace(case.plan, flops_threshold=9.0))
    fewer = replace(case, logs=case.logs[1:], contradictions=case.contradictions[1:])
    for each in (replace(case, inspection="sealed-2"), chosen, larger, fewer):
        with pytest.raises(UsageError):
            check_agreed(each, agreement)


def test_a_case_has_the_rules_that_were_agreed_on(case: Case, agreement: Agreement) -> None:
    """Otherwise the worker would find out at the end, and the start would have been for nothing."""
    check_agreed(case, agreement)
    ruled = start(replace(agreement.terms, rules=bytes(32), rule_count=1)).agreement
    of_it = drawn_by(case, ruled)
    with pytest.raises(UsageError, match="another rule set"):
        check_agreed(of_it, ruled)
    for wrong in (replace(case, rules=b"{}"), replace(case, policy=b"[severities")):
        with pytest.raises(WeighbridgeError):
            check_agreed(wrong, agreement)


@pytest.mark.finding("sealed.population")
def test_chips_that_come_or_go_after_the_agreement_change_no_draw(
    station: Station, case: Case, agreement: Agreement, population: AgreedPopulation
) -> None:
    """Who learns the nonce first has a chip registered or retired until it likes the draw: it is refused by name."""
    gone = AgreedPopulation.of(list(population.chips.items())[1:])
    come = AgreedPopulation.of([*population.chips.items(), (b"\x02" * 17, b"")])
    other = AgreedPopulation.of([(ueid, bytes(32)) for ueid in population.chips])
    for each in (gone, come, other):
        with pytest.raises(UsageError) as caught:
            make(agreement, each, inspectorate(station, "other"))
        assert caught.value.reason == "sealed.population"
        with pytest.raises(UsageError) as caught:  # a Verifier with a program of its own
            check_agreed(replace(case, population=each.text), agreement)
        assert caught.value.reason == "sealed.population"
    swapped = replace(case, logs=case.logs[::-1], contradictions=case.contradictions[::-1])
    unnamed = start(replace(agreement.terms, samples=0, population=b"")).agreement
    for wrong, agreed in ((swapped, agreement), (case, unnamed)):
        with pytest.raises(UsageError) as caught:
            check_agreed(wrong, agreed)
        assert caught.value.reason == "sealed.population"


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


@pytest.mark.finding("sealed.beacon")
def test_a_draw_depends_on_the_beacon_that_was_agreed_on(
    case: Case, population: AgreedPopulation, tmp_path: Path
) -> None:
    """A case with the value of another round or beacon, or with none, is refused by name."""
    now = [1_800_000_000.0]
    beacon = LocalBeacon.load(tmp_path / "key", clock=lambda: now[0])
    other = LocalBeacon.load(tmp_path / "other", clock=lambda: now[0])
    now[0] += 1000
    terms = drawing(population, 4, beacon=encode_beacon(beacon.info), round=500)
    agreement = start(terms).agreement
    value = json.dumps(beacon.value(500).to_json()).encode()  # type: ignore[union-attr]
    drawn = drawn_by(case, agreement, value)
    check_agreed(drawn, agreement)
    assert Case.from_cbor(drawn.to_cbor()).to_cbor() == drawn.to_cbor()
    assert shown(drawn)["beacon"]["round"] == 500
    assert seed_of(agreement, value) != seed_of(start(terms).agreement, value)  # other shares
    wrong = [json.dumps(each.to_json()).encode() for each in (beacon.value(501), other.value(500)) if each]
    for bad in (b"", b"{", b"[]", *wrong):
        with pytest.raises(UsageError) as caught:
            check_agreed(replace(drawn, beacon=bad), agreement)
        assert caught.value.reason == "sealed.beacon"
    with pytest.raises(UsageError, match="seed"):  # the beacon's value, and another seed that the Verifier likes
        check_agreed(replace(drawn, plan=replace(drawn.plan, seed=case.plan.seed)), agreement)
    with pytest.raises(UsageError) as caught:  # a value where none was agreed on
        seed_of(start(drawing(population, 4)).agreement, value)
    assert caught.value.reason == "sealed.beacon"


@pytest.mark.finding("sealed.beacon")
def test_a_draw_takes_drands_values_where_they_can_be_verified(
    population: AgreedPopulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, values = QUICKNET, [value for beacon, value in VALUES if beacon is QUICKNET]
    agreed = [drawing(population, 4, beacon=encode_beacon(parse_info(info)), round=each["round"]) for each in values]
    one = start(agreed[0]).agreement
    assert len(seed_of(one, json.dumps(values[0]).encode())) == 32
    forged = {**values[0], "signature": values[1]["signature"], "randomness": values[1]["randomness"]}
    with pytest.raises(UsageError):
        seed_of(one, json.dumps(forged).encode())
    monkeypatch.setattr(drand_signatures, "possible", lambda scheme: False)
    with pytest.raises(UsageError, match="cannot be verified") as caught:  # not as elsewhere, by its hash alone
        seed_of(one, json.dumps(values[0]).encode())
    assert caught.value.reason == "sealed.beacon"


def test_a_party_sees_what_a_case_says_of_its_chips(case: Case) -> None:
    """A Verifier that makes up what was wrong with a log has it in the record; its Prover reads it before it signs."""
    made_up = Contradiction(index=3, reason="registry.state", expected="installed", found="destroyed\x1b[2J")
    forged = ChipError("its log was cut", code="chip.log.released")
    logs = (replace(case.logs[0], history=forged), *case.logs[1:])
    said = shown(replace(case, logs=logs, contradictions=((made_up,), *case.contradictions[1:])))
    first = said["said"][case.logs[0].chip.ueid.hex()]
    assert [each for each in first if "its log was cut" in each]
    assert [each for each in first if "registry.state at entry 3" in each]
    assert any("Verifier says" in text and "destroyed" in text for _, text in lines(said))
    assert said["firmware"] == case.firmware.to_json()
    honest = shown(case)["said"]
    names = {log.chip.ueid.hex(): log.chip.site for log in case.logs}
    assert {names[ueid] for ueid, each in honest.items() if each} == {"dead"}


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


def test_a_start_has_one_case(station: Station, case: Case, agreement: Agreement, population: AgreedPopulation) -> None:
    with pytest.raises(UsageError, match="exists already"):
        make(agreement, population, inspectorate(station, "again"))


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


def part(station: Station, case: Case, at: Path, number: int, *, ends: bool = False) -> PartResults:
    """What a part of two makes, with all of the Prover's files."""
    at.mkdir()
    files, registry = given(station, case, at / "files"), Registry(at / "registry")
    try:
        return parts.make(
            case, files, registry, Cache(at / "cache"), station.verifier, number=number, count=2,
            limits=Limits(seconds=300), cancelled=lambda: ends,
        )  # fmt: skip
    finally:
        registry.close()


@pytest.fixture(scope="module")
def two(station: Station, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, PartResults]:
    """What both parts of the session make."""
    root = tmp_path_factory.mktemp("parts")
    return {number: part(station, case, root / str(number), number) for number in (1, 2)}


@pytest.mark.parametrize("came", [(1, 2), (2,), ()])
def test_a_session_finds_the_same_with_what_parts_made(
    station: Station,
    case: Case,
    honest: Examined,
    two: Mapping[int, PartResults],
    came: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It makes no replay that a part made, and each one that none did: a part that does not come costs time alone."""
    taken = parts.taken({number: two[number] for number in came}, Limits(seconds=300))
    made, begun = taken.replays, list[str]()
    everything = {key.hex() for each in two.values() for key in each.replays}
    assert len(made) == sum(len(two[number].replays) for number in came)
    execute = local_farm.execute

    def noted(task: Task, *others: Any, **more: Any) -> Outcome:
        begun.append(task.key)
        return execute(task, *others, **more)

    monkeypatch.setattr(local_farm, "execute", noted)
    found = examined(station, case, given(station, case, tmp_path / "files"), made)
    assert set(begun) & everything == everything - set(made)
    assert (statuses(found.report), said(found.report)) == (statuses(honest.report), said(honest.report))
    assert found.report["probability"] == honest.report["probability"]
    assert found.report["counts"] == honest.report["counts"]


def test_parts_share_the_replays(two: Mapping[int, PartResults]) -> None:
    one, other = (set(each.replays) for each in two.values())
    assert one
    assert other
    assert not one & other


def test_a_part_whose_time_is_over_gives_what_it_has(station: Station, case: Case, tmp_path: Path) -> None:
    assert part(station, case, tmp_path / "late", 1, ends=True).replays == {}


def found_with(result: ReplayResult | WeighbridgeError) -> PartResults:
    return PartResults(memory=9, seconds=9, replays={bytes(32): cbor(fact_codec.outcome_to(Outcome(result, 1.0)))})


def test_a_part_neither_accuses_nor_excuses() -> None:
    """A Prover whose machine fails where the session's would find something gets nothing by it."""
    match = ReplayResult("match", (0, 3), "ab" * 32)
    enough = Limits(memory=9, seconds=9)
    assert parts.taken({1: found_with(match)}, enough).replays == {"00" * 32: Outcome(match, 1.0)}
    judged = replace(match, unit={"could": 90, "judged": 90, "unjudged_bits": 0.0})
    assert parts.taken({1: found_with(judged)}, enough).replays == {"00" * 32: Outcome(judged, 1.0)}
    failed = replace(match, recognition_failed="out of memory")
    others: list[ReplayResult | WeighbridgeError] = [
        replace(match, verdict="mismatch"), replace(match, verdict="inconclusive"), failed,
        ReplayWorkerError("out of memory"), replace(match, unit={"could": 90, "judged": 89, "unjudged_bits": 0.1}),
    ]  # fmt: skip
    for each in others:
        assert parts.taken({1: found_with(each)}, enough) == parts.Taken()
    for value in (b"", b"\xff", cbor([]), cbor([{}, 1.0]), cbor([{"steps": [0, 1]}, 1.0]), cbor(["a", "b"])):
        results = PartResults(memory=9, seconds=9, replays={bytes(32): value})
        assert parts.taken({1: results}, enough) == parts.Taken()


def test_a_part_with_less_memory_or_time_is_refused() -> None:
    """Otherwise a Prover would choose what a replay has no room to find."""
    results = found_with(ReplayResult("match", (0, 3), "ab" * 32))
    for limits in (Limits(memory=10, seconds=9), Limits(memory=9, seconds=10)):
        taken = parts.taken({1: results, 2: ChipError("refused")}, limits)
        assert taken.replays == {}
        assert taken.to_json() == {"replays": 0, "refused": {"1": "sealed.worker", "2": ChipError.code}}
