"""Errors and findings carry the same code, and details may have any name that a peer sends."""

from __future__ import annotations

import json

from weighbridge.core.errors import ChipError, Finding, WeighbridgeError


def test_an_error_and_its_finding_have_one_code() -> None:
    error = ChipError("it is gone", index=3)
    assert str(error) == "chip.unreachable: it is gone"
    finding = error.finding(subject="chip 01")
    assert finding == Finding(
        id="chip.unreachable", message="it is gone", subject="chip 01", evidence={"index": 3}, severity="violation"
    )
    assert json.loads(json.dumps(finding.to_json()))["evidence"] == {"index": 3}
    assert ChipError("broken", code="chip.log.chain").finding().id == "chip.log.chain"


def test_details_may_have_any_name() -> None:
    error = WeighbridgeError("text", **{"self": "a", "message": "b", "not an identifier": "c"})
    assert error.message == "text"
    assert error.finding().evidence == {"self": "a", "message": "b", "not an identifier": "c"}
