"""The game of a dispute inside a sealed worker, which has both parties' files and plays for both.

It is the game of `game`, with the same judgement of the first leaf that differs. What each party would send in turn,
the worker takes out of what that party committed to before: its claim, and an opening made of its run in a confined
process. A party whose files are not there, or do not give what it has to show, forfeits, as one that is silent does.
Of a run that this worker has not the memory or the time to execute, it cannot say anything: no party loses by that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from weighbridge.attest.sealed_dispute import DisputeTerms, step_of
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution.dispute import moves, sealed_files
from weighbridge.execution.dispute.asking import Traced, Verdict, split
from weighbridge.execution.dispute.confidential import unmarked
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER, Dispute
from weighbridge.execution.dispute.messages import Answer, Challenge, Shown, unsigned
from weighbridge.execution.dispute.rulings import Judge, judgements

Opener = Callable[[Path, int, int], bytes | None]
"""Returns the opening of a leaf of a step of a transcript; None if the step ends before it. Takes path, step, leaf."""

Files = tuple[Path | None, Path | None]
"""Where the files of challenger and defender lie; None of a party that gave none in time."""


@dataclass(frozen=True)
class Played:
    """What came of a game.

    Attributes:
        verdicts: By party, what is said of its claim, if anything.
        leaf: The leaf that was judged; None if none was.
        tape: The program that both parties named; nothing if no leaf was judged.
    """

    verdicts: dict[int, Verdict]
    leaf: int | None = None
    tape: bytes = b""


class _ForfeitError(Exception):
    """A party did not show what it had to; only ever caught here."""

    def __init__(self, party: int) -> None:
        super().__init__(party)
        self.party = party


def play(terms: DisputeTerms, files: Files, opener: Opener, judge: Judge) -> Played:
    """Plays a dispute to its end.

    Args:
        terms: What both parties agreed on.
        files: What each gave.
        opener: Makes openings, in a confined process.
        judge: Judges claims, in a confined process.
    """
    claims = [_claimed(terms, each) for each in files]
    forfeits: dict[int, Verdict] = {party: "forfeit" for party in (CHALLENGER, DEFENDER) if claims[party] is None}
    if forfeits:
        return Played(forfeits)
    asked, own = claims
    assert asked is not None
    assert own is not None
    dispute = Dispute((terms.challenger, terms.defender))
    stuck = set[int]()
    try:
        _take(dispute, CHALLENGER, asked)
        _take(dispute, DEFENDER, _answer(own, asked))
        while dispute.due()[1] != "nothing":
            party, _ = dispute.due()
            at = files[party]
            assert at is not None
            assert dispute.leaf is not None
            opening = _opened(opener, at, asked.step, dispute.leaf)
            stuck |= {party} if opening is None else set()
            _take(dispute, party, Shown(opening=opening or b""))
    except _ForfeitError as error:
        return Played({error.party: "forfeit"})
    found: dict[int, Verdict] = {
        party: "undecided" if party in stuck and each.verdict == "forfeit" else each.verdict
        for party, each in judgements(dispute, judge)
    }
    judged = dispute.common and not dispute.equal and not dispute.alike
    return Played(found, dispute.leaf if judged else None, asked.tape if judged else b"")


def _claimed(terms: DisputeTerms, files: Path | None) -> Challenge | None:
    """Returns a party's claim about the step of the terms; None if it shows none."""
    if files is None:
        return None
    try:
        step, said = step_of(sealed_files.subject(files), terms), sealed_files.claim(files)
    except (WeighbridgeError, OSError):
        return None
    return replace(said, terms=unmarked(said.terms)) if step is not None and said.step == step else None


def _answer(own: Challenge, asked: Challenge) -> Answer:
    """Returns what the defender would answer, of what it claims of the same step."""
    mine = Traced(
        terms=own.terms, tape=own.tape, state=own.state, record=own.record, log=own.log, leaves=split(own.leaves),
        opening=None, parted="", seconds=0.0, draft=own.draft,
    )  # fmt: skip
    return moves.answer(mine, asked, own.supplements)


def _take(dispute: Dispute, party: int, content: Challenge | Answer | Shown) -> None:
    try:
        dispute.take(unsigned(dispute.head, content, dispute.parties[party]))
    except WeighbridgeError:  # a supplement that it shows is forged, or of another step
        raise _ForfeitError(party) from None


def _opened(opener: Opener, files: Path, step: int, leaf: int) -> bytes | None:
    """Returns what a party's run shows of a leaf.

    Returns:
        The opening; nothing if the run cannot be executed so far, which shows nothing; None if the process that did so
        ran out of its memory or time, or died.
    """
    try:
        return opener(files / sealed_files.RUN, step, leaf) or b""
    except WeighbridgeError as error:
        return None if error.reason == ReplayWorkerError.code else b""
