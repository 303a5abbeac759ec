"""Hostile tapes in a confined process: whatever a Prover writes, the outcome is a verdict or a finding.

A process that dies, hangs or raises something else would be a gap in the operand checks. `benchmarks/soak_fuzz.py` runs
the same for as long as one likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fuzzing import Child, acceptable, record_runs

from weighbridge.core.errors import TapeError
from weighbridge.execution import executor
from weighbridge.execution.executor import Executor
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Node, Tape

RECORDED, BENT, INVENTED, UNCHANGED, RECORDED_TWICE, BENT_TWICE = range(6)
"""What a child makes of its choices."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return record_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def child(runs: list[Path]) -> Iterator[Child]:
    started = Child(runs)
    yield started
    started.stop()


CHOICES = st.lists(st.integers(0, (1 << 32) - 1), max_size=60)


@pytest.mark.parametrize(("kind", "count"), [(RECORDED, 50), (BENT, 200), (INVENTED, 300)])
def test_hostile_tapes_end_in_a_verdict(child: Child, kind: int, count: int) -> None:
    @settings(
        max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(CHOICES)
    def check(choices: list[int]) -> None:
        answer = child.ask([kind, *choices])
        assert acceptable(answer), answer

    check()


@pytest.mark.parametrize(("kind", "count"), [(RECORDED_TWICE, 80), (BENT_TWICE, 150)])
def test_a_program_says_what_its_operations_say(child: Child, kind: int, count: int) -> None:
    """Hostile tapes that are executed a second time, with hostile content: as a program, and operation by operation."""
    programs: Counter[str] = Counter()

    @settings(
        max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(CHOICES)
    def check(choices: list[int]) -> None:
        answer = child.ask([kind, *choices])
        assert acceptable(answer), answer
        programs[answer.get("outcome", "")] += answer.get("program", False)

    check()
    assert programs["match"] > count // 20
    assert programs.total() > programs["match"], "some programs meet content that they refuse"


def test_an_unchanged_step_matches_in_the_same_process(child: Child) -> None:
    """The mutations start from something that replays: the fuzz does not pass because nothing runs."""
    assert child.ask([UNCHANGED])["outcome"] == "match"


def _empty(step: int) -> StepRecord:
    return StepRecord(
        step=step, kind="step", tape=bytes(32), values=[], host=[], rng={}, state=bytes(32), checksums=b"",
        rounding=bytes(32), batch=bytes(32), records=[], record_digests=[], free=[], snapshots=[], rounded=0, logged=0,
    )  # fmt: skip


def _zeros(count: int) -> Tape:
    """So many tensors of four bytes, none of which is let go."""
    nodes = [Node("zeros.default", (("l", (1,)),), {}, (i,), ((i, 4),)) for i in range(count)]
    return Tape(refs=[(i, "f32", (1,), (1,), 0) for i in range(count)], nodes=nodes)


def _execute(tape: Tape, max_bytes: int) -> None:
    log = rounding_log.LogReader(rounding_log.encode([]), max_entries=0)
    Executor("cpu", 1, max_bytes).run(Tape.decode(tape.encode()), bytes(32), _empty(1), log, {}, {})


def test_memory_and_operations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_OPERATIONS", 10)
    _execute(_zeros(10), 40)
    for tape, limit in ((_zeros(11), 44), (_zeros(10), 39)):
        with pytest.raises(TapeError) as caught:
            _execute(tape, limit)
        assert caught.value.reason == "tape.too_large"


def test_runs_to_start_from_use_many_operations(runs: list[Path]) -> None:
    used = {
        node.op
        for run in runs
        for node in Tape.decode(Transcript.open(run).tape(Transcript.open(run).step(1).tape)).nodes
    }
    assert len(used) > 60
