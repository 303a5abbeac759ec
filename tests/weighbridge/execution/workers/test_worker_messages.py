"""What a worker says on its way is read as hostile: counts that nobody counted to end its replay, not its parent."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from weighbridge.core.errors import Finding, ReplayWorkerError
from weighbridge.execution.replay_answer import MOST_FINDINGS, parse, told
from weighbridge.execution.worker_process import read_answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(*messages: Any) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(each).encode() + b"\n" for each in messages))


@pytest.mark.parametrize("kind", ["compiling", "progress"])
@pytest.mark.parametrize(
    "counts",
    [
        [10**18, 10**18],
        [10**18, 1],  # a bar that is a whole number of times as long as it should be
        [-1, 2],
        [0, -1],
        [2, 1],
        [0.5, 1],
        [True, 1],
        ["1", 2],
        ["\x1b[2J", 1],
        [1],
        [1, 2, 3],
        {"1": 2},
        7,
        None,
        [10**400, 10**400],
    ],
)  # fmt: skip
def test_odd_counts_are_refused(kind: str, counts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, told = Terminal(), []
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ReplayWorkerError, match="something that is not a result"):
        read_answer(said({kind: counts}, {"result": {}}), lambda done, total: told.append((done, total)))
    assert (terminal.getvalue(), told) == ("", [])


def test_a_flood_of_announcements_is_one_line_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    flood = [{"compiling": [each, each]} for each in range(1, 10_000)]
    assert read_answer(said(*flood, {"result": {}}), None) == {"result": {}}
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_honest_counts_are_passed_on() -> None:
    told: list[tuple[int, int]] = []
    read_answer(said({"progress": [0, 2]}, {"progress": [2, 2]}, {"result": {}}), lambda *counts: told.append(counts))
    assert told == [(0, 2), (2, 2)]


def test_of_too_many_findings_the_gravest_are_told() -> None:
    """A transcript of 100,000 programs has as many that ran in few steps; what accuses is not lost among them."""
    few = [Finding(id="tape.undeclared", message="few", severity="info")] * (2 * MOST_FINDINGS)
    answer = told([*few, Finding(id="tape.overwrite", message="grave")])
    assert len(answer) == MOST_FINDINGS
    assert answer[0]["id"] == "tape.overwrite"
    assert answer[-1]["evidence"] == {"further": MOST_FINDINGS + 1}
    assert told(few[:2]) == [each.to_json() for each in few[:2]]


def test_an_answer_with_more_findings_is_refused() -> None:
    with pytest.raises(ReplayWorkerError, match="malformed"):
        parse({"result": {"verdict": "match", "findings": [{}] * (MOST_FINDINGS + 1)}})
