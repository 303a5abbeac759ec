"""What the record of an outcome says: a status for each snapshot, what p rests on, and nothing of the content.

Statuses, kinds and outcomes come out of closed lists, and fractions are whole numbers of billionths or percent.
`outcome_record` has the encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from weighbridge.attest.outcome_terms import KEY_SIZE, SIZE_CLASSES, OutcomeError

BILLION = 10**9
NOT_STATED = 255
"""The class of hours or FLOPs about which a record says nothing."""

RecordStatus = Literal["complete", "withheld", "late", "aborted"]
SnapshotStatus = Literal[
    "explained", "explained given collectives", "mismatch", "unexplained", "unverified", "withheld", "late", "aborted"
]
GroupKind = Literal["random", "certain", "silent"]
RuleOutcome = Literal["holds", "violated", "undecided"]
Verdict = Literal["clean", "incomplete", "findings", "unchecked"]
Basis = Literal["strata", "hypergeometric", "eq1", "not defined"]

RECORD_STATUSES: tuple[RecordStatus, ...] = get_args(RecordStatus)
SNAPSHOT_STATUSES: tuple[SnapshotStatus, ...] = get_args(SnapshotStatus)
GROUP_KINDS: tuple[GroupKind, ...] = get_args(GroupKind)
RULE_OUTCOMES: tuple[RuleOutcome, ...] = get_args(RuleOutcome)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
BASES: tuple[Basis, ...] = get_args(Basis)


@dataclass(frozen=True, slots=True)
class ChipOutcome:
    """What became of one drawn chip; chips stand in the order in which they were drawn.

    Attributes:
        reachable: Whether its log could be read.
        verified: Whether it counts as verified.
        certain: Whether it was drawn with certainty, before the draw.
        snapshots: The status of each of its snapshots, in the order of its log.
    """

    reachable: bool
    verified: bool
    certain: bool
    snapshots: tuple[SnapshotStatus, ...]


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """One group of a draw from strata.

    Attributes:
        kind: How its chips were drawn.
        speed: Place of their speed in the terms.
        chips: Chips in it.
        drawn: Chips drawn of it.
        unverified: Those of them that did not verify after the draw was known.
    """

    kind: GroupKind
    speed: int
    chips: int
    drawn: int
    unverified: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """What follows from the rest of a record and its terms; probabilities in billionths, None where not defined.

    Attributes:
        p: Detection probability, rounded down.
        p_is: By which formula.
        p_proven: p by proven time alone, rounded down.
        not_drawn: That of the involved chips no more were drawn than w, rounded up.
        no_snapshot: That an involved chip holds no snapshot, rounded up.
        unseen: The bound on a violation that went unseen, rounded up.
        verdict: As a report's.
    """

    p: int | None
    p_is: Basis
    p_proven: int | None
    not_drawn: int | None
    no_snapshot: int | None
    unseen: int | None
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A record.

    Attributes:
        size: Number of its size class.
        nonce: Of this start of this inspection (32 bytes).
        key: The public key of the worker that made it.
        sealed: Commitment to the sealed report (32 bytes).
        status: Whether the inspection came to its end.
        population: Chips that the random sample was drawn from (C).
        drawn: Chips drawn at random (s).
        unverified: Those of them that did not verify after the draw was known (w).
        groups: Groups of a draw from strata; none of a plain draw.
        chips: Each drawn chip.
        violations: Places in the published list of the findings that are violations; 0 for one that it lacks.
        warnings: The same of warnings.
        rules: The outcome of each rule.
        hours: Classes of the sampled chips' hours that are explained, idle, exempt and unexplained.
        flops: Classes of the bounds on undeclared work: on these chips with and without believing their counters, and
            on all chips.
        chunks: Chance that one false chunk was not drawn, in percent, rounded up.
        unproven: The largest unproven share of a verified chip's period, in percent, rounded up.
        replayed: 0 if nothing was replayed; 2 if of each transcript some segment was replayed whole; else 1.
        derived: What follows from all that.
    """

    size: int
    nonce: bytes
    key: bytes
    sealed: bytes
    status: RecordStatus
    population: int
    drawn: int
    unverified: int
    groups: tuple[GroupOutcome, ...]
    chips: tuple[ChipOutcome, ...]
    violations: frozenset[int]
    warnings: frozenset[int]
    rules: tuple[RuleOutcome, ...]
    hours: tuple[int, int, int, int]
    flops: tuple[int, int, int]
    chunks: int
    unproven: int
    replayed: int
    derived: Derived

    def __post_init__(self) -> None:
        """Checks that every value has a place in the size class.

        Raises:
            OutcomeError: One has not: `outcome.overfull` where there are more of something than the class has room for.
        """
        if self.size not in SIZE_CLASSES:
            raise OutcomeError("the record of an outcome is of no size class")
        room, statuses = SIZE_CLASSES[self.size], sum(len(each.snapshots) for each in self.chips)
        for count, most, what in (
            (len(self.chips), room.chips, "chips"),
            (statuses, room.snapshots, "snapshots"),
            (len(self.groups), room.groups, "groups"),
            (len(self.rules), room.rules, "rules"),
        ):
            if count > most:
                raise OutcomeError(
                    f"a record of size class {self.size} has room for {most} {what}, not for {count}; agree on a "
                    "larger class before the next start",
                    code="outcome.overfull",
                )
        if any(len(each) != KEY_SIZE for each in (self.nonce, self.key, self.sealed)):
            raise OutcomeError("nonce, key and commitment of a record have 32 bytes each")
