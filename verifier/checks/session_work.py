"""Did the chip do more between two snapshots, or since its workload began, than the transcript has between the two?

Memory shows what a chip holds at the moment of a snapshot. Who learns of an interrupt may still have some kernels in
which to hide another model; the work that it did on that model stays in the chip's counters.

What counts is the difference: of the counters, and of the positions. A session that goes on with a run after a crash
begins at the checkpoint from which the transcript says that it was resumed. It has as much to show as lies between
that and its position, and not all that the run had done before. What is more than that adds up over the snapshots of a
run, and what is less takes it down again, as a chip counts a little less than a tape has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verifier.checks.commitment import EVENT
from verifier.checks.memory import begins_from_given, replayed
from verifier.model.facts import Explanation, LogFacts, Plan, SnapshotFacts, digest
from verifier.model.peak_flops import peak_by
from verifier.model.policies import SnapshotPolicy
from verifier.model.sessions import begins, tokens_of
from weighbridge.attest.tokens import Token, counters, event_name
from weighbridge.attest.work import Work
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.run_facts import Amount, Repetition, RunFacts


def check(
    log: LogFacts, snapshots: Iterable[SnapshotFacts], plan: Plan, examined: Mapping[str, RunFacts | WeighbridgeError]
) -> list[Finding]:
    """Compares the chip's counters with the transcripts of its snapshots, from snapshot to snapshot.

    Work beside a transcript need not be a violation (evaluation is such work), so this is a warning: ask what it was.

    Args:
        log: The chip's log.
        snapshots: Its snapshots, once they were replayed.
        plan: Says what may be unexplained, and what a second of unknown work may have done.
        examined: What was counted in each transcript, by identifier.
    """
    placed = {each.index: found for each in snapshots if (found := _placed(each, examined)) is not None}
    walk = _Walk(plan.snapshots, peak_by(log.chip.chip_type, plan))
    return [found for token in tokens_of(log) for found in walk.passes(token, placed)]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A snapshot whose position is known.

    Attributes:
        facts: The snapshot.
        run: Digest of the run's draft.
        step: Step of the position.
        reached: What the transcript computed up to it.
        counted: What is known of the whole transcript; None if it could not be counted.
        cut: Whether the transcript tells of any resumption.
    """

    facts: SnapshotFacts
    run: bytes
    step: int
    reached: Amount
    counted: RunFacts | None
    cut: bool

    def passed_by(self, repetition: Repetition) -> bool:
        """Whether a resumption may have led to this position: step 0 is always computed again."""
        return repetition.begin <= self.step or self.initial

    @property
    def initial(self) -> bool:
        """Whether it lies in step 0, or where that ends."""
        return self.counted is not None and self.reached.flops <= self.counted.initial.flops

    @property
    def repetitions(self) -> tuple[Repetition, ...]:
        """The resumptions that the transcript tells of."""
        return () if self.counted is None else self.counted.repetitions

    def since(self, resumed: Repetition | None, reached: Amount | None = None) -> Amount:
        """Returns what it took to get somewhere, by default here, for a program that began with a resumption."""
        reached = self.reached if reached is None else reached
        if resumed is None or self.counted is None or reached.flops <= self.counted.initial.flops:
            return reached
        first = self.counted.initial if resumed.start.flops else Amount()
        return _less(_plus(first, reached), resumed.start)


def _placed(snapshot: SnapshotFacts, examined: Mapping[str, RunFacts | WeighbridgeError]) -> _Placed | None:
    result, claim, facts = replayed(snapshot), snapshot.explanation, snapshot.transcript
    if result is None or result.flops is None or not isinstance(claim, Explanation):
        return None
    if facts is None or isinstance(facts.opened, WeighbridgeError):
        return None
    counted = examined.get(claim.transcript_id)
    return _Placed(
        facts=snapshot,
        run=facts.opened.draft_digest,
        step=claim.step,
        reached=Amount(result.flops, result.narrow),
        counted=counted if isinstance(counted, RunFacts) and counted.flops is not None else None,
        cut=bool(facts.opened.resumptions),
    )


@dataclass(slots=True)
class _Run:
    """What is known of one run on this chip so far.

    Attributes:
        unknown_s: Seconds of unknown work that it may still have had.
        last: Its newest snapshot.
        work: The chip's counters then.
        resumed: The resumption with which the program began that it was taken of; None if with none.
        used: Resumptions that explain something already.
        excess: FLOPs that no transcript explains.
    """

    unknown_s: float
    last: _Placed | None = None
    work: Work | None = None
    resumed: Repetition | None = None
    used: set[Repetition] = field(default_factory=set)
    excess: float = 0.0


