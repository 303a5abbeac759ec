"""Where each run began: what entered its W_0 from outside, and whether a run that is known held it.

A replay shows that a state led to another one. It cannot show where content came from that was there at the beginning.
So what entered is compared, storage by storage, with the state of the declared parent; or, where none is declared,
with what every other run of the inspection had made by training, because a run that was cut in two looks like that.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from verifier.model.facts import TranscriptFacts
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution.replay import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.parentage import Parent, unexplained

MOST_ANCESTORS = 64
"""Parents of parents that are followed."""

ReplayTo = Callable[[OpenedTranscript, int, bytes], ReplayResult | WeighbridgeError]
"""Replays a transcript to the state before a step, under a salt; returns why not if it cannot."""

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
        held: What the parent held at the declared step, or why that cannot be known.
        elsewhere: If no parent is declared: other runs of the inspection that had made some of it by training, and how
            many bytes.
    """

    id: str
    entered: Counter[Leaf] = field(default_factory=Counter)
    parent: Parent | WeighbridgeError | None = None
    found: OpenedTranscript | WeighbridgeError | None = None
    held: Counter[Leaf] | WeighbridgeError | None = None
    elsewhere: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes that entered."""
        return sum(size * count for (size, _), count in self.entered.items())


def trace(
    transcripts: Iterable[TranscriptFacts], fetch: Fetch, replay_to: ReplayTo, *, salt: bytes | None = None
) -> list[Lineage]:
    """Finds out where each of some runs began, and their parents, and so on.

    Args:
        transcripts: The runs.
        fetch: Fetches a parent.
        replay_to: Replays to a state that is not kept as a checkpoint.
        salt: Keys the digests of states, 32 bytes; by default a fresh one.
    """
    salt = salt or secrets.token_bytes(32)
    waiting = [facts for facts in transcripts if isinstance(facts.opened, OpenedTranscript)]
    most = len(waiting) + MOST_ANCESTORS
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
                if len(waiting) < most:
                    waiting.append(ancestor)
    everybody = {facts.id: facts.opened for facts in waiting if isinstance(facts.opened, OpenedTranscript)}
    for line in found.values():
        if line.entered and line.parent is None:
            line.elsewhere = _elsewhere(line, everybody, states)
    return list(found.values())


def _begin(transcript: OpenedTranscript, salt: bytes) -> Lineage:
    line = Lineage(id=transcript.digest)
    try:
        line.parent = transcript.parent()
        line.entered = transcript.entered(salt)
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

    def before(self, transcript: OpenedTranscript, step: int) -> Counter[Leaf] | WeighbridgeError:
        """What a run held before a step."""
        try:
            if step in transcript.checkpoint_steps:
                return transcript.held(step, self._salt)
        except WeighbridgeError as error:
            return error
        answer = self._replay_to(transcript, step, self._salt)
        if isinstance(answer, WeighbridgeError):
            return answer
        if answer.verdict != "match" or answer.live is None:
            return ReplayWorkerError(f"the replay to step {step} ended with the verdict {answer.verdict}")
        return Counter((size, bytes.fromhex(digest)) for size, digest in answer.live)

    def trained(self, transcript: OpenedTranscript) -> Counter[Leaf]:
        """What a run held at any checkpoint or at its end, and did not hold before its first step.

        What cannot be looked at is left out: it can only make less known.
        """
        if transcript.digest not in self._trained:
            made: Counter[Leaf] = Counter()
            first = self.before(transcript, 1) if transcript.steps else Counter()
            if not isinstance(first, WeighbridgeError):
                for step in {*(c for c in transcript.checkpoint_steps if c > 1), transcript.steps} - {0, 1}:
                    state = self.before(transcript, step)
                    made |= Counter() if isinstance(state, WeighbridgeError) else state
                for known in first:
                    made.pop(known, None)
            self._trained[transcript.digest] = made
        return self._trained[transcript.digest]
