"""What a case is, and which one is of an agreement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
from support.drand_values import QUICKNET, VALUES
from support.outcomes import drawing, start
from support.sealed_here import drawn_by, inspectorate
from support.station import Station

from verifier.model.agreed_population import AgreedPopulation
from verifier.model.policies import SEGMENTS_AS_DESIGNED
from verifier.registry.transitions import Contradiction
from verifier.sealed.case import Case, CaseError, check_agreed, seed_of
from verifier.sealed.making import make
from verifier.sealed.shown import lines, shown
from weighbridge.attest import drand_signatures
from weighbridge.attest.beacon import LocalBeacon, parse_info
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.attest.outcome_terms import encode_beacon
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, FormatError, UsageError, WeighbridgeError


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


def test_a_start_has_one_case(station: Station, case: Case, agreement: Agreement, population: AgreedPopulation) -> None:
    with pytest.raises(UsageError, match="exists already"):
        make(agreement, population, inspectorate(station, "again"))
