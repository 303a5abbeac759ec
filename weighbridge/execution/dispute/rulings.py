"""What is ruled of each claim of a dispute whose parties have said all.

The referee judges claims and not parties: both may be false.
"""

from __future__ import annotations

from collections.abc import Callable

from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute.asking import Claim, Judgement, forfeited
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER, Dispute
from weighbridge.execution.dispute.messages import Course
from weighbridge.execution.dispute.moves import apart

Judge = Callable[[Claim, bytes], Judgement]

_NO_GROUND = Judgement(
    "undecided",
    "dispute.ground",
    "the parties do not agree on which step is disputed; compare the signed transcripts",
)


_NO_STEP = Judgement(
    "undecided",
    "dispute.ground",
    "the courses are equal, or they part in what a step begins with, or at a step that cannot be disputed; compare the "
    "signed transcripts",
)


_NO_DIFFERENCE = Judgement(
    "undecided",
    "dispute.records",
    "the parties name the same leaves and have other records of them; dispute that record without --own",
)


def judgements(dispute: Dispute, judge: Judge, defenders: Judge | None = None) -> list[tuple[int, Judgement]]:
    """Returns what is said of each claim of a dispute whose parties have said all.

    Args:
        dispute: The dispute.
        judge: Judges claims.
        defenders: Judges that of the defender, if not `judge` does.
    """
    if dispute.memory is not None:
        return dispute.memory.judgements()
    judges = (judge, defenders or judge)
    if dispute.apart:
        return [(party, _no_step(*dispute.courses)) for party in (CHALLENGER, DEFENDER)]
    if dispute.unanswered:
        return _unanswered(dispute, judge)
    if not dispute.common:
        return [(party, _NO_GROUND) for party in (CHALLENGER, DEFENDER)]
    if dispute.alike:
        return [(party, _NO_DIFFERENCE) for party in (CHALLENGER, DEFENDER)]
    found = []
    for party in (CHALLENGER, DEFENDER):
        claim = dispute.claim(party)
        if claim is not None:
            found.append((party, judges[party](claim, dispute.openings.get(party, b""))))
            if party == CHALLENGER and found[-1][1].code == "dispute.course":
                break  # the defender's claim rests on the program that the challenge names
    return found


def _no_step(one: Course, other: Course) -> Judgement:
    try:
        why = apart(one.terms, other.terms)
    except FormatError:
        why = ""
    return Judgement("undecided", "dispute.slices", why) if why else _NO_STEP


def _unanswered(dispute: Dispute, judge: Judge) -> list[tuple[int, Judgement]]:
    """Rules on a challenge that the defender says is about something else than the step at which the courses part."""
    claim = dispute.claim(CHALLENGER)
    assert claim is not None, "there are courses and an answer"
    found = judge(claim, b"")
    if found.verdict == "admissible":
        return [(DEFENDER, forfeited("the defender shows no record of the step at which the courses part"))]
    if found.verdict == "undecided":
        return [(party, found) for party in (CHALLENGER, DEFENDER)]
    return [(CHALLENGER, found)]
