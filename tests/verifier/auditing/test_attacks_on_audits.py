"""Auditors that copy, are lazy, late or silent, Provers that steer or pay: each is found, and honest ones are not."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.audited import Audit, found, key

from verifier.auditing import parties
from verifier.auditing.case import Case
from verifier.auditing.claims import Claim, Opened, blinding, commitment, opened_to_json
from verifier.auditing.plan import Plan, Planted, assignment, referee_share, segment_key
from verifier.auditing.statements import AuditError, Kind, sign
from verifier.auditing.telling import lines
from verifier.auditing.verdict import judge_again
from weighbridge.attest.manifest import key_id
from weighbridge.core.errors import UsageError


def _file(audit: Audit, kind: Kind, number: int) -> Path:
    return audit.path / f"{kind}-{key_id(audit.keys[number].public)[:16]}.json"


def _put(audit: Audit, kind: Kind, number: int, predicate: dict[str, Any]) -> None:
    audit.case.put(kind, predicate, audit.keys[number])


def _about(audit: Audit, said: dict[str, Any], name: str) -> set[str]:
    return {finding for finding, subject in found(said) if subject == name}


def test_honest_auditors_agree_and_nothing_is_found(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol().commit().close().open()
    said = audit.judge()
    assert said["findings"] == []
    assert said["work"]["steps"] == 12
    assert said["work"]["matching_by"] == [0, 0, 12, 0]
    assert said["work"]["least_by_honest"][1:] == [12, 12], "two honest of three hold all, as each has two auditors"
    assert [each["answered"] for each in said["auditors"]] == [4, 4, 4]
    assert sum(each["confirmed"] for each in said["auditors"]) == 2
    told = list(lines(said))
    assert told[0] == "work done: 100.0% of 12 steps were found to match by at least 2 of 3 auditors"
    assert not any("probab" in line for line in told)
    audit.case.put("verdict", {name: value for name, value in said.items() if name != "plan"}, key(99))
    statement, agrees = judge_again(audit.case, audit.beacon)
    assert agrees
    assert statement.signer == key(99).public


# -- auditors that copy ------------------------------------------------------------------------------------------------


@pytest.mark.finding("audit.opening")
def test_a_copied_commitment_cannot_be_opened_even_with_what_its_owner_shows(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", copies=3).enrol().commit(0, 1)
    theirs = audit.case.by("commitments", 0)
    assert theirs is not None
    _put(audit, "commitments", 2, {"commitments": theirs.predicate["commitments"]})
    audit.close().open(0, 1)
    closing = audit.case.one("closing")
    assert closing is not None
    shown = {"closing": closing.digest.hex(), "claims": opened_to_json(audit.opened[0])}
    _put(audit, "openings", 2, shown)
    said = audit.judge()
    assert found(said) == {("audit.opening", "auditor-2")}
    assert said["auditors"][2]["answered"] == 0


def test_a_digest_that_is_copied_once_it_was_opened_is_none_that_was_committed_to(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", copies=3).enrol()
    audit.commit(0, 1).commit(2, replay=audit.lazy).close().open(0, 1)
    audit.opened[2] = {at: (audit.opened[2][at][0], claim) for at, (_, claim) in audit.opened[0].items()}
    audit.open(2)
    assert found(audit.judge()) == {("audit.opening", "auditor-2")}


@pytest.mark.finding("audit.statement")
def test_another_auditors_statement_under_ones_own_name_does_not_count(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", copies=3).enrol().commit(0, 1)
    shutil.copy(_file(audit, "commitments", 0), _file(audit, "commitments", 2))
    said = audit.close().open(0, 1).judge()
    assert _about(audit, said, "auditor-2") == {"audit.statement", "audit.silent"}
    assert _about(audit, said, "auditor-0") == set()


# -- auditors that open otherwise, late, or not at all -----------------------------------------------------------------


@pytest.mark.parametrize("change", ["claim", "blinding", "verdict"])
def test_what_was_not_committed_to_does_not_count(tmp_path: Path, change: str) -> None:
    audit = Audit(tmp_path / "case").enrol().commit().close()
    segment, (r, claim) = next(iter(audit.opened[1].items()))
    other = {
        "claim": (r, replace(claim, work="00" * 32)),
        "blinding": (blinding(), claim),
        "verdict": (r, replace(claim, verdict="mismatch")),
    }
    audit.opened[1] = {**audit.opened[1], segment: other[change]}
    said = audit.open().judge()
    assert found(said) == {("audit.opening", "auditor-1")}
    assert said["auditors"][1]["answered"] == len(audit.opened[1]) - 1


@pytest.mark.finding("audit.silent")
def test_a_commitment_after_the_closing_does_not_count_though_it_is_right(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol().commit(0, 1).close().open(0, 1)
    with pytest.raises(UsageError, match="closed"):
        audit.commit(2)
    closing = audit.case.one("closing")
    assert closing is not None
    digest = audit.case.digest
    drawn = audit.beacon.value(audit.case.plan.rounds[1])
    assert drawn is not None
    mine: Opened = {}
    for at in audit.mine(2):
        mine[at] = blinding(), audit.execute(at, segment_key(audit.case.plan, digest, drawn.randomness, at))
    hidden = [[at, commitment(digest, at, audit.keys[2].public, r, claim)] for at, (r, claim) in mine.items()]
    _put(audit, "commitments", 2, {"commitments": hidden})
    _put(audit, "openings", 2, {"closing": closing.digest.hex(), "claims": opened_to_json(mine)})
    said = audit.judge()
    assert found(said) == {("audit.silent", "auditor-2")}
    assert said["auditors"][2]["answered"] == 0


@pytest.mark.finding("audit.closing")
def test_a_second_closing_with_a_late_commitment_is_not_the_one_that_others_opened_to(tmp_path: Path) -> None:
    """A coordinator who lets an auditor in late has to forge what the others signed."""
    audit = Audit(tmp_path / "case").enrol().commit(0, 1).close().open(0, 1)
    (audit.path / "closing.json").unlink()
    audit.commit(2).close().open(2)
    said = audit.judge()
    assert found(said) == {("audit.closing", "auditor-0"), ("audit.closing", "auditor-1")}
    with pytest.raises(UsageError, match="by the coordinator"):
        parties.close(audit.case, audit.keys[2], audit.beacon.info, audit.now_ms)


@pytest.mark.parametrize("silence", ["enrolment", "commitments", "openings", "segments"])
def test_silence_is_told_and_not_taken_for_agreement(tmp_path: Path, silence: str) -> None:
    audit = Audit(tmp_path / "case", copies=1, referee=0)
    audit.enrol(*(range(2) if silence == "enrolment" else range(3)))
    if silence == "segments":
        audit.commit(0, 1).commit(2, replay=lambda segment, _: None)  # type: ignore[arg-type,return-value]
    else:
        audit.commit(*(range(2) if silence == "commitments" else range(3)))
    audit.close().open(*(range(2) if silence in ("commitments", "openings") else range(3)))
    said = audit.judge()
    assert found(said) == {("audit.silent", "auditor-2")}
    assert said["work"]["matching_by"][0] == 4, "two segments of two steps have no claim that counts"


def test_the_segments_of_a_silent_auditor_are_in_the_referees_share(tmp_path: Path) -> None:
    """Whom a Prover pays for silence, it pays for nothing more than one claim less."""
    audit = Audit(tmp_path / "case", copies=1, referee=6, false=frozenset({3})).enrol()
    paid = next(number for number in range(3) if 3 in audit.mine(number))
    others = [number for number in range(3) if number != paid]
    said = audit.commit(*others).close().open(*others).judge()
    assert ("audit.segment", audit.case.plan.sources[0].digest) in found(said)


@pytest.mark.finding("audit.order")
def test_a_party_that_comes_late_is_turned_away(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol(0, 1)
    with pytest.raises(AuditError, match="too late") as enrolled:
        parties.enrol(audit.case, audit.keys[2], audit.beacon.info, audit.now_ms)
    audit.commit(0, 1).close()
    audit.pass_round(2)
    with pytest.raises(AuditError, match="too late") as opened:
        audit.open(0)
    (audit.path / "closing.json").unlink()
    with pytest.raises(AuditError, match="too late") as closed:
        audit.close()
    assert {each.value.reason for each in (enrolled, opened, closed)} == {"audit.order"}


# -- auditors that are lazy --------------------------------------------------------------------------------------------


@pytest.mark.finding("audit.false")
def test_an_auditor_who_answers_from_state_digests_is_contradicted_by_an_honest_one(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", referee=0).enrol()
    said = audit.commit(0, 1).commit(2, replay=audit.lazy).close().open().judge()
    assert found(said) == {("audit.false", "auditor-2")}
    assert said["auditors"][2]["false"] == 4
    assert said["auditors"][2]["confirmed"] == 0
    assert said["work"]["least_by_honest"][0] == 0, "the lazy one may be the one who is called honest"


def test_lazy_auditors_who_agree_are_found_by_the_referees_share_alone(tmp_path: Path) -> None:
    alone = Audit(tmp_path / "alone", referee=0).enrol()
    assert alone.commit(replay=alone.lazy).close().open().judge()["findings"] == [], "all dishonest, and no referee"
    audit = Audit(tmp_path / "case", referee=1).enrol()
    said = audit.commit(replay=audit.lazy).close().open().judge()
    assert len(found(said)) == 2
    assert {finding for finding, _ in found(said)} == {"audit.false"}
    assert said["work"]["false_at_most"] == 6


def test_another_segments_digest_is_not_this_ones(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", referee=0).enrol()

    def shifted(segment: int, keyed: bytes) -> Claim:
        other = audit.execute((segment + 1) % 6, keyed)
        return replace(other, step=audit.execute(segment, keyed).step)

    keys = {
        segment_key(audit.case.plan, audit.case.digest, bytes(32), segment) for segment in range(6)
    }  # a digest under one key says nothing under another
    assert len(keys) == 6
    said = audit.commit(0, 1).commit(2, replay=shifted).close().open().judge()
    assert found(said) == {("audit.false", "auditor-2")}


@pytest.mark.finding("audit.planted")
def test_planted_segments_measure_diligence(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", copies=3, planted=True).enrol()
    said = audit.commit(0, 1).commit(2, replay=audit.lazy).close().open().judge()
    assert ("audit.planted", "auditor-2") in found(said)
    assert not any(subject != "auditor-2" for _, subject in found(said)), "the planted one is no fault of the Prover"
    assert [(each["planted"], each["missed"]) for each in said["auditors"]] == [(1, 0), (1, 0), (1, 1)]
    assert [each["missed_at_most"] for each in said["auditors"]] == [0.95, 0.95, 1.0]
    assert said["work"]["steps"] == 12, "planted steps are no work"
    other = Planted(salt=audit.hidden.salt, steps={})
    audit.hidden = other
    with pytest.raises(AuditError, match="not what the plan says"):
        audit.judge()


# -- a Prover who pays -------------------------------------------------------------------------------------------------


@pytest.mark.finding("audit.segment")
def test_a_false_segment_is_found_if_one_of_its_auditors_is_honest(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", referee=0, false=frozenset({3})).enrol()
    paid, honest = (number for number in range(3) if 3 in audit.mine(number))

    def bought(segment: int, keyed: bytes) -> Claim:
        return audit.lazy(segment, keyed) if segment == 3 else audit.execute(segment, keyed)

    rest = [number for number in range(3) if number != paid]
    said = audit.commit(*rest).commit(paid, replay=bought).close().open().judge()
    assert found(said) == {("audit.segment", "1e" * 32), ("audit.false", f"auditor-{paid}")}
    assert said["auditors"][honest]["false"] == 0
    assert said["work"]["matching_by"][0] == 2


def test_a_prover_who_pays_all_auditors_of_a_segment_is_left_to_the_share(tmp_path: Path) -> None:
    shares = []
    for referee in (0, 6):
        audit = Audit(tmp_path / f"case-{referee}", referee=referee, false=frozenset({3})).enrol()

        def bought(segment: int, keyed: bytes, audit: Audit = audit) -> Claim:
            return audit.lazy(segment, keyed) if segment == 3 else audit.execute(segment, keyed)

        shares.append(found(audit.commit(replay=bought).close().open().judge()))
    assert shares[0] == set()
    assert {finding for finding, _ in shares[1]} == {"audit.segment", "audit.false"}


@pytest.mark.finding("audit.differs")
def test_a_referee_who_cannot_replay_accuses_none(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", referee=0).enrol()
    audit.commit(0, 1).commit(2, replay=audit.lazy).close().open()
    said = audit.judge(replay=lambda segment, _: None)
    assert found(said) == {("audit.differs", "1e" * 32)}
    assert all(each["false"] == 0 for each in said["auditors"])


def test_an_auditor_who_could_not_say_is_not_refuted(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol()

    def unsure(segment: int, keyed: bytes) -> Claim:
        return replace(audit.execute(segment, keyed), verdict="inconclusive")

    said = audit.commit(0, 1).commit(2, replay=unsure).close().open().judge()
    assert said["findings"] == []
    assert said["auditors"][2]["confirmed"] == 0


# -- forged and replayed statements ------------------------------------------------------------------------------------


def test_an_altered_statement_and_one_of_another_audit_do_not_count(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol().commit()
    before = Audit(tmp_path / "before", time=audit.time - 500).enrol().commit()
    assert before.case.digest != audit.case.digest
    altered = json.loads(_file(audit, "commitments", 1).read_bytes())
    altered["signatures"][0]["sig"] = altered["signatures"][0]["sig"][::-1]
    _file(audit, "commitments", 1).write_text(json.dumps(altered))
    shutil.copy(_file(before, "commitments", 2), _file(audit, "commitments", 2))
    said = audit.close().open(0).judge()
    assert _about(audit, said, "auditor-1") == _about(audit, said, "auditor-2") == {"audit.statement", "audit.silent"}
    assert _about(audit, said, "auditor-0") == set()


def test_a_statement_of_one_kind_is_none_of_another(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol()
    shutil.copy(_file(audit, "enrolment", 0), _file(audit, "commitments", 0))
    with pytest.raises(AuditError, match="another statement"):
        audit.case.by("commitments", 0)
    (audit.path / "closing.json").write_bytes(
        sign("closing", audit.case.plan.subjects(), {"plan": audit.case.digest.hex(), "commitments": []}, key(7))
    )
    with pytest.raises(AuditError, match="not signed by the coordinator"):
        audit.case.one("closing")


def test_a_verdict_that_does_not_follow_is_told(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case", referee=0).enrol()
    said = audit.commit(0, 1).commit(2, replay=audit.lazy).close().open().judge()
    kind = {"findings": [], "replayed": []}
    for changed in ({"findings": []}, kind, {"auditors": said["auditors"][:2]}, {"planted": None}):
        signed = {name: each for name, each in said.items() if name != "plan"} | changed
        audit.case.put("verdict", signed, key(99))
        try:
            assert not judge_again(audit.case, audit.beacon)[1]
        except AuditError:
            assert changed == {"planted": None}
        (audit.path / "verdict.json").unlink()


# -- the draw ----------------------------------------------------------------------------------------------------------


def test_no_party_can_know_the_draw_and_each_auditor_is_as_likely(tmp_path: Path) -> None:
    """The draw follows from the beacon's value; whatever a Prover or an auditor grinds before gives another plan."""
    audit = Audit(tmp_path / "case")
    plan = audit.case.plan
    values = [bytes([number, 1]) * 16 for number in range(200)]
    pairs = Counter(assignment(plan, audit.case.digest, each)[0] for each in values)
    assert set(pairs) == {(0, 1), (0, 2), (1, 2)}
    assert all(40 <= count <= 95 for count in pairs.values())
    for each in values[:20]:
        drawn = assignment(plan, audit.case.digest, each)
        assert Counter(number for who in drawn.values() for number in who) == {0: 4, 1: 4, 2: 4}
    source = replace(plan.sources[0], sha256="3f" * 32, digest="3e" * 32)  # the same training, signed again
    again = Case.create(tmp_path / "again", audit.plan(sources=(source,)), audit.coordinator)
    assert any(assignment(plan, audit.case.digest, v) != assignment(again.plan, again.digest, v) for v in values[:5])
    shares = Counter(referee_share(plan, each, bytes(32), range(6))[0] for each in values)
    assert set(shares) == set(range(6))


