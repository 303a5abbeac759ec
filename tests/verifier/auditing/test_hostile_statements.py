"""Whatever an auditor signs in place of its statements, the referee judges, and the others are judged as before."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audited import Audit, found

from verifier.auditing.claims import Claim, Found, commitments_of, opened_of, opened_to_json
from verifier.auditing.plan import value
from verifier.auditing.statements import KINDS, AuditError, Kind, read, sign
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.manifest import SigningKey, key_id
from weighbridge.core.errors import UsageError

_SCALARS = st.none() | st.booleans() | st.integers(-3, 1 << 60) | st.text(max_size=4) | st.just("ab" * 32)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
_HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
_CLAIMS = st.builds(
    Claim, verdict=st.sampled_from(get_args(Found)), step=st.integers(0, 99), op=st.integers(0, 99), work=_HEX
)


@given(st.dictionaries(st.integers(0, 99), st.tuples(_HEX, _CLAIMS), max_size=4))
def test_claims_are_read_as_they_are_written(opened: dict[int, tuple[str, Claim]]) -> None:
    assert opened_of(json.loads(json.dumps(opened_to_json(opened)))) == opened


@given(_JSON)
def test_other_values_are_no_claims_and_no_commitments(raw: Any) -> None:
    for parse in (opened_of, commitments_of):
        try:
            assert len(parse(raw)) == len(raw)
        except AuditError:
            continue


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["commitments", "openings"]), st.dictionaries(st.sampled_from(["claims", "commitments"]), _JSON))
def test_an_auditor_who_signs_anything_harms_itself_alone(kind: Kind, predicate: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        audit = Audit(Path(directory) / "case").enrol().commit(0, 1)
        if kind == "commitments":
            audit.case.put(kind, predicate, audit.keys[2])
            audit.close().open(0, 1)
            audit.case.put("openings", {"closing": "00" * 32, **predicate}, audit.keys[2])
        else:
            audit.commit(2).close().open(0, 1)
            closing = audit.case.one("closing")
            assert closing is not None
            audit.case.put(kind, {**predicate, "closing": closing.digest.hex()}, audit.keys[2])
        said = audit.judge()
    assert {subject for _, subject in found(said)} <= {"auditor-2"}
    assert [each["answered"] for each in said["auditors"]] == [4, 4, 0]


@pytest.mark.parametrize("commitments", [None, 3, [[1]], {"a": 1}, [["x", "y"]]])
def test_a_closing_of_another_form_closes_nothing(tmp_path: Path, commitments: Any) -> None:
    audit = Audit(tmp_path / "case").enrol().commit()
    audit.case.put("closing", {"commitments": commitments}, audit.coordinator)
    with pytest.raises(UsageError, match="not in the closing"):
        audit.open(0)
    assert {finding for finding, _ in found(audit.judge())} == {"audit.silent"}


@given(st.binary(max_size=60), st.sampled_from(KINDS))
def test_bytes_that_are_no_statement_are_refused(data: bytes, kind: Kind) -> None:
    with pytest.raises(AuditError):
        read(data, kind)


def test_a_statement_says_what_was_signed() -> None:
    key = SigningKey.generate()
    data = sign("closing", [("run", "1f" * 32)], {"plan": "x"}, key)
    statement = read(data, "closing")
    assert (statement.signer, key_id(statement.signer)) == (key.public, key.keyid)
    assert (statement.subjects, statement.predicate) == ((("run", "1f" * 32),), {"plan": "x"})
    for other in (data[:-1], data.replace(b'"payload":"e', b'"payload":"f'), data + b" "):
        with pytest.raises(AuditError):
            read(other, "closing")


def test_values_of_other_beacons_and_rounds_do_not_count(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case")
    plan = audit.case.plan
    with pytest.raises(UsageError, match="no value of round"):
        value(audit.beacon, plan, plan.rounds[0])
    other = LocalBeacon.load(tmp_path / "beacon.key")
    with pytest.raises(AuditError, match="not the one"):
        value(other, plan, plan.rounds[0])
