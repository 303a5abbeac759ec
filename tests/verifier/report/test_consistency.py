"""A report says what follows from it: an honest one passes, and each changed figure is caught."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reported import PLAN, build, collect

from analysis.detection import detection_probability_eq1, detection_probability_hypergeometric
from verifier.report import consistency, miss_bound, signing
from verifier.report.earlier_reports import as_current
from verifier.report.inspectorate_policy import Policy
from verifier.report.regime import Regime
from verifier.rules import ruleset
from verifier.rules.ruleset import Signed
from weighbridge.attest.dsse import DocumentError, canonical
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bound_failure import false_accusation
from weighbridge.core.errors import WeighbridgeError

RULES = ruleset.parse(
    {
        "format": 1, "id": "example", "version": 1, "title": "Example", "declarations": {"kind": ["rl"]},
        "rules": [
            {"id": "small", "title": "No run above the threshold", "threshold": 2000.0,
             "holds": "runs.all(r, r.flops < threshold)"},
            {"id": "tiny", "title": "No run above 500 FLOPs", "holds": "runs.all(r, r.flops < 500.0)"},
            {"id": "score", "title": "No good score", "holds": "runs.all(r, r.scores.maths < 0.5)"},
        ],
    }
)  # fmt: skip
REGIME = Regime(
    rules=Signed(RULES, ("a", "b"), (b"a" * 32, b"b" * 32)), policy=Policy(severities={"rule.undecided": "info"})
)
KEY = SigningKey.generate()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build(collect(tmp_path_factory.mktemp("honest"), honest=True))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build(collect(tmp_path_factory.mktemp("report")), REGIME)


def test_an_honest_report_passes_signed_and_read_again(honest: dict[str, Any], report: dict[str, Any]) -> None:
    for each, rules in ((honest, None), (report, RULES), (report, None)):
        opened = signing.open_report(signing.sign(each, KEY))
        assert opened.report == json.loads(json.dumps(each))
        assert opened.signers == (KEY.public,)
        assert consistency.check(opened.report, rules) == []
    assert signing.sign(honest, KEY) == signing.sign(json.loads(json.dumps(honest)), KEY)


def test_the_verdict_has_its_terms(honest: dict[str, Any]) -> None:
    miss = honest["miss"]
    assert miss["p"] == honest["probability"]["hypergeometric"]
    assert miss["unseen_at_most"] == pytest.approx(1 - miss["p"], abs=1e-12)
    terms = {term["name"]: term for term in miss["terms"]}
    assert terms["not_drawn"]["value"] == pytest.approx(6 / 8)  # two involved of eight, one counts as verified
    assert terms["no_snapshot"]["value"] == pytest.approx(2.718281828459045**-2)
    assert miss["epsilon"] == sum(term["value"] for term in miss["terms"] if term["in"] == "epsilon")
    p = (1 - terms["not_drawn"]["value"]) * (1 - terms["no_snapshot"]["value"])
    assert miss["p"] == pytest.approx(p)
    whole = {"steps": 3, "replayed": 3, "share": 1.0, "segments": 1, "whole": 1, "random": 1, "chance": 1.0}
    assert honest["replayed"] == [{"transcript": honest["transcripts"][0]["id"], **whole}]
    assert honest["replayed_in_all"] == {"transcripts": 1, **whole}


def test_false_accusations_are_counted_over_all_replays(honest: dict[str, Any]) -> None:
    stated = honest["false_accusation"]
    assert stated["roundings"] == {
        "snapshots": {"probable": 74, "calibrated": 30},
        "segments": {"probable": 50, "calibrated": 0},
        "parents": {"probable": 6, "calibrated": 1},
    }
    assert stated["at_most"] == false_accusation(74 + 50 + 6) > 0
    assert honest["chips"][0]["snapshots"][0]["replay"]["false_accusation"] == false_accusation(74)


def test_a_report_from_before_there_was_this_section_is_read(honest: dict[str, Any]) -> None:
    report = copy.deepcopy(honest)
    del report["false_accusation"]
    replay = report["chips"][0]["snapshots"][0]["replay"]
    del replay["false_accusation"], replay["probable_elsewhere"]
    for outcome in report["evidence"]["segments"][0]["verdicts"]:
        del outcome["probable"], outcome["calibrated"]
    assert consistency.check(report) == []
    assert as_current(report)["false_accusation"]["at_most"] == false_accusation(70)


def test_rules_are_judged_over_what_was_established(report: dict[str, Any]) -> None:
    assert [(each["id"], each["outcome"]) for each in report["rules"]["rules"]] == [
        ("small", "holds"),
        ("tiny", "violated"),
        ("score", "undecided"),
    ]
    assert report["rules"]["digest"] == RULES.digest
    assert report["rules"]["signers"] == ["a", "b"]
    found = {(each["id"], each["severity"]) for each in report["findings"]}
    assert found == {
        ("snapshot.unexplained", "violation"),
        ("rule.violated", "violation"),
        ("rule.declaration.missing", "violation"),
        ("rule.undecided", "info"),  # by the policy
        ("rule.unbacked", "info"),
    }
    assert report["policy"]["changed"][0]["was"] == "warning"
    assert report["rules"]["rules"][0]["threshold"]["backed"] is False  # planned with H = 3e6 for runs of 2000
    assert report["facts"]["runs"][0]["flops"] == 1000.0


def test_the_ledger_is_in_it(report: dict[str, Any]) -> None:
    ledger = report["ledger"]
    assert len(ledger["chips"]) == 3
    assert sum(ledger["ms"].values()) == 3 * 2 * 86_400_000
    assert ledger["explained_flops"] == pytest.approx(900.0 + ledger["chips"][0]["rows"][-1]["flops"])
    dead = ledger["chips"][2]
    assert dead["ms"]["unexplained"] == 2 * 86_400_000
    assert dead["unexplained_flops"] == pytest.approx(2 * PLAN.chip_flops_per_day)


def drop_finding(report: dict[str, Any]) -> None:
    report["findings"] = [each for each in report["findings"] if each["id"] != "snapshot.unexplained"]


def drop_finding_and_count(report: dict[str, Any]) -> None:
    """A careful one, who also mends the counts, but forgets that the chip then would have to be verified."""
    report["findings"] = [each for each in report["findings"] if each["id"] != "rule.violated"]
    report["counts"]["violations"] -= 1


def drop_declaration_and_count(report: dict[str, Any]) -> None:
    report["findings"] = [each for each in report["findings"] if each["id"] != "rule.declaration.missing"]
    report["counts"]["violations"] -= 1


def drop_undecided_and_count(report: dict[str, Any]) -> None:
    report["findings"] = [each for each in report["findings"] if each["id"] != "rule.undecided"]
    report["counts"]["notes"] -= 1


def more_verified(report: dict[str, Any]) -> None:
    report["chips"][1]["verified"] = True
    report["counts"]["verified"] += 1


def another_p(report: dict[str, Any]) -> None:
    report["probability"]["hypergeometric"] = 0.99


def another_p_everywhere(report: dict[str, Any]) -> None:
    report["probability"]["hypergeometric"] = report["miss"]["p"] = 0.99
    report["miss"]["unseen_at_most"] = 0.01


def another_threshold(report: dict[str, Any]) -> None:
    report["probability"]["inputs"]["H"] = 6e6


def no_false_accusation(report: dict[str, Any]) -> None:
    report["false_accusation"]["at_most"] = 0.0


def less_false_accusation(report: dict[str, Any]) -> None:
    """Both are far below any tolerance in absolute terms."""
    report["false_accusation"]["at_most"] /= 2


def fewer_roundings(report: dict[str, Any]) -> None:
    """One who mends what follows from them, and forgets the replays."""
    section = report["false_accusation"]
    for each in section["roundings"].values():
        each["probable"] = 0
    section["at_most"] = 0.0


def roundings_of_parents_below_none(report: dict[str, Any]) -> None:
    section = report["false_accusation"]
    section["roundings"]["parents"]["probable"] = -124  # less all others
    section["at_most"] = 0.0


def a_surer_snapshot(report: dict[str, Any]) -> None:
    report["chips"][0]["snapshots"][0]["replay"]["false_accusation"] = 0.0


def no_misses(report: dict[str, Any]) -> None:
    report["miss"]["unseen_at_most"] = 0.0


def less_epsilon(report: dict[str, Any]) -> None:
    report["miss"]["terms"][-1]["value"] = -1.0


def longer_row(report: dict[str, Any]) -> None:
    report["ledger"]["chips"][0]["rows"][0]["end_ms"] += 1000


def explained_instead(report: dict[str, Any]) -> None:
    for row in report["ledger"]["chips"][1]["rows"]:
        row["category"] = "explained"


def smaller_bound(report: dict[str, Any]) -> None:
    report["ledger"]["fleet"]["unexplained_flops_at_most"] = 1.0


def left_out_chip(report: dict[str, Any]) -> None:
    del report["ledger"]["chips"][2]


def clean(report: dict[str, Any]) -> None:
    report["verdict"] = "clean"


def less_silence(report: dict[str, Any]) -> None:
    """A Verifier who understates how many chips fell silent, and mends the counts, the inputs and p."""
    report["counts"]["unverified_after_draw"] = report["probability"]["inputs"]["w"] = 0
    mended_p(report)


def silent_chip_verified(report: dict[str, Any]) -> None:
    """One who calls the silent chip verified, and mends all that follows."""
    report["chips"][2]["verified"] = True
    report["counts"]["verified"] += 1
    report["facts"]["fleet"]["verified"] += 1
    less_silence(report)


def silent_chip_left_out(report: dict[str, Any]) -> None:
    """One who drops the silent chip from the report, and mends what follows, with fewer samples drawn."""
    dead = report["chips"].pop(2)
    report["counts"]["sampled"] -= 1
    report["facts"]["fleet"]["sampled"] -= 1
    report["probability"]["inputs"]["s"] -= 1
    report["ledger"]["chips"] = [each for each in report["ledger"]["chips"] if each["ueid"] != dead["ueid"]]
    less_silence(report)


def silence_called_a_finding(report: dict[str, Any]) -> None:
    report["counts"]["found_against"] += 1
    report["counts"]["unverified_after_draw"] -= 1
    report["probability"]["inputs"]["w"] = 0
    mended_p(report)


def mended_p(report: dict[str, Any]) -> None:
    plan, inputs = report["plan"], report["probability"]["inputs"]
    common = {
        "samples": inputs["s"], "flops_threshold": inputs["H"], "chip_flops_per_day": inputs["a"],
        "chips": inputs["C"], "run_days": inputs["T"], "snapshot_rate_per_day": inputs["f"], "withheld": inputs["w"],
    }  # fmt: skip
    report["probability"]["hypergeometric"] = float(detection_probability_hypergeometric(**common))
    report["probability"]["eq1"] = float(detection_probability_eq1(**common, period_days=plan["period_days"]))
    report["miss"] = miss_bound.bound(report["probability"])


def more_observed(report: dict[str, Any]) -> None:
    report["observed"]["observed_ms"] *= 2


def more_replayed(report: dict[str, Any]) -> None:
    report["replayed"][0]["whole"] = report["replayed_in_all"]["whole"] = 2


def greater_chance(report: dict[str, Any]) -> None:
    """One who says that the transcript has fewer segments, and forgets what follows."""
    report["transcripts"][0]["segments"] = 0


def another_seed_for_segments(report: dict[str, Any]) -> None:
    """One who drew until the segments suited it."""
    report["evidence"]["segments"][0]["selection"]["seed"] = "00" * 32


def fewer_segments_than_planned(report: dict[str, Any]) -> None:
    report["evidence"]["segments"][0]["selection"]["random"] = 0


def rule_holds(report: dict[str, Any]) -> None:
    report["rules"]["rules"][1]["outcome"] = "holds"


def other_facts(report: dict[str, Any]) -> None:
    report["facts"]["runs"][0]["flops"] = 1.0


ATTACKS: list[Callable[[dict[str, Any]], None]] = [
    drop_finding, drop_finding_and_count, drop_declaration_and_count, drop_undecided_and_count, more_verified,
    another_p, another_p_everywhere, another_threshold, no_misses,
    no_false_accusation, less_false_accusation, fewer_roundings, roundings_of_parents_below_none, a_surer_snapshot,
    less_epsilon, longer_row, explained_instead, smaller_bound, left_out_chip, clean, rule_holds, other_facts,
    less_silence, silent_chip_verified, silent_chip_left_out, silence_called_a_finding, more_observed, more_replayed,
    greater_chance, another_seed_for_segments, fewer_segments_than_planned,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack.__name__))
def test_what_somebody_changed_does_not_follow(
    attack: Callable[[dict[str, Any]], None], report: dict[str, Any]
) -> None:
    altered = copy.deepcopy(report)
    attack(altered)
    found = consistency.check(altered, RULES)
    assert {each.id for each in found} == {"report.inconsistent"}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack.__name__))
def test_what_somebody_changed_is_not_what_was_signed(
    attack: Callable[[dict[str, Any]], None], report: dict[str, Any]
) -> None:
    altered = copy.deepcopy(report)
    attack(altered)
    envelope = json.loads(signing.sign(report, KEY))
    envelope["payload"] = base64.b64encode(canonical(altered)).decode()
    with pytest.raises(DocumentError) as caught:
        signing.open_report(canonical(envelope))
    assert caught.value.reason == "document.signature"


def test_a_report_under_other_rules_is_a_finding(honest: dict[str, Any], report: dict[str, Any]) -> None:
    other = ruleset.parse(RULES.to_map() | {"version": 2})
    for each in (honest, report):
        assert [found.id for found in consistency.check(each, other)] == ["report.rules"]


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_hostile_reports_raise_only_our_errors(data: st.DataObject, report: dict[str, Any]) -> None:
    """Law: a report with anything in the place of any part of it is inconsistent, or refused, or still follows."""
    altered = copy.deepcopy(report)
    place: Any = altered
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            place = inner
            continue
        place[key] = data.draw(LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(st.text(max_size=3), LEAVES))
        break
    try:
        found = consistency.check(altered, RULES)
    except WeighbridgeError:
        return
    assert {each.id for each in found} <= {"report.inconsistent", "report.rules"}


def test_what_is_no_report_is_refused() -> None:
    for wrong in ({}, {"schema": "weighbridge-report/4", "chips": 3, "findings": []}):
        with pytest.raises(DocumentError) as caught:
            consistency.check(wrong)
        assert caught.value.reason == "report.malformed"
    with pytest.raises(DocumentError, match="infinite"):
        signing.sign({"p": float("inf")}, KEY)


def test_the_key_is_made_once_and_its_public_half_lies_beside_it(tmp_path: Path) -> None:
    key = signing.load_key(tmp_path / "registry.sqlite.report-key")
    assert signing.load_key(tmp_path / "registry.sqlite.report-key").public == key.public
    assert (tmp_path / "registry.sqlite.report-key.pub").read_text().strip() == key.public.hex()
