"""Connections of one certificate: some hundreds of them cost others nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.flood_connections import measure


@pytest.mark.soak
def test_some_hundreds_of_connections_shut_no_caller_out(tmp_path: Path) -> None:
    before, after = measure(tmp_path, (0, 300))
    assert after["connections"] == 300
    assert all(row[call].endswith(" ms") for row in (before, after) for call in ("standing", "fresh"))
    assert after["resident_mib"] < before["resident_mib"] + 100
