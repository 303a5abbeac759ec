"""Where each run began: what entered its W_0 from outside, and whether a run that is known held it.

A replay shows that a state led to another one. It cannot show where content came from that was there at the beginning.
So what entered is compared, storage by storage, with the state of the declared parent; or, where none is declared,
with what every other run of the inspection had made by training, because a run that was cut in two looks like that.

That a parent held something proves nothing by itself: its transcript may be made up, since no chip has to show it. So
the steps that led to the declared state are replayed, and what a whole chain of runs chose is counted together: each of
them may stay below every budget.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from verifier.model.facts import TranscriptFacts
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.parentage import Parent, unexplained

MOST_ANCESTORS = 64
"""Parents, and parents of parents, that are followed."""

ReplayTo = Callable[[OpenedTranscript, int, bytes], ReplayResult | WeighbridgeError]
"""Replays a transcript to the state before a step, under a salt; returns why not if it cannot."""

ReplaySteps = Callable[[OpenedTranscript, tuple[int, int]], ReplayResult | WeighbridgeError]
"""Replays the steps (first, last + 1) of a transcript; returns why not if it cannot."""

Fetch = Callable[[TranscriptFacts, str], TranscriptFacts]
"""Fetches the transcript with an identifier from the Prover of another one."""


@dataclass(kw_only=True, slots=True)
class Lineage:
    """Where one run began.

    Attributes:
        id: Its transcript.
        entered: What entered W_0 from outside, as (bytes, keyed digest); empty if a recorded program made all of it.
        parent: The parent that the draft declares; an error if that is malformed.
        found: The parent's transcript, or why there is none.
        trained: Of a run with a parent: what of `entered` its weights began with, and averages of them.
        held: What the parent held at the declared step, or why that cannot be known.
        made: What the parent and its own parents made of that by training; the rest it was given, or it is a statistic
            of what it was given, and explains no weights.
        replayed: What the replay of the parent's last steps before that state found, or why there was none; None if
            it was not tried, because the parent is one rank of a job.
        cut: Whether the parent is an ancestor too many, so that where it began was not asked.
        runs: How many transcripts `chosen` is of, this one included.
        chosen: Of a run that goes on from others, or is the first rank of a job, and that no other one declares as its
            parent: by channel, the bits that all of them chose, or why they could not be counted.
        elsewhere: If no parent is declared: other runs of the inspection that had made some of it by training, and how
            many bytes.
    """

    id: str
    entered: Counter[Leaf] = field(default_factory=Counter)
    parent: Parent | WeighbridgeError | None = None
    found: OpenedTranscript | WeighbridgeError | None = None
    trained: Counter[Leaf] = field(default_factory=Counter)
    held: Counter[Leaf] | WeighbridgeError | None = None
    made: Counter[Leaf] | WeighbridgeError | None = None
    replayed: ReplayResult | WeighbridgeError | None = None
    cut: bool = False
    runs: int = 1
    chosen: Mapping[str, float] | WeighbridgeError = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes that entered."""
        return sum(size * count for (size, _), count in self.entered.items())


def trace(
    transcripts: Iterable[TranscriptFacts],
    fetch: Fetch,
    replay_to: ReplayTo,
    replay_steps: ReplaySteps,
    *,
    salt: bytes | None = None,
) -> list[Lineage]:
    """Finds out where each of some runs began, and their parents, and so on.

    Args:
        transcripts: The runs.
        fetch: Fetches a parent.
        replay_to: Replays to a state that is not kept as a checkpoint.
        replay_steps: Replays the steps that led to a state.
        salt: Keys the digests of states, 32 bytes; by default a fresh one.
    """
    salt = salt or secrets.token_bytes(32)
    waiting = [facts for facts in transcripts if isinstance(facts.opened, OpenedTranscript)]
    seen = {facts.id for facts in waiting}
    most = len(seen) + MOST_ANCESTORS
    states = _States(salt, replay_to)
    found: dict[str, Lineage] = {}
    for facts in waiting:  # grows while it is walked
        if facts.id in found or not isinstance(facts.opened, OpenedTranscript):
            continue
        line = found[facts.id] = _begin(facts.opened, salt)
        if isinstance(line.parent, Parent):
            ancestor = fetch(facts, line.parent.transcript)
            line.found = ancestor.opened
            if isinstance(ancestor.opened, OpenedTranscript):
                if line.parent.step <= ancestor.opened.steps:
                    line.held = states.before(ancestor.opened, line.parent.step)
                    line.made = states.before(ancestor.opened, line.parent.step, made=True)
                    line.replayed = _led_to(ancestor.opened, line.parent.step, replay_steps)
                line.cut = ancestor.id not in seen and len(seen) >= most
                if ancestor.id not in seen and not line.cut:
                    seen.add(ancestor.id)
                    waiting.append(ancestor)
    everybody = {facts.id: facts.opened for facts in waiting if isinstance(facts.opened, OpenedTranscript)}
    parents = {line.parent.transcript for line in found.values() if isinstance(line.parent, Parent)}
    for line in found.values():
        if line.entered and line.parent is None:
            line.elsewhere = _elsewhere(line, everybody, states)
        if line.id not in parents:
            _count(line, found, everybody)
    together = {line.id: _made(line, found) for line in found.values()}
    for line in found.values():
        line.made = together[line.id]
    return list(found.values())


def _led_to(parent: OpenedTranscript, step: int, replay_steps: ReplaySteps) -> ReplayResult | WeighbridgeError | None:
    """Replays the steps of a parent from the checkpoint before a state to that state."""
    try:
        if parent.coordinate() is not None:
            return None
    except WeighbridgeError as error:
        return error
    return replay_steps(parent, (max((c for c in parent.checkpoint_steps if c < step), default=0), step))


