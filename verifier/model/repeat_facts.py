"""Which segments of a run were due while it went on, and whether the Prover committed to their logs in time.

What a run declares, how a beacon names segments and what is committed to is `weighbridge.attest.repeats`. Here it is
compared with what chips logged and with the times at which the witness had that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from verifier.model.facts import Contact, LogFacts, digest, number
from verifier.model.segments import Segment, segments
from verifier.model.sessions import ATTACHED, DETACHED, DRAFT
from weighbridge.attest import repeats
from weighbridge.attest.beacon import BeaconInfo
from weighbridge.attest.repeats import Declared, Heads
from weighbridge.attest.tokens import Token, event_name
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript

State = Literal[
    "open", "not due", "committed", "repeated",
    "unlogged", "unwitnessed", "unvalued", "missing", "late", "unanswered", "differs",
]  # fmt: skip
"""`open`: it is not over, or the time for its commitment is not. `committed`: in time; its logs were not asked for now.
`repeated`: the Prover's logs are those that it committed to. The others do not count as verified: the chip did not log
its end, or not so that its witness knew it soon; the beacon's value is not here; there is no commitment, or it came
late; the logs were not handed out, or are others."""
UNREPEATED: frozenset[State] = frozenset(
    {"unlogged", "unwitnessed", "unvalued", "missing", "late", "unanswered", "differs"}
)


@dataclass(kw_only=True, slots=True)
class Repeat:
    """One segment.

    Attributes:
        begin: Its first step.
        end: The step after its last one.
        state: What became of it.
        index: Index of its event in the chip's log; None if there is none.
        round: Round of the beacon that decides; None if no time is known.
        by_ms: When the witness must have the commitment, in milliseconds since 1970.
        committed: Digests of the commitments that came in time, in the order of the log.
        came_ms: When the witness had the first commitment; None if it has none.
        told: The commitment that follows from the logs that the Prover handed out; None if it did not.
    """

    begin: int
    end: int
    state: State = "open"
    index: int | None = None
    round: int | None = None
    by_ms: int | None = None
    committed: list[bytes] = field(default_factory=list)
    came_ms: int | None = None
    told: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data for the report."""
        return {
            "begin": self.begin, "end": self.end, "state": self.state, "entry": self.index, "round": self.round,
            "by_ms": self.by_ms, "came_ms": self.came_ms,
        }  # fmt: skip


@dataclass(kw_only=True, slots=True)
class RunRepeats:
    """The segments of one run that declares repeats.

    Attributes:
        transcript: Identifier of the transcript.
        ranks: Those of all ranks of its job that are known, itself among them. They repeat together, so what one of
            them cannot show of a segment none can.
        chips: UEIDs of the drawn chips that logged the run.
        declared: What its draft declares, or why that cannot be read.
        known: Whether the Verifier has the beacon.
        segments: Its segments, ascending.
        abandoned: (chip UEID, log index) of events about segments that the transcript does not have.
    """

    transcript: str
    chips: list[bytes]
    declared: Declared | WeighbridgeError
    known: bool = False
    segments: list[Repeat] = field(default_factory=list)
    abandoned: list[tuple[bytes, int]] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)

    @property
    def unrepeated(self) -> list[Repeat]:
        """The segments that do not count as verified."""
        return [each for each in self.segments if each.state in UNREPEATED]

    @property
    def withheld(self) -> bool:
        """Whether the chips of the run do not count as verified."""
        return bool(self.unrepeated or self.abandoned)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data for the report."""
        said = self.declared
        return {
            "transcript": self.transcript,
            "chips": [ueid.hex() for ueid in self.chips],
            "declared": None if isinstance(said, WeighbridgeError) else {**said.to_map(), "beacon": said.beacon.hex()},
            "beacon_known": self.known,
            "segments": [each.to_json() for each in self.segments if each.state != "not due"],
            "not_due": sum(each.state == "not due" for each in self.segments),
            "abandoned": [[ueid.hex(), index] for ueid, index in self.abandoned],
        }


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of a chip's log.

    Attributes:
        log: The log.
        index: Its index.
        token: What it says.
        own: Whether the run's draft is the newest one before it.
    """

    log: LogFacts
    index: int
    token: Token
    own: bool

    @property
    def name(self) -> str:
        return event_name(self.token) or ""


def placed(
    transcript: OpenedTranscript,
    declared: Declared,
    logs: Sequence[LogFacts],
    info: BeaconInfo,
    *,
    reached: int,
    others: Set[bytes] = frozenset(),
) -> RunRepeats:
    """Finds the events of a run, and from the witness's times the rounds that decide about its segments.

    Args:
        transcript: The run.
        declared: What it declares.
        logs: Logs of chips that logged its draft.
        info: The beacon that it names.
        reached: Segments that end before this step had ended when the newest snapshot was taken.
        others: Running heads of other runs.
    """
    events = [event for log in logs for event in _events(log, transcript.draft_digest)]
    found = RunRepeats(
        transcript=transcript.digest, chips=[log.chip.ueid for log in logs], declared=declared, known=True
    )
    after = {transcript.head(step): step + 1 for step in range(transcript.steps)}
    heads = set(after)
    known = heads | others
    over = transcript.manifest.complete and all(_is_over(log, transcript.draft_digest) for log in logs)
    matched = [event for event in events if event.name == repeats.SEGMENT and _said(event) in heads]
    # What a chip logged as an end stays one: a manifest that leaves out its checkpoint would draw for it once more.
    edges = {0, *(end for _, end in segments(transcript)), *(after[_said(event)] for event in matched)}
    found.segments = [Repeat(begin=begin, end=end) for begin, end in pairwise(sorted(edges))]
    ends = {transcript.head(each.end - 1): each for each in found.segments}
    for event in events:
        strange = event.own and event.name == repeats.SEGMENT and _said(event) not in known
        if strange and (over or event.index < _last(matched)):  # else it may be of steps that are not declared yet
            found.abandoned.append((event.log.chip.ueid, event.index))
    for event in matched:
        segment = ends.get(_said(event))
        if segment is not None and segment.index is None:
            segment.index = event.index
            _time(segment, event, declared, info)
    for segment in found.segments:
        if segment.index is None:
            segment.state = "unlogged" if over or segment.end < reached else "open"
        elif segment.by_ms is not None:
            _commitments(segment, events, segment.by_ms)
    return found


