"""Transcripts and documents of earlier versions (`tests/golden`) are still read, replayed and verified.

What `tests/golden/recorded.json` expects was written when they were recorded; it must never be brought up to date.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import answer

from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import read_statement

GOLDEN = Path(__file__).parent / "golden"
KEYS = GOLDEN / "keys"
RECORDED = json.loads((GOLDEN / "recorded.json").read_text())
"""Of each transcript: its identifier, the digest of its draft, and the state that a replay ends in."""


@pytest.mark.parametrize("name", RECORDED)
def test_an_old_transcript_is_shown_and_is_what_it_was(name: str) -> None:
    recorded = RECORDED[name]
    shown = answer("show", GOLDEN / name)
    assert (shown["id"], shown["complete"]) == (recorded["id"], True)
    assert Transcript.open(GOLDEN / name).draft_digest.hex() == recorded["draft"]


def test_old_transcripts_hold_what_they_were_recorded_for() -> None:
    assert answer("show", GOLDEN / "digits-minimal")["left out"] == [1, 3]
    assert answer("show", GOLDEN / "chance")["steps"] == {"init": 1, "step": 3, "edit": 1}
    assert answer("show", GOLDEN / "on-chip")["snapshots"] == 2
    assert answer("show", GOLDEN / "resumed")["resumed"] != []
    assert "committed to before training" in answer("show", GOLDEN / "digits")["data"]
    assert Transcript.open(GOLDEN / "bfloat16").draft["policy"] == "calibrated"
    assert {each.sketches for each in Transcript.open(GOLDEN / "sketch").records()} == {1}
    parent = Transcript.open(GOLDEN / "fine-tuned").draft["parent"]
    assert parent["transcript"].hex() == RECORDED["digits"]["id"]


@pytest.mark.parametrize("capability", [None, "default"])
@pytest.mark.parametrize("name", [name for name in RECORDED if not name.startswith("job/")])
def test_an_old_transcript_replays(name: str, capability: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a worker, with this machine's vector instructions and with the plainest ones."""
    if capability is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    replayed = answer("replay", GOLDEN / name)
    assert (replayed["verdict"], replayed["state"]) == ("match", RECORDED[name]["state"])


def test_old_supplements_are_read() -> None:
    """Those of every step, and none of them is refused."""
    replayed = answer("replay", GOLDEN / "on-demand")
    statements = [read_statement(each)[0] for each in sorted((GOLDEN / "on-demand.supplements").iterdir())]
    assert [each.step for each in statements] == [0, 1, 2, 3]
    assert replayed["logged"] == sum(each.logged for each in statements) > 0
    assert not [each for each in replayed["findings"] if each["id"].startswith("transcript.supplement")]


@pytest.mark.parametrize("capability", [None, "default"])
def test_an_old_job_replays(capability: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if capability is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    replayed = answer("replay", GOLDEN / "job")
    assert replayed["verdict"] == "match"
    states = [RECORDED[f"job/rank-000{rank}"]["state"] for rank in (0, 1)]
    assert [each["state"] for each in replayed["ranks"]] == states
    shown = answer("job", "show", GOLDEN / "job")
    assert [each["collectives"]["all_reduce"] for each in shown["ranks"]] == [3, 3]


@pytest.mark.parametrize(
    "command",
    [
        ("report", "verify", GOLDEN / "report.dsse", "--key", KEYS / "report-key.pub"),
        ("chip", "log", "fsck", GOLDEN / "chip-log", "--manufacturer", KEYS / "manufacturer.pem"),
        ("registry", "log", "fsck", GOLDEN / "registry-log", "--public-key", KEYS / "registry-key.pub"),
        (
            *("inspect", "verify-draw", GOLDEN / "draw", "--log-key", KEYS / "log-key.pub"),
            *("--witness", KEYS / "witness-key.pub", "--registry", GOLDEN / "registry-log"),
        ),
        ("rules", "verify", GOLDEN / "rules" / "rules.dsse", "--parties", GOLDEN / "rules" / "parties.toml"),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)
def test_an_old_document_is_verified(command: tuple[str | Path, ...]) -> None:
    assert answer(*command).get("findings", []) == []


def test_an_old_report_is_shown_and_names_the_old_transcript() -> None:
    report = answer("report", "show", GOLDEN / "report.dsse")
    assert [each["id"] for each in report["transcripts"]] == [RECORDED["on-chip"]["id"]]
    assert report["counts"]["explained"] == 2
