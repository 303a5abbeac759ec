"""The demo's sealed inspection: what leaves it has to say what the open inspection found of the same chips."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from weighbridge.cli.demo.sealed import judge

REPORT: dict[str, Any] = {
    "counts": {"registered": 4, "sampled": 4},
    "chips": [
        {"ueid": "01", "snapshots": [{"status": "explained", "transcript": "aa"}] * 2},
        {"ueid": "02", "snapshots": [{"status": "unexplained", "transcript": None}]},
        {"ueid": "03", "snapshots": []},
        {"ueid": "04", "snapshots": [{"status": "mismatch", "transcript": "bb"}]},
    ],
    "findings": [
        {"id": "snapshot.unexplained", "severity": "violation", "subject": "chip 02"},
        {"id": "replay.mismatch", "severity": "violation", "subject": "transcript bb"},
        {"id": "snapshot.tail", "severity": "info", "subject": "chip 02"},
    ],
}
DRAWN = ["01", "02", "03"]
SAID: dict[str, Any] = {
    "verified": True,
    "record": {
        "status": "complete",
        "C": 4,
        "s": 3,
        "snapshots": {"explained": 2, "unexplained": 1, "late": 0},
        "violations": ["snapshot.unexplained"],
    },
}


def test_a_record_that_says_what_the_report_says_is_as_promised() -> None:
    left = judge(793, SAID, DRAWN, REPORT)
    assert left.as_said
    assert (left.snapshots, left.violations) == ({"explained": 2, "unexplained": 1}, ("snapshot.unexplained",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "late"),
        ("C", 3),
        ("s", 4),
        ("snapshots", {"explained": 3}),
        ("snapshots", {"explained": 2, "unexplained": 1, "late": 1}),
        ("violations", []),
        ("violations", ["replay.mismatch", "snapshot.unexplained"]),
    ],
)
def test_the_demo_says_so_if_anything_else_leaves(name: str, value: Any) -> None:
    said = deepcopy(SAID)
    said["record"][name] = value
    assert not judge(793, said, DRAWN, REPORT).as_said


def test_a_record_that_does_not_verify_is_not_as_promised() -> None:
    assert not judge(793, {**SAID, "verified": False}, DRAWN, REPORT).as_said
