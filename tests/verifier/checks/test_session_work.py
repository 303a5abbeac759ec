"""Work from snapshot to snapshot: honest runs pass, resumed ones too; what is hidden behind a resumption is caught."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.chip_logs import LogBuilder, facts
from support.snapshot_facts import LEAVES, make
from support.untrained_transcripts import write_transcript

from firmware_sim.device import Device
from verifier.checks import session_work
from verifier.model.facts import Explanation, Plan, SnapshotFacts
from verifier.model.policies import SnapshotPolicy
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Amount, Repetition, RunFacts
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined

STEP = 10**9
"""FLOPs of each step of these runs."""
PLAN = Plan(
    samples=1,
    seed=bytes(16),
    flops_threshold=1e20,
    chip_flops_per_day=86_400.0,
    period_days=30.0,
    snapshot_rate_per_day=1.0,
)
FACTS = RunFacts(
    steps=100, flops={"init": 0, "step": 0, "edit": 0}, fixed=False, programs=(), operations=(), parameters=None,
    used=0, seen=0, initial=Amount(STEP),
)  # fmt: skip


def resumed(step: int, begin: int) -> Repetition:
    """A resumption from a checkpoint right before `begin`."""
    return Repetition(step, begin, Amount(begin * STEP), Amount((step + 1) * STEP))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, device: Device) -> dict[str, OpenedTranscript]:
    root = tmp_path_factory.mktemp("runs")
    for name in ("a", "b"):
        write_transcript(root / name, name=name, steps=4, ueid=device.ueid)
    return {name: open_confined(root / name) for name in ("a", "b")}


@dataclass
class Trained:
    """A chip on which runs are at work, with the snapshots that it took."""

    device: Device
    manufacturer: CertificateAuthority
    runs: dict[str, OpenedTranscript]
    log: LogBuilder = field(init=False)
    made: list[SnapshotFacts] = field(default_factory=list)
    facts: RunFacts | WeighbridgeError = FACTS

    def __post_init__(self) -> None:
        self.log = LogBuilder(self.device).boot()

    def begin(self, run: str = "a", *, attach: bool = True) -> Trained:
        """A program declares a run."""
        if attach:
            self.log.attach()
        self.log.event("manifest-draft", self.runs[run].draft_digest)
        return self

    def again(self) -> Trained:
        """Another program goes on with a run, which it does not declare anew."""
        self.log.detach().attach()
        return self

    def does(self, **done: int) -> Trained:
        self.log.does(**done)
        return self

    def take(self, step: float, run: str = "a", *, narrow: int = 0, flops: int | None = None) -> Trained:
        """A snapshot, up to which the run had taken so many steps."""
        snapshot = make(self.device, self.manufacturer, self.runs[run])
        assert self.log.work is not None
        done = self.log.work - self.log.before
        index = self.log.snapshot(LEAVES, kernels=done.kernels, flops=done.flops)
        assert isinstance(snapshot.replayed, ReplayResult)
        reached = round(step * STEP) if flops is None else flops
        self.made.append(
            replace(
                snapshot,
                index=index,
                explanation=Explanation(transcript_id=self.runs[run].digest, step=int(step), op=4),
                replayed=replace(snapshot.replayed, flops=reached, narrow=narrow),
            )
        )
        return self

    def check(self, plan: Plan = PLAN, **policy: float) -> list[Finding]:
        if policy:
            plan = replace(plan, snapshots=SnapshotPolicy(**policy))  # type: ignore[arg-type]
        examined = {each.digest: self.facts for each in self.runs.values()}
        return session_work.check(facts(self.log, self.manufacturer.certificate), self.made, plan, examined)


@pytest.fixture
def chip(device: Device, manufacturer: CertificateAuthority, runs: dict[str, OpenedTranscript]) -> Trained:
    return Trained(device, manufacturer, runs)


def test_a_run_and_some_evaluation_pass(chip: Trained) -> None:
    chip.begin()
    for step in range(1, 50):
        chip.does(flops=round(STEP * 0.9)).take(step)
        if step % 10 == 0:
            chip.does(flops=4 * STEP)
    assert chip.check() == []


@pytest.mark.parametrize(
    ("flops", "found"), [(0, False), (1000, False), (1_001_500, False), (1_001_501, True), (10**18, True)]
)
def test_work_beside_the_transcript(chip: Trained, flops: int, found: bool) -> None:
    chip.begin().does(flops=flops).take(0, flops=1000)
    assert [each.id for each in chip.check()] == ["snapshot.work.unexplained"] * found
    assert chip.check(work_share=1e18) == []


@pytest.mark.parametrize(("flops", "found"), [(1_001_500 + 640, False), (1_001_500 + 641, True)])
def test_recording_results_in_16_bits_is_work(chip: Trained, flops: int, found: bool) -> None:
    chip.begin().does(flops=flops).take(0, flops=1000, narrow=10)
    assert len(chip.check()) == found


def test_what_cannot_be_counted_is_not_compared(chip: Trained) -> None:
    chip.begin().does(flops=10**18).take(1)
    chip.made[0] = replace(chip.made[0], replayed=replace(chip.made[0].replayed, flops=None))  # type: ignore[type-var]
    assert chip.check() == []


@pytest.mark.finding("snapshot.work.unexplained")
def test_a_burst_between_two_snapshots_is_caught_at_the_second(chip: Trained) -> None:
    chip.begin().does(flops=40 * STEP).take(40).does(flops=42 * STEP).take(60).does(flops=5 * STEP).take(65)
    (found,) = chip.check(work_share=0.3)
    assert (found.subject, found.severity) == (chip.made[1].subject, "warning")
    assert found.evidence["unexplained_flops"] == 22 * STEP
    assert found.evidence["transcript_flops"] == 20 * STEP


def test_a_resumed_run_passes(chip: Trained) -> None:
    """The crash cut off step 60; the program begins anew, and recomputes steps 58 and 59 from their checkpoint."""
    chip.facts = replace(FACTS, repetitions=(resumed(60, 58),))
    chip.begin().does(flops=50 * STEP).take(50).does(flops=round(10.5 * STEP))
    chip.again().does(flops=3 * STEP).take(60).does(flops=40 * STEP).take(100)
    assert chip.check(work_share=0.0) == []


def test_a_resumption_says_no_more_than_what_it_had_to_do_again(chip: Trained) -> None:
    """One line tells of a crash in step 60; what the second session did is another model, as large as the run."""
    chip.facts = replace(FACTS, repetitions=(resumed(60, 58),))
    chip.begin().does(flops=60 * STEP).take(60).again().does(flops=60 * STEP).take(62)
    (found,) = chip.check()
    assert found.evidence["transcript_flops"] == 5 * STEP
    assert found.evidence["unexplained_flops"] == pytest.approx(55 * STEP, rel=1e-4)


def test_hidden_work_adds_up_over_sessions(chip: Trained) -> None:
    """Each claimed crash hides a tenth of the run, which evaluation might be; together they are caught."""
    chip.facts = replace(FACTS, repetitions=tuple(resumed(60 + n, 60 + n) for n in range(8)))
    chip.begin().does(flops=60 * STEP).take(60)
    for number in range(1, 8):
        chip.again().does(flops=8 * STEP).take(60 + number)
    (found,) = chip.check()
    assert found.subject == chip.made[6].subject


def test_a_crash_that_nobody_wrote_down_explains_nothing(chip: Trained) -> None:
    chip.begin().does(flops=60 * STEP).take(60).again().does(flops=40 * STEP).take(61)
    (found,) = chip.check()
    assert found.evidence["transcript_flops"] == STEP


def test_a_session_in_which_nothing_was_kept_recomputes_everything(chip: Trained) -> None:
    chip.facts = replace(FACTS, repetitions=(resumed(60, 0),))
    chip.begin().does(flops=50 * STEP).take(50).again().does(flops=STEP).take(1).does(flops=61 * STEP).take(62)
    assert chip.check(work_share=0.0) == []


def test_a_program_that_resumes_itself_passes_once(chip: Trained) -> None:
    """An exception in step 60, and the same process goes on with the recording."""
    chip.facts = replace(FACTS, repetitions=(resumed(60, 58),))
    chip.begin().does(flops=50 * STEP).take(50).does(flops=11 * STEP + 5 * STEP).take(62).does(flops=3 * STEP).take(65)
    assert chip.check(work_share=0.0) == []
    chip.does(flops=3 * STEP).take(65)  # the same line explains no second time
    assert len(chip.check(work_share=0.0)) == 1


def test_a_run_that_moved_here_after_a_crash_passes(chip: Trained) -> None:
    chip.facts = replace(FACTS, repetitions=(resumed(60, 58),))
    chip.log.attach()
    chip.does(flops=6 * STEP).take(63)
    assert chip.check(work_share=0.0) == []
    chip.does(flops=6 * STEP).take(64)
    assert len(chip.check(work_share=0.0)) == 1


def test_two_runs_of_one_program_pass(chip: Trained) -> None:
    chip.begin().does(flops=50 * STEP).take(50).does(flops=5 * STEP)
    chip.begin("b", attach=False).does(flops=50 * STEP).take(50, "b")
    assert chip.check() == []
    chip.does(flops=50 * STEP).take(60, "b")
    assert len(chip.check()) == 1


def test_unknown_work_counts_as_its_time_at_the_peak(chip: Trained) -> None:
    """A tenth of a second of it is spared in each run: calls that failed, for example."""
    fast: dict[str, Any] = {"peak_flops": 1e10}
    chip.begin().does(flops=STEP, unknown_ns=10**8).take(1).does(flops=STEP).take(2)
    assert chip.check(replace(PLAN, **fast)) == []
    chip.does(flops=STEP, unknown_ns=3 * 10**8).take(3)
    (found,) = chip.check(replace(PLAN, **fast))
    assert found.evidence["unexplained_flops"] == 3 * STEP
    assert chip.check() == []  # this chip could not do much in that time


def test_a_transcript_that_could_not_be_counted_accuses_no_resumed_run(
    chip: Trained, tmp_path: Path, device: Device
) -> None:
    chip.facts = WeighbridgeError("the worker died")
    chip.begin().does(flops=60 * STEP).take(60)
    chip.runs["a"].resumptions, before = [object()], chip.runs["a"].resumptions  # type: ignore[list-item]
    try:
        assert chip.again().does(flops=60 * STEP).take(62).check() == []
    finally:
        chip.runs["a"].resumptions = before
