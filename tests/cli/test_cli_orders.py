"""`weighbridge audit order`, `accept` and `delivery`, and an audit of what was ordered, from rehearsal to verdict."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from support import ordered
from support.command_line import answer, fails, weighbridge
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.manifest import load_or_create_key


@pytest.fixture(scope="module")
def rehearsal(recordings: RecordingStore) -> Path:
    return recordings.get("ordered-rehearsal", partial(ordered.record, steps=3, seed=5))


def _key(path: Path) -> tuple[Path, str]:
    return path, answer("rules", "key", path)["public_key"]


def test_a_service_that_trains_fewer_steps_is_found_by_the_order_and_by_the_audit(
    rehearsal: Path, tmp_path: Path
) -> None:  # fmt: skip
    client, service, auditor, referee = (_key(tmp_path / name) for name in ("client", "service", "auditor", "court"))
    file, run, fewer = tmp_path / "mlp.order", tmp_path / "run", tmp_path / "fewer"
    asked = ("audit", "order", rehearsal, "--steps", "6", "--seed", "11", "--service", service[1], "--out", file)
    with workers_here():
        assert fails(*asked, "--seed-of-data", "--key", client[0]) == "usage", "one or the other"
        assert fails(*asked, "--key", tmp_path / "none") == "usage"
        for runs in ("3", "=3", "ab=x", "ab=-1"):
            assert fails(*asked, "--key", client[0], "--runs", runs) == "usage"
        assert fails(*asked, "--key", client[0], "--runs", "no tape=3") == "order.malformed"
        made = answer(*asked, "--key", client[0])
        assert (made["steps"], made["seed"], made["accepted"], made["name"]) == (6, 11, False, "mlp.order")
        assert fails(*asked, "--key", client[0]) == "usage", "it exists"
        ordered.record(run, key=load_or_create_key(service[0]))
        ordered.record(fewer, key=load_or_create_key(service[0]), steps=4)
        assert fails("audit", "delivery", file, run) == "order.signature", "it is not accepted"
        assert fails("audit", "accept", file, "--key", client[0]) == "order.signature"
        assert answer("audit", "accept", file, "--key", service[0]) == {**made, "accepted": True}
        assert answer("audit", "delivery", file, run)["findings"] == []
        assert "6 steps" in weighbridge("audit", "delivery", file, run)[1]
        (finding,) = answer("audit", "delivery", file, fewer, code=1)["findings"]
        assert (finding["id"], finding["expected"], finding["found"]) == ("order.steps", "6", "4 steps")

        place, case = tmp_path / "beacon", tmp_path / "case"
        LocalBeacon.load(tmp_path / "beacon.key")
        ahead = LocalBeacon.load(tmp_path / "beacon.key", clock=lambda: time.time() + 10_000)
        ahead.publish(place, 1)
        plan = ("audit", "plan", run, fewer, "--auditor", f"a={auditor[1]}", "--copies", "1", "--beacon", place)
        plan = (*plan, "--key", client[0], "--out", case, "--enrol", "3000", "--work", "3000")
        assert fails(*plan, "--order", f"{run}={tmp_path / 'none'}") == "usage"
        made = answer(*plan, "--order", f"{run}={file}", "--order", f"{fewer}={file}")
        answer("audit", "enrol", case, "--beacon", place, "--key", auditor[0])
        for number in made["rounds"][:2]:
            ahead.publish(place, number)
        ran = answer("audit", "run", case, run, fewer, "--beacon", place, "--key", auditor[0])
        assert [each["id"] for each in ran["findings"]] == ["order.steps"]
        assert set(ran["committed"].values()) == {"match"}, "what it did, it did truly"
        answer("audit", "close", case, "--beacon", place, "--key", client[0])
        answer("audit", "open", case, "--beacon", place, "--key", auditor[0])
        ahead.publish(place, made["rounds"][2])
        said = answer("audit", "verdict", case, run, fewer, "--beacon", place, "--key", referee[0], code=1)
        assert [each["id"] for each in said["findings"]] == ["order.steps"]
    code, out, _ = weighbridge("audit", "verify", case, "--beacon", place)
    assert code == 1
    assert "order.steps: 6 steps were ordered, and the transcript has 4 steps" in out