def _count(line: Lineage, lines: Mapping[str, Lineage], everybody: Mapping[str, OpenedTranscript]) -> None:
    """Counts what a run, its ancestors and the other ranks of its job chose together, the first of them first."""
    chain, at = dict[str, OpenedTranscript](), line
    while isinstance(at.parent, Parent) and at.parent.transcript in lines and at.parent.transcript not in chain:
        at = lines[at.parent.transcript]
        chain[at.id] = everybody[at.id]
    before = [*reversed(chain.values())]
    ranks = _ranks(everybody[line.id], everybody)
    if ranks and ranks[0].digest != line.id:
        return
    before += [each for each in ranks[1:] if each.digest not in chain]
    line.runs = len(before) + 1
    if before:
        try:
            line.chosen = everybody[line.id].chosen_after([each.path for each in before])
        except WeighbridgeError as error:
            line.chosen = error


def _made(line: Lineage, lines: Mapping[str, Lineage]) -> Counter[Leaf] | WeighbridgeError | None:
    """Returns what a run's parent made, and what that one's parents did.

    What the parent itself was given as no weights stays that, however long it kept it.
    """
    if not isinstance(line.made, Counter):
        return line.made
    made, seen, at = Counter[Leaf](), {line.id}, line
    while isinstance(at.parent, Parent) and isinstance(at.made, Counter):
        parent = lines.get(at.parent.transcript)
        examined = parent is not None and isinstance(parent.made, Counter)
        given = parent.entered - parent.trained if parent is not None and examined else Counter[Leaf]()
        made.update({leaf: count for leaf, count in at.made.items() if leaf not in given})
        if parent is None or parent.id in seen:
            break
        seen.add(parent.id)
        at = parent
    return made


def _ranks(transcript: OpenedTranscript, everybody: Mapping[str, OpenedTranscript]) -> list[OpenedTranscript]:
    """Returns the transcripts of a job's ranks, the first first; none if it is of no job."""
    own = _rank(transcript)
    if own is None:
        return []
    ranks = [(rank, each) for each in everybody.values() if (rank := _rank(each)) is not None and rank[0] == own[0]]
    return [each for _, each in sorted(ranks, key=lambda item: (item[0][1], item[1].digest))]


def _rank(transcript: OpenedTranscript) -> tuple[bytes, int] | None:
    """Returns a transcript's job and its rank in it."""
    try:
        coordinate = transcript.coordinate()
    except WeighbridgeError:
        return None  # the comparison of the ranks says so
    return None if coordinate is None else (coordinate.job.id, coordinate.rank)


def _begin(transcript: OpenedTranscript, salt: bytes) -> Lineage:
    line = Lineage(id=transcript.digest)
    try:
        line.parent = transcript.parent()
        line.entered = transcript.entered(salt)
        if line.entered and line.parent is not None:
            line.trained = transcript.entered(salt, trained=True)
    except WeighbridgeError as error:
        line.parent = error
    return line


def _elsewhere(line: Lineage, everybody: dict[str, OpenedTranscript], states: _States) -> dict[str, int]:
    """Says which other runs had made by training what entered this one."""
    own, out = everybody[line.id], {}
    for name, other in everybody.items():
        if other.draft_digest == own.draft_digest:
            continue  # the same run, further on
        made = states.trained(other)
        if known := line.bytes - unexplained(line.entered, made):
            out[name] = known
    return out


class _States:
    """What runs held at their states: read from checkpoints, or replayed."""

    def __init__(self, salt: bytes, replay_to: ReplayTo) -> None:
        self._salt, self._replay_to = salt, replay_to
        self._trained: dict[str, Counter[Leaf]] = {}
        self._replayed: dict[tuple[str, int], ReplayResult | WeighbridgeError] = {}

    def before(
        self, transcript: OpenedTranscript, step: int, *, made: bool = False
    ) -> Counter[Leaf] | WeighbridgeError:
        """What a run held before a step, or only what it made of that."""
        try:
            if step in transcript.checkpoint_steps:
                return transcript.held(step, self._salt, made=made)
        except WeighbridgeError as error:
            return error
        at = transcript.digest, step
        if at not in self._replayed:
            self._replayed[at] = self._replay_to(transcript, step, self._salt)
        answer = self._replayed[at]
        if isinstance(answer, WeighbridgeError):
            return answer
        if answer.verdict != "match" or answer.live is None:
            return ReplayWorkerError(f"the replay to step {step} ended with the verdict {answer.verdict}")
        leaves = answer.made if made else answer.live
        if leaves is None:
            return ReplayWorkerError("the programs do not tell what the run made of the state that it held")
        return Counter((size, bytes.fromhex(digest)) for size, digest in leaves)

    def trained(self, transcript: OpenedTranscript) -> Counter[Leaf]:
        """What a run made and held at any checkpoint or at its end, and did not hold before its first step.

        What it held because a step was given it is left out: two honest runs may be given the same batch. So is what
        cannot be looked at, which can only make less known.
        """
        if transcript.digest not in self._trained:
            made: Counter[Leaf] = Counter()
            first = self.before(transcript, 1) if transcript.steps else Counter()
            if not isinstance(first, WeighbridgeError):
                for step in {*(c for c in transcript.checkpoint_steps if c > 1), transcript.steps} - {0, 1}:
                    state = self.before(transcript, step, made=True)
                    made |= Counter() if isinstance(state, WeighbridgeError) else state
                for known in first:
                    made.pop(known, None)
            self._trained[transcript.digest] = made
        return self._trained[transcript.digest]
