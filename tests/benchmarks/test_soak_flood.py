"""A short flood, with all that the long one has: an operator's calls and an honest chip's are answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak_flood import failures, soak
from benchmarks.tables_inspection import flood


@pytest.mark.soak
def test_two_hostile_certificates_shut_nobody_out(tmp_path: Path) -> None:
    measured = soak(tmp_path, 5)
    assert failures(measured) == []
    tried = {**measured["tried"]["chip"], **measured["tried"]["prover"]}
    assert sum(count for name, count in tried.items() if name.startswith("nonce of victim")) > 0
    assert sum(count for name, count in tried.items() if name.startswith("watch")) > 0
    assert "nonce of victim OK" not in tried
    assert measured["resident_mib"]["flood"] < measured["resident_mib"]["before"] + 512
    about = {"date": "2026-11-23", "machine": "x", "capability": "y", "threads": 1, "torch": "2"}
    assert "operator: list chips" in flood({**about, "minutes": 5 / 60, **measured})


def test_what_went_wrong_is_said() -> None:
    good = {"calls": 9, "failed": {}, "max_ms": 20.0}
    calls = {"operator: health": good, "chip: ask": {**good, "max_ms": 3000.0}}
    assert failures({"calls": {"flood": calls}}) == []
    late, failed = {**good, "max_ms": 1000.0}, {**good, "failed": {"rpc.busy": 1}}
    assert len(failures({"calls": {"flood": {"operator: health": late, "chip: ask": failed}}})) == 2
