"""Statements of audits, read and verified by implementations of DSSE and in-toto that are not ours."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from support.audited import Audit

dsse = pytest.importorskip("securesystemslib.dsse")
signer = pytest.importorskip("securesystemslib.signer")
statements = pytest.importorskip("in_toto_attestation.v1.statement")
statement_pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
json_format = pytest.importorskip("google.protobuf.json_format")


def _files(path: Path) -> list[Path]:
    audit = Audit(path).enrol().commit().close().open()
    audit.case.put("verdict", {k: v for k, v in audit.judge().items() if k != "plan"}, audit.coordinator)
    files = sorted(path.glob("*.json"))
    assert len(files) == 3 + 3 * 3
    return files


def test_every_statement_is_verified_by_securesystemslib_and_an_altered_one_is_not(tmp_path: Path) -> None:
    for file in _files(tmp_path / "case"):
        said = json.loads(file.read_bytes())
        (signature,) = said["signatures"]
        public = base64.b64decode(signature["publicKey"]).hex()
        key = signer.SSlibKey(signature["keyid"], "ed25519", "ed25519", {"public": public})
        envelope = dsse.Envelope.from_dict(json.loads(file.read_bytes()))
        assert set(envelope.verify([key], 1)) == {signature["keyid"]}
        envelope.payload = envelope.payload.replace(b"audit", b"edits", 1)
        with pytest.raises(Exception, match=r"[Vv]erif|threshold|signature"):
            envelope.verify([key], 1)


def test_every_payload_is_a_valid_in_toto_statement_about_the_transcripts(tmp_path: Path) -> None:
    kinds = set()
    for file in _files(tmp_path / "case"):
        payload = base64.b64decode(json.loads(file.read_bytes())["payload"])
        parsed = json_format.Parse(payload, statement_pb2.Statement())
        statement = statements.Statement.copy_from_pb(parsed)
        statement.validate()
        (subject,) = parsed.subject
        assert (subject.name, dict(subject.digest)) == ("trained", {"sha256": "1f" * 32})
        kinds.add(parsed.predicate_type)
    assert kinds == {
        f"https://weighbridge.dev/audit-{kind}/v1"
        for kind in ("plan", "enrolment", "commitments", "closing", "openings", "verdict")
    }
