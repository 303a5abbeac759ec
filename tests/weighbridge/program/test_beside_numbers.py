"""What a run chose beside the numbers of its programs: seeds, the pace of schedules, and what step 0 was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ordered

from weighbridge.program.beside_numbers import Beside, beside
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


def _found(path: Path) -> list[Beside]:
    transcript = Transcript.open(path)
    return list(beside(transcript, lambda digest: Tape.decode(transcript.tape(digest))).values())


def test_a_run_that_goes_on_from_step_to_step_chose_nothing(tmp_path: Path) -> None:
    ordered.record(tmp_path / "run", steps=4)
    assert [each.told() for each in _found(tmp_path / "run")] == [[[], False, [], []]] * 3, "three programs"


@pytest.mark.parametrize("seeded", [5, ordered.SEED])
def test_seeds_are_told_and_the_runs_own_is_told_as_that(tmp_path: Path, seeded: int) -> None:
    ordered.record(tmp_path / "run", steps=4, seeded=seeded, later=777)
    first, *others = _found(tmp_path / "run")
    own = seeded == ordered.SEED
    assert (first.starts, first.seeded) == (set() if own else {seeded}, own)
    assert set().union(*(each.starts for each in others)) == {777}


def test_the_pace_of_a_schedule_and_first_weights_that_are_given_are_told(tmp_path: Path) -> None:
    ordered.record(tmp_path / "run", steps=4, pace=3, made=False)
    transcript = Transcript.open(tmp_path / "run")
    first, *others = _found(tmp_path / "run")
    assert first.given == [transcript.step(0).state]
    assert not any(each.given for each in others)
    paces = set().union(*(each.paces for each in others))
    assert {(stride, begins) for _, stride, begins in paces} == {(0, True), (3, False)}