def test_a_plan_made_for_a_known_draw_finds_no_auditor_to_enrol(tmp_path: Path) -> None:
    """A Prover, or an auditor with many keys, that waits for the value and picks its plan among many."""
    audit = Audit(tmp_path / "case")
    known = audit.beacon.info.round_after(audit.now_ms) - 1
    late = Case.create(tmp_path / "late", audit.plan(rounds=(known, known + 1, known + 99)), audit.coordinator)
    with pytest.raises(AuditError, match="too late"):
        parties.enrol(late, audit.keys[0], audit.beacon.info, audit.now_ms)
    with pytest.raises(UsageError, match="none of the plan's auditors"):
        parties.enrol(audit.case, key(55), audit.beacon.info, audit.now_ms)


@pytest.mark.finding("audit.plan")
def test_a_plan_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case")
    said = audit.case.plan.to_json()
    (name, public), *others = said["auditors"]
    wrong: list[dict[str, Any]] = [
        {"auditors": [(name, public), (name, "00" * 32)]}, {"auditors": [(name, public), ("x", public)]},
        {"auditors": []}, {"auditors": [("", public), *others]}, {"auditors": [(name, "key"), *others]},
        {"copies": 4}, {"copies": 0}, {"drawn": 7}, {"drawn": 0}, {"referee": 7}, {"referee": -1}, {"copies": True},
        {"rounds": (5, 5, 6)}, {"rounds": (1, 2)}, {"beacon": 3}, {"sources": []}, {"sources": [{"name": "x"}]},
        {"sources": said["sources"] * 2}, {"sources": [{**said["sources"][0], "edges": (0, 2, 2)}]},
        {"sources": [{**said["sources"][0], "edges": ("0",)}]}, {"more": 1},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(AuditError) as refused:
            Plan.from_json(said | each)
        assert refused.value.reason == "audit.plan", each
    assert Plan.from_json(json.loads(json.dumps(said))) == audit.case.plan


def test_another_place_of_a_true_mismatch_is_no_lie_and_a_made_up_mismatch_is(tmp_path: Path) -> None:
    """Devices of two kinds may part from a false transcript at two operations."""
    audit = Audit(tmp_path / "case", copies=3, referee=0, false=frozenset({3})).enrol()

    def elsewhere(segment: int, keyed: bytes) -> Claim:
        claim = audit.execute(segment, keyed)
        return replace(claim, op=9, work="77" * 32) if segment == 3 else claim

    def slander(segment: int, keyed: bytes) -> Claim:
        return replace(audit.execute(segment, keyed), verdict="mismatch")

    said = audit.commit(0).commit(1, replay=elsewhere).commit(2, replay=slander).close().open().judge()
    assert found(said) == {("audit.segment", "1e" * 32), ("audit.false", "auditor-2")}
    assert [each["confirmed"] for each in said["auditors"]] == [6, 5, 1]
    assert said["auditors"][2]["false"] == 5


def test_a_pipe_in_a_shared_directory_does_not_keep_the_referee_waiting(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case").enrol().commit(0, 1)
    os.mkfifo(_file(audit, "commitments", 2))
    said = audit.close().open(0, 1).judge()
    assert _about(audit, said, "auditor-2") == {"audit.statement", "audit.silent"}
