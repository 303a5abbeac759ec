"""What training the programs of a run are, as far as replays recognised single steps of it (docs/recognition.md).

One tape is one program. What is recognised of some steps of a program is said of this program and of no other, and a
program of which no step was looked at is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verifier.model.segments import Replayed
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.recognition.outcome import Recognition
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import RunFacts
from weighbridge.program.tape_policy import INSENSITIVE

Outcome = Literal["recognised", "not recognised", "not known"]

RESTATED = ("tape.no_gradient", "tape.overwrite", INSENSITIVE)
"""Findings about what a program does to weights."""

_SHOWN = 6

UNCOUNTED = "the run's programs were not counted, so others may have run"


def draw_seed(seed: bytes, draft: str, begin: int) -> int:
    """Returns the seed of the draw of the steps to recognise in a segment.

    Of the transcript only the draft enters: it was logged by a chip before the first step, so that a Prover who knows
    the plan's seed cannot look for a transcript whose steps are drawn as it likes.

    Args:
        seed: The plan's.
        draft: Hex digest of the run's draft.
        begin: First step of the segment.

    Returns:
        A number of 64 bits, as `weighbridge.execution.recognition.in_replay.choose` takes it.
    """
    return int.from_bytes(record_digest("recognised-steps/1", [seed, bytes.fromhex(draft), begin])[:8], "big")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What is known of one program.

    Attributes:
        digest: Of its tape.
        ran: How many steps of the whole run ran it; None if that was not counted.
        steps: Those that were looked at, ascending.
    """

    digest: str
    ran: int | None
    steps: tuple[Recognition, ...]

    @property
    def outcome(self) -> Outcome:
        """`not recognised` if one step is not; `recognised` if all that were looked at are, and there are some."""
        if any(each.known and not each.recognised for each in self.steps):
            return "not recognised"
        return "recognised" if self.steps and all(each.recognised for each in self.steps) else "not known"


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What is known of one run.

    Attributes:
        transcript: Its identifier.
        draft: Hex digest of its draft.
        seed: The plan's.
        asked: How many steps of each segment were to be looked at.
        begins: First steps of these segments.
        programs: Those that steps ran, in order of first use.
        failures: Why segments, or programs, were not looked at although they were to be.
    """

    transcript: str
    draft: str
    seed: bytes
    asked: int
    begins: tuple[int, ...]
    programs: tuple[Program, ...]
    failures: tuple[str, ...]

    @property
    def steps(self) -> list[Recognition]:
        """All steps that were looked at, ascending."""
        return sorted((step for program in self.programs for step in program.steps), key=lambda each: each.step)

    @property
    def outcome(self) -> Outcome:
        """Of the whole run: `recognised` only if every program that a step ran is."""
        outcomes = {program.outcome for program in self.programs}
        if "not recognised" in outcomes:
            return "not recognised"
        return "recognised" if outcomes == {"recognised"} and UNCOUNTED not in self.failures else "not known"


def of(replayed: Replayed, draft: str, counted: RunFacts | WeighbridgeError | None) -> Training | None:
    """Puts together what the replays of a run's segments recognised.

    Only steps of replays that matched count.

    Args:
        replayed: The segments of one transcript.
        draft: Hex digest of its draft.
        counted: Which programs ran; without them the run is not known, whatever was recognised.

    Returns:
        What is known; None if nothing was to be recognised.
    """
    if not replayed.recognise:
        return None
    found, failures = _Found(), list[str]()
    begins = [chosen.begin for chosen in replayed.selection.chosen]
    for result in _matching(replayed, failures):
        found.take(0, result.recognised)
    return Training(
        transcript=replayed.selection.transcript,
        draft=draft,
        seed=replayed.selection.seed,
        asked=replayed.recognise,
        begins=tuple(begins),
        programs=found.programs([counted], failures),
        failures=tuple(dict.fromkeys(failures)),
    )


def of_job(replayed: Sequence[Replayed], counted: Sequence[RunFacts | WeighbridgeError | None]) -> Training | None:
    """Puts together what the replays of a job's segments recognised, of all of its ranks.

    A step of a job is recognised on each rank or on none. But a rank may have run other programs in steps that were
    not looked at, so the job is `recognised` only if every program of every rank is.

    Args:
        replayed: The segments of those of its transcripts that explain snapshots.
        counted: By rank, which programs ran.

    Returns:
        What is known, with the names of the first of these transcripts, and all ranks' recognitions of each step; None
        if nothing was to be recognised.
    """
    asked = [each for each in replayed if each.recognise]
    if not asked:
        return None
    found, failures = _Found(), list[str]()
    for result in [result for each in asked for result in _matching(each, failures)]:
        if len(result.of_ranks) != len(counted):
            failures.append(f"the replay of {result.steps[0]}:{result.steps[1]} says nothing about other ranks")
        for rank, steps in enumerate(result.of_ranks):
            found.take(rank, steps)
    first = asked[0]
    return Training(
        transcript=first.selection.transcript,
        draft="",
        seed=first.selection.seed,
        asked=first.recognise,
        begins=tuple(sorted({chosen.begin for each in asked for chosen in each.selection.chosen})),
        programs=found.programs(counted, failures),
        failures=tuple(dict.fromkeys(failures)),
    )


def _matching(replayed: Replayed, failures: list[str]) -> Iterable[ReplayResult]:
    """Yields the results of segments that matched; says of the others why nothing is known of them."""
    for begin in [chosen.begin for chosen in replayed.selection.chosen]:
        result = replayed.results.get(begin)
        if isinstance(result, ReplayResult) and result.verdict == "match":
            failures += [result.recognition_failed] if result.recognition_failed else []
            yield result
        elif result is not None:
            failures.append(f"the segment that begins with step {begin} was not replayed to its end")


class _Found:
    """What was recognised, by program, step and rank."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[tuple[int, int], Recognition]] = {}

    def take(self, rank: int, steps: Iterable[Recognition]) -> None:
        """Takes in what was recognised of a rank's steps."""
        for each in steps:
            self._steps.setdefault(each.tape, {})[each.step, rank] = each

    def programs(
        self, counted: Sequence[RunFacts | WeighbridgeError | None], failures: list[str]
    ) -> tuple[Program, ...]:
        """Returns every program that a step of some rank ran, and notes if others may have run."""
        ran: dict[str, int | None] = {}
        for each in counted:
            stepped = {p.digest: p.steps for p in each.programs if p.steps} if isinstance(each, RunFacts) else {}
            ran |= {tape: count + (ran.get(tape) or 0) for tape, count in stepped.items()}
            if not isinstance(each, RunFacts) or sum(stepped.values()) < each.steps:
                failures.append(UNCOUNTED)  # more programs than are listed
        ran = {**ran, **{tape: ran.get(tape) for tape in self._steps}}
        return tuple(
            Program(digest=tape, ran=count, steps=tuple(steps[key] for key in sorted(steps)))
            for tape, count in ran.items()
            for steps in [self._steps.get(tape, {})]
        )


def restated(findings: Iterable[Finding], trainings: Sequence[Training]) -> list[Finding]:
    """Returns findings about programs with what is recognised of the same program beside them, under `training`.

    They stay as grave as they are. A step is recognised by its values, with its data; such a finding is about what the
    program may do in every step, with any data, or about data, which recognition does not judge.
    """
    return [_restated(finding, trainings) if finding.id in RESTATED else finding for finding in findings]


def _restated(finding: Finding, trainings: Sequence[Training]) -> Finding:
    for training in trainings:
        for program in training.programs if training.transcript in finding.subject else ():
            if program.digest in finding.subject:
                steps = [each.step for each in program.steps if each.recognised]
                where = (
                    f" in {len(steps)} of {program.ran} steps: {', '.join(map(str, steps[:_SHOWN]))}" if steps else ""
                )
                return replace(finding, evidence={**finding.evidence, "training": f"{program.outcome}{where}"})
    return finding


def reasons(steps: Sequence[Recognition]) -> list[str]:
    """Returns each reason why a step is not recognised, or not known, once."""
    return list(dict.fromkeys(reason for each in steps for reason in each.reasons))