class _Walk:
    """Goes through a chip's log, entry by entry."""

    def __init__(self, policy: SnapshotPolicy, peak: float) -> None:
        self._policy, self._peak = policy, peak
        self._runs: dict[bytes, _Run] = {}
        self._attached: Work | None = None
        self._drafted: Work | None = None
        self._here: bytes | None = None  # the run that the session said last that it is at work on
        self._begins = False

    def passes(self, token: Token, placed: Mapping[int, _Placed]) -> list[Finding]:
        """Takes note of one entry; returns what is wrong with it."""
        name = event_name(token)
        if begins(token):
            self._attached, self._here, self._begins = counters(token), None, False
        elif name == EVENT:
            # Loading and testing come before the first run of a session, and are counted with it.
            self._drafted = self._attached if self._here is None else counters(token)
            self._here, self._begins = digest(token, "digest"), True
        elif token.kind == "snapshot" and token.index in placed:
            return self._compare(token, placed[token.index])
        return []

    def _compare(self, token: Token, here: _Placed) -> list[Finding]:
        run = self._runs.setdefault(here.run, _Run(self._policy.unknown_s))
        since, due = self._due(run, here)
        again = run.last is not None and (self._here != here.run or self._begins)
        self._here, self._begins = here.run, False
        run.last, run.work = here, counters(token)
        if since is None or run.work is None:
            return []
        done = run.work - since
        spared = min(run.unknown_s, done.unknown_ns / 1e9)
        run.unknown_s -= spared
        flops = done.flops + (done.unknown_ns / 1e9 - spared) * self._peak
        run.excess += flops - due.flops - self._policy.recording_flops * due.narrow
        setup = self._policy.setup_flops if begins_from_given(here.facts) else self._policy.work_flops
        run.excess = max(0.0, run.excess - setup if again else run.excess)
        if run.excess <= setup + self._policy.work_share * here.reached.flops:
            return []
        finding, run.excess = _finding(here, done, flops, due, run.excess), 0.0
        return [finding]

    def _due(self, run: _Run, here: _Placed) -> tuple[Work | None, Amount]:
        """Returns the counters with which to compare, and what the transcript has since then."""
        if self._begins:
            run.resumed = None
            return (self._drafted, here.reached) if self._here == here.run else (None, here.reached)
        if self._here == here.run:
            return run.work, _between(run, here)
        if self._here is not None:
            return None, here.reached  # it went on with an earlier run after another one: since when is not known
        return self._attached, _resumed(run, here)


def _resumed(run: _Run, here: _Placed) -> Amount:
    """Returns what a session had to do that goes on with a run, as far as the transcript tells of a resumption."""
    known = [each for each in here.repetitions if here.passed_by(each)]
    if run.last is not None:
        known = [each for each in known if each.step >= run.last.step]
    run.resumed = min(known, key=lambda each: each.start.flops, default=None)
    if run.resumed is not None:
        run.used.add(run.resumed)
    elif run.last is not None and not here.initial and not (here.cut and here.counted is None):
        return _less(here.reached, run.last.reached)  # nobody says that anything was done again
    return here.since(run.resumed)


def _between(run: _Run, here: _Placed) -> Amount:
    """Returns what a program had to do from one snapshot to the next, also if it resumed the recording itself."""
    assert run.last is not None
    due, at = Amount(), run.last.reached
    for each in here.repetitions:
        if each not in run.used and each.step >= run.last.step and here.passed_by(each):
            due = _plus(due, _less(here.since(run.resumed, each.end), here.since(run.resumed, at)))
            run.used.add(each)
            run.resumed, at = each, Amount()
    return _plus(due, _less(here.since(run.resumed), here.since(run.resumed, at)))


def _plus(one: Amount, other: Amount) -> Amount:
    return Amount(one.flops + other.flops, one.narrow + other.narrow)


def _less(one: Amount, other: Amount) -> Amount:
    return Amount(max(0, one.flops - other.flops), max(0, one.narrow - other.narrow))


def _finding(here: _Placed, done: Work, flops: float, due: Amount, excess: float) -> Finding:
    snapshot = here.facts
    return Finding(
        id="snapshot.work.unexplained",
        message="the chip did more work than the transcript accounts for; ask what it was",
        expected=f"about {due.flops} FLOPs since the snapshot before, or since the program began or resumed the run",
        found=f"up to {flops:.6g} FLOPs: {done.flops} counted, and {done.unknown_ns / 1e9:.3g} s of unknown work",
        subject=snapshot.subject,
        severity="warning",
        evidence={
            "chip_flops": done.flops,
            "unknown_ns": done.unknown_ns,
            "transcript_flops": due.flops,
            "unexplained_flops": excess,
        },
    )
