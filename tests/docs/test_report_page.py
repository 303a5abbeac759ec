"""A signed document, verified as docs/formats/report.md says, with nothing of ours but the example."""

from __future__ import annotations

import base64
import json

import cbor2
import nacl.signing
from blake3 import blake3

from verifier.report import signing
from verifier.rules import ruleset
from weighbridge.attest.manifest import SigningKey

RULES = {"format": 1, "id": "a", "version": 1, "title": "t", "rules": [{"id": "r", "title": "t", "holds": "true"}]}


def payload_of(data: bytes, kind: str) -> bytes:
    """Steps 1 to 3 of the page."""
    envelope = json.loads(data)
    assert json.dumps(envelope, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == data
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    assert envelope["payloadType"] == kind
    payload = base64.b64decode(envelope["payload"], validate=True)
    message = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    for each in envelope["signatures"]:
        public = base64.b64decode(each["publicKey"])
        assert each["keyid"] == blake3(public).hexdigest()
        nacl.signing.VerifyKey(public).verify(message, base64.b64decode(each["sig"]))
    return payload


def test_a_report_by_the_page() -> None:
    report = {"schema": "weighbridge-report/4", "verdict": "clean", "p": 0.5, "text": "größer"}
    data = signing.sign(report, SigningKey.generate())
    assert json.loads(payload_of(data, "application/vnd.weighbridge.report.v4+json")) == report


def test_a_rule_set_by_the_page() -> None:
    rules = ruleset.parse(RULES)
    data = ruleset.sign(rules, [SigningKey.generate(), SigningKey.generate()])
    payload = payload_of(data, "application/vnd.weighbridge.rules.v1+cbor")
    assert cbor2.loads(payload)["supersedes"] == ""
    assert blake3(b"weighbridge/rule-set/1\x00" + payload).hexdigest() == rules.digest