def decide(segment: Repeat, due: bool | None, asked_ms: int) -> None:
    """Says what became of a segment whose round is known.

    Args:
        segment: The segment.
        due: Whether the beacon names it; None if its value is not here.
        asked_ms: When the inspection turned to the chip; later commitments are none of its business.
    """
    assert segment.by_ms is not None
    if due is False:
        segment.state = "not due"
    elif due and segment.committed:
        segment.state = "committed"
    elif segment.by_ms >= asked_ms:
        segment.state = "open"
    elif due is None:
        segment.state = "unvalued"
    else:
        segment.state = "missing" if segment.came_ms is None else "late"


def compare(segment: Repeat, draft: bytes, heads: Heads, logs: Sequence[bytes] | None) -> None:
    """Compares a commitment that came in time with the logs that the Prover hands out.

    Args:
        segment: The segment.
        draft: Digest of the draft.
        heads: The running heads around it.
        logs: Digests of the logs; None if some did not come.
    """
    if logs is None:
        segment.state = "unanswered"
        return
    segment.told = repeats.commitment(draft, heads, logs)
    # To several different ones it may have committed to choose among them later: each is in the chip's log for good.
    segment.state = "repeated" if set(segment.committed) == {segment.told} else "differs"


def heads_of(transcript: OpenedTranscript, segment: Segment) -> Heads:
    """Returns the running heads around a segment."""
    return transcript.head(segment[0] - 1), transcript.head(segment[1] - 1)


def logs_of(transcript: OpenedTranscript, logs: Sequence[LogFacts]) -> list[LogFacts]:
    """Returns the logs in which a run's draft stands."""
    return [log for log in logs if any(True for _ in _events(log, transcript.draft_digest))]


def _events(log: LogFacts, draft: bytes) -> Iterator[_Event]:
    """Yields the events of a chip's log from that of a draft on."""
    begun = own = False
    for index, entry in enumerate(log.entries):
        if isinstance(entry.verified, WeighbridgeError) or event_name(token := entry.verified.token) is None:
            continue
        if event_name(token) == DRAFT:
            own = digest(token, "digest") == draft
            begun = begun or own
        if begun:
            yield _Event(log, index, token, own)


def _said(event: _Event) -> bytes:
    return digest(event.token, "digest")


def _last(events: Sequence[_Event]) -> int:
    return max((event.index for event in events), default=-1)


def _is_over(log: LogFacts, draft: bytes) -> bool:
    """Whether no workload is attached to the chip any more, or one that has begun another run."""
    attached, over = False, True
    for entry in log.entries:
        token = None if isinstance(entry.verified, WeighbridgeError) else entry.verified.token
        if token is None or token.kind not in ("boot", "event"):
            continue
        name = event_name(token)
        if token.kind == "boot" or name in (ATTACHED, DETACHED):
            attached = name == ATTACHED
            over = not attached
        elif name == DRAFT:
            over = not attached or digest(token, "digest") != draft
    return over


def _contact(log: LogFacts, index: int) -> Contact | None:
    return next((contact for contact in log.contacts if contact.size > index), None)


def _time(segment: Repeat, event: _Event, declared: Declared, info: BeaconInfo) -> None:
    """Sets the round of a segment, if the witness had its event soon by the chip's own clock."""
    contact, head = _contact(event.log, event.index), event.log.head
    read_ms = 0 if isinstance(head, WeighbridgeError) else head.token.time_ms
    seen_ms = read_ms if contact is None else contact.chip_ms
    if (seen_ms - event.token.time_ms) / _speed(event) > declared.delay_s * 1000:
        segment.state = "unwitnessed"
    elif contact is not None:
        segment.round = info.round_after(contact.time_s * 1000)
        segment.by_ms = info.time_ms(segment.round) + declared.delay_s * 1000


def _speed(event: _Event) -> float:
    """Seconds of the chip's clock in one of the world, as the boot says."""
    for entry in reversed(event.log.entries[: event.index]):
        if not isinstance(entry.verified, WeighbridgeError) and entry.verified.token.kind == "boot":
            return max(1, number(entry.verified.token, "clock_milli")) / 1000
    return 1.0


def _commitments(segment: Repeat, events: Sequence[_Event], by_ms: int) -> None:
    for event in events:
        if repeats.committed_segment(event.name) != segment.begin:
            continue
        contact = _contact(event.log, event.index)
        if contact is None:
            continue
        segment.came_ms = contact.time_s * 1000 if segment.came_ms is None else segment.came_ms
        if contact.time_s * 1000 <= by_ms:
            segment.committed.append(_said(event))
