"""The demo's sealed inspection: what leaves it has to say what the open inspection of the same chips found."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from weighbridge.cli.demo.sealed import judge

REPORT: dict[str, Any] = {
    "counts": {"registered": 4, "sampled": 4},
    "chips": [
        {"snapshots": [{"status": "explained"}, {"status": "explained"}]},
        {"snapshots": [{"status": "unexplained"}]},
        {"snapshots": []},
    ],
    "findings": [
        {"id": "snapshot.unexplained", "severity": "violation"},
        {"id": "snapshot.tail", "severity": "info"},
    ],
}
SAID: dict[str, Any] = {
    "verified": True,
    "record": {
        "status": "complete",
        "C": 4,
        "s": 4,
        "snapshots": {"explained": 2, "unexplained": 1, "late": 0},
        "violations": ["snapshot.unexplained"],
    },
}


def test_a_record_that_says_what_the_report_says_is_as_promised() -> None:
    left = judge(793, SAID, REPORT)
    assert left.as_said
    assert (left.snapshots, left.violations) == ({"explained": 2, "unexplained": 1}, ("snapshot.unexplained",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "late"),
        ("C", 3),
        ("s", 3),
        ("snapshots", {"explained": 3}),
        ("snapshots", {"explained": 2, "unexplained": 1, "late": 1}),
        ("violations", []),
        ("violations", ["replay.mismatch", "snapshot.unexplained"]),
    ],
)
def test_the_demo_says_so_if_anything_else_leaves(name: str, value: Any) -> None:
    said = deepcopy(SAID)
    said["record"][name] = value
    assert not judge(793, said, REPORT).as_said


def test_a_record_that_does_not_verify_is_not_as_promised() -> None:
    assert not judge(793, {**SAID, "verified": False}, REPORT).as_said
