"""`weighbridge audit` from plan to verification, with real replays: one auditor is honest, the Prover has lied once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support import audited
from support.command_line import answer, fails, weighbridge
from support.forging import forge
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.attest.beacon import LocalBeacon
from weighbridge.transcript.tape import Tape


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("audited", audited.record)


def _key(path: Path) -> tuple[Path, str]:
    return path, answer("rules", "key", path)["public_key"]


def _publish(beacon: LocalBeacon, place: Path, *numbers: int) -> None:
    for number in numbers:
        beacon.publish(place, number)


def test_an_audit_from_plan_to_verification(run: Path, tmp_path: Path) -> None:
    def lie(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == 6:
            sums = bytearray(fields["checksums"])
            sums[40] ^= 1
            fields["checksums"] = bytes(sums)

    forged = forge(run, tmp_path / "forged", lie)
    coordinator, alice, bob, referee, other = (
        _key(tmp_path / n) for n in ("coordinator", "alice", "bob", "court", "o")
    )
    planted, place, case = tmp_path / "planted", tmp_path / "beacon", tmp_path / "case"
    code, out, _ = weighbridge("audit", "plant", run, planted, "--step", "4", "--key", other[0])
    assert code == 0
    assert "false in step 4" in out
    LocalBeacon.load(tmp_path / "beacon.key")  # its first round is now
    ahead = LocalBeacon.load(tmp_path / "beacon.key", clock=lambda: time.time() + 10_000)  # it gives what has not come
    _publish(ahead, place, 1)
    made = answer(
        "audit", "plan", forged, planted, "--auditor", f"alice={alice[1]}", "--auditor", f"bob={bob[1]}",
        "--planted", f"{planted}=4", "--beacon", place, "--key", coordinator[0], "--out", case,
        "--enrol", "3000", "--work", "3000", "--referee", "1",
    )  # fmt: skip
    assert made["segments"] == 10
    for key, _ in (alice, bob):
        answer("audit", "enrol", case, "--beacon", place, "--key", key)
    assert fails("audit", "run", case, forged, "--beacon", place, "--key", alice[0]) == "usage", "the draw is not out"
    _publish(ahead, place, *made["rounds"][:2])
    rows = answer("audit", "assigned", case, "--beacon", place)["segments"]
    assert all(row["auditors"] == ["alice", "bob"] for row in rows)
    with workers_here():
        ran = [
            answer("audit", "run", case, forged, planted, "--beacon", place, "--key", key) for key, _ in (alice, bob)
        ]
        assert ran[0] == ran[1]
        assert sorted(ran[0]["committed"].values()) == ["match"] * 8 + ["mismatch"] * 2
        assert fails("audit", "open", case, "--beacon", place, "--key", alice[0]) == "usage", "not closed yet"
        assert fails("audit", "close", case, "--beacon", place, "--key", alice[0]) == "usage"
        assert answer("audit", "close", case, "--beacon", place, "--key", coordinator[0])["committed"] == [
            "alice",
            "bob",
        ]
        for key, _ in (alice, bob):
            assert answer("audit", "open", case, "--beacon", place, "--key", key)["opened"] == 10
        assert fails("audit", "verify", case, "--beacon", place) == "audit.statement", "there is no verdict"
        _publish(ahead, place, made["rounds"][2])
        verdict = ("audit", "verdict", case, forged, planted, "--beacon", place, "--key", referee[0])
        said = answer(*verdict, code=1)
        assert [finding["id"] for finding in said["findings"]] == ["audit.segment"]
        assert [(each["planted"], each["missed"], each["false"]) for each in said["auditors"]] == [(1, 0, 0)] * 2
        assert fails(*verdict) == "usage", "there is one"
    again = answer("audit", "verify", case, "--beacon", place, code=1)
    assert again["agrees"]
    assert again["referee"] == referee[1]
    code, out, _ = weighbridge("audit", "verify", case, "--beacon", place)
    assert code == 1
    assert "work done: 77.8% of 9 steps were found to match by at least 2 of 2 auditors" in out
    assert (tmp_path / "case.planted").stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.glob("*.claims"))


def test_who_comes_after_the_draw_is_turned_away(run: Path, tmp_path: Path) -> None:
    alice, place, case = _key(tmp_path / "alice"), tmp_path / "beacon", tmp_path / "case"
    LocalBeacon.load(tmp_path / "beacon.key").publish(place, 1)
    plan = (
        "audit",
        "plan",
        run,
        "--auditor",
        f"alice={alice[1]}",
        "--copies",
        "1",
        "--beacon",
        place,
        "--key",
        alice[0],
    )
    answer(*plan, "--out", case, "--enrol", "1")
    time.sleep(2.1)
    assert fails("audit", "enrol", case, "--beacon", place, "--key", alice[0]) == "audit.order"
    assert fails(*plan, "--out", case) == "usage", "it exists"
    assert fails(*plan, "--out", tmp_path / "other", "--planted", f"{run}=x") == "usage", "a step is a number"
    assert fails("audit", "plant", run, tmp_path / "false", "--step", "99", "--key", alice[0]) == "usage"
    assert fails("audit", "assigned", tmp_path, "--beacon", place) == "usage"
    code, _, said = weighbridge("audit", "assigned", case, "--beacon", tmp_path / "nowhere")
    assert (code, "weighbridge inspect beacon" in said) == (2, True), "it says how to get one"
    code, _, said = weighbridge("audit", "assigned", case, "--beacon", place)
    assert (code, "it is due at 20" in said) == (2, True), "it says when"
