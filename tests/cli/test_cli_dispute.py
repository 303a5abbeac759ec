"""`weighbridge dispute` from challenge to verification, each party and the referee with a key of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import disputed, on_demand
from support.command_line import answer, fails, weighbridge
from support.forging import forge
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.transcript.supplements import key_path
from weighbridge.transcript.tape import Tape

STEP = str(disputed.STEP)


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", disputed.record)


def _key(path: Path) -> Path:
    assert weighbridge("rules", "key", path)[0] == 0
    return path


def test_a_false_record_is_disputed_judged_and_verified(run: Path, tmp_path: Path) -> None:
    def change(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == disputed.STEP:
            sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
            sums[5] ^= np.uint64(1 << 17)
            fields["checksums"] = sums.tobytes()

    forged = forge(run, tmp_path / "forged", change)
    mine, theirs, referee = (_key(tmp_path / name) for name in ("mine", "theirs", "referee"))
    file = tmp_path / "dispute"
    with workers_here():
        opened = answer("dispute", "open", forged, "--step", STEP, "--key", mine, "--out", file)
        assert "other results" in opened["parted"]
        assert answer("dispute", "answer", file, forged, "--key", theirs)["sent"] == "answer"
        ruled = answer("dispute", "judge", file, "--key", referee, code=1)
        assert [(c["party"], c["verdict"]) for c in ruled["claims"]] == [("defender", "false")]
        checked = answer("dispute", "verify", file, code=1)
        assert checked["agrees"]
        assert checked["claims"] == ruled["claims"]
        assert fails("dispute", "open", forged, "--step", STEP, "--key", mine, "--out", file) == "usage"


@pytest.mark.finding("dispute.step")
@pytest.mark.parametrize("by_course", [False, True])
def test_a_defender_of_steps_that_cannot_be_disputed_does_not_lose(
    run: Path, recordings: RecordingStore, tmp_path: Path, by_course: bool
) -> None:
    """Its steps have sketches, of which no party makes leaves; the challenger has a training with its logs in full."""
    mine, theirs, referee = (_key(tmp_path / name) for name in ("mine", "theirs", "referee"))
    file, sketched = tmp_path / "dispute", recordings.get("disputed-sketch", partial(disputed.record, logs="sketch"))
    step = () if by_course else ("--step", STEP)
    with workers_here():
        assert fails("dispute", "open", sketched, "--step", STEP, "--key", mine, "--out", file) == "dispute.step"
        answer("dispute", "open", run, "--own", *step, "--key", mine, "--out", file)
        said = answer("dispute", "answer", file, sketched, "--key", theirs)["sent"]
        assert said == ("course" if by_course else "answer")
        assert weighbridge("dispute", "show", file)[1] == "2 messages; next is the referee\n"
        ruled = answer("dispute", "judge", file, "--key", referee)
        assert {(c["verdict"], c["code"]) for c in ruled["claims"]} == {("undecided", "dispute.ground")}
        assert answer("dispute", "verify", file)["agrees"]


def test_a_step_with_logs_on_demand_is_disputed_by_its_signed_tree(recordings: RecordingStore, tmp_path: Path) -> None:
    """The commands show what lies beside a transcript, and what else they are given."""
    run = on_demand.record(tmp_path / "run")
    mine, theirs, referee = _key(tmp_path / "mine"), key_path(run), _key(tmp_path / "referee")
    file, other = tmp_path / "dispute", tmp_path / "other.dispute"
    sketched = recordings.get("disputed-sketch", partial(disputed.record, logs="sketch"))
    with workers_here():
        opening = ("dispute", "open", run, "--step", "2", "--key", mine, "--out")
        assert fails(*opening, file) == "usage", "no log"
        assert answer("regenerate", run, "--steps", "2:3")["written"] == 1
        assert answer("regenerate", run, "--steps", "2:3", "--tree")["written"] == 1
        assert answer("regenerate", run, "--steps", "2:3", "--tree")["written"] == 0
        assert fails("regenerate", on_demand.copied(sketched, tmp_path), "--tree") == "dispute.step"
        answer(*opening, file)
        answer("dispute", "answer", file, run, "--key", theirs)
        ruled = answer("dispute", "judge", file, "--key", referee)
        assert [(c["party"], c["code"]) for c in ruled["claims"]] == [("defender", "dispute.equal")]
        assert answer("dispute", "verify", file)["agrees"]
        signed = on_demand.resigned(
            run, 2, said=lambda each: replace(each, tree="ab" * 32), out=tmp_path / "signed.wsup"
        )  # fmt: skip
        assert fails(*opening, other, "--supplement", tmp_path / "none") == "usage"
        answer(*opening, other, "--supplement", signed)
        answer("dispute", "answer", other, run, "--key", theirs)
        ruled = answer("dispute", "judge", other, "--key", referee, code=1)
        assert [(c["party"], c["code"]) for c in ruled["claims"]] == [("defender", "dispute.supplement")]
        assert answer("dispute", "verify", other, code=1)["agrees"]
        shutil.copy(signed, on_demand.place(run, 2))
        own = ("--own", "--out", tmp_path / "own")
        assert fails("dispute", "open", run, "--step", "2", "--key", theirs, *own) == "dispute.supplement"
        answer("dispute", "open", run, "--step", "2", "--key", mine, "--out", tmp_path / "third")
        assert fails("dispute", "answer", tmp_path / "third", run, "--key", theirs) == "dispute.supplement"


def test_a_person_is_told_where_two_trainings_part(run: Path, tmp_path: Path) -> None:
    """Courses that part name the step. Equal ones name none, which is said in words."""

    def change(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == disputed.STEP:
            fields["state"] = bytes(32)

    mine, theirs = _key(tmp_path / "mine"), _key(tmp_path / "theirs")
    forged = forge(run, tmp_path / "forged", change)
    for other, told in ((run, "there is no step to dispute"), (forged, f"the courses part at step {STEP}\n")):
        file = tmp_path / f"{other.name}.dispute"
        assert weighbridge("dispute", "open", run, "--own", "--key", mine, "--out", file)[0] == 0
        assert weighbridge("dispute", "show", file)[1].startswith("1 message; ")
        code, said, _ = weighbridge("dispute", "answer", file, other, "--key", theirs)
        assert (code, told in said, "None" in said) == (0, True, False), said


def test_an_honest_record_wins_and_a_damaged_file_is_refused(run: Path, tmp_path: Path) -> None:
    mine, theirs, referee = (_key(tmp_path / name) for name in ("mine", "theirs", "referee"))
    file = tmp_path / "dispute"
    with workers_here():
        answer("dispute", "open", run, "--step", STEP, "--key", mine, "--out", file)
        assert fails("dispute", "answer", file, run, "--key", tmp_path / "none") == "usage"
        assert fails("dispute", "judge", file, "--key", referee) == "usage"
        assert fails("dispute", "verify", file) == "dispute.message"
        code, said, _ = weighbridge("dispute", "answer", file, run, "--key", theirs)
        assert (code, "both name the same leaves" in said) == (0, True)
        code, _, said = weighbridge("dispute", "answer", file, run, "--key", mine)
        assert (code, "have the referee rule" in said) == (2, True)
        assert answer("dispute", "judge", file, "--key", referee)["claims"][0]["verdict"] == "admissible"
        assert "agrees: True" in weighbridge("dispute", "verify", file)[1]
        assert fails("dispute", "answer", file, run, "--key", theirs) == "dispute.message"
    damaged = shutil.copy(file, tmp_path / "damaged")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    Path(damaged).write_bytes(data)
    assert weighbridge("dispute", "verify", damaged)[0] == 2
