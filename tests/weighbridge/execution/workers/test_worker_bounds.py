"""A replay worker that a tape has taken over: what it can still do to others, and what its answer can do to us."""

from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO
from typing import Any

import pytest

from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.choice_statistics import Tally
from weighbridge.execution.replay_answer import parse
from weighbridge.execution.worker_process import read_answer

SIGNALS = """
import ctypes, json, os, sys
from weighbridge.execution.workers import confinement
applied = confinement.deny_system_calls(allow_exec=False)
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 234, "aarch64": 131}[os.uname().machine]  # tgkill
me, parent = os.getpid(), os.getppid()
print(json.dumps([applied, libc.syscall(number, parent, parent, 0), libc.syscall(number, me, me, 0)]))
sys.stdout.flush()
os.abort()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_no_signal_reaches_another_process() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=60, check=False)
    applied, to_parent, to_itself = json.loads(done.stdout)
    if "no-other-processes" not in applied:
        pytest.skip("no seccomp here")
    assert to_parent == -1
    assert to_itself == 0
    assert done.returncode == -6  # a failed assertion in a kernel still ends the process


RESULT: dict[str, Any] = {
    "verdict": "match", "steps": [0, 1], "state": "00" * 32, "followed": 0, "logged": 0, "rounded": 0,
    "calibrated": 0, "calibrated_on": "", "probable": 0,
    "tapes": {}, "chosen": {}, "findings": [], "first_difference": None, "live": None, "running": None, "head": None,
    "weights": None, "made": None, "touched": 0, "flops": None, "narrow": 0, "recognised": [], "sensitivity": None,
    "device": "cpu", "confinement": [], "evidence": Tally().to_json(),
}  # fmt: skip
FINDING = {"id": "a", "message": "b", "expected": "", "found": "", "subject": "", "severity": "info", "evidence": {}}


def test_an_answer_in_order_is_taken() -> None:
    message = read_answer(BytesIO(json.dumps({"result": {**RESULT, "findings": [FINDING]}}).encode()), None)
    assert message is not None
    assert parse(message).findings[0].id == "a"


@pytest.mark.parametrize("line", [b'{"progress": [Infinity, 1]}', b'{"progress": [NaN, 1]}', b'{"progress": 1}', b"7"])
def test_progress_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(ReplayWorkerError):
        read_answer(BytesIO(line + b"\n"), lambda *_: None)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "x", None, [], 1 << 80])
def test_counts_of_evidence_are_numbers(value: Any) -> None:
    for name in ("entries", "bits_in"):
        with pytest.raises(ReplayWorkerError):
            parse({"result": {**RESULT, "evidence": {**Tally().to_json(), name: value}}})


@pytest.mark.parametrize(
    "evidence", [{"a": {"b": 1}}, {"a": [1]}, [], {"a": [[[[]]]]}, {"a": float("nan")}, {"a": float("inf")}]
)
def test_evidence_is_flat(evidence: Any) -> None:
    """What is nested deeply enough can be read and not written again, which would lose the whole report."""
    with pytest.raises(ReplayWorkerError):
        parse({"result": {**RESULT, "findings": [{**FINDING, "evidence": evidence}]}})


def test_long_evidence_is_cut() -> None:
    evidence = {str(n): "x" * 10_000 for n in range(1000)}
    (finding,) = parse({"result": {**RESULT, "findings": [{**FINDING, "evidence": evidence}]}}).findings
    assert len(finding.evidence) == 100
    assert max(map(len, finding.evidence.values())) == 4000


def test_half_a_character_does_not_reach_the_report() -> None:
    (finding,) = parse({"result": {**RESULT, "findings": [{**FINDING, "message": "a\ud800b"}]}}).findings
    assert finding.message == "a?b"
