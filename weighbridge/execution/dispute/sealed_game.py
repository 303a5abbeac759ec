"""The game of a dispute inside a sealed worker, which has both parties' files and plays for both.

It is the game of `game`, with the same judgement of the first leaf that differs. What each party would send in turn,
the worker takes out of what that party committed to before: its claim, and an opening made of its run in a confined
process. A party whose files are not there, or do not give what it has to show, forfeits, as one that is silent does.

No reader sees what a party gave, so none could compare it with what that party signed: the worker does. The run is the
transcript that the subject names, signed by the key of the terms, and the claim is about that transcript's record of
the step. Otherwise its party forfeits, for it could escape with any other run. Whether the challenger stands by a
record of its own, or disputes the defender's, the subject says too, and not its claim.

Both parties agreed on the memory and the time that each one's run may take, and the worker has them (`launcher`). So a
party whose process exceeds them, or dies, forfeits as well: it would escape if that said nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from weighbridge.attest.sealed_dispute import PARTIES, DisputeTerms
from weighbridge.attest.sealed_subject import Subject
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution.dispute import moves, sealed_files
from weighbridge.execution.dispute.asking import Claim, Judgement, Traced, Verdict, forfeited, split
from weighbridge.execution.dispute.confidential import unmarked
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER, Dispute
from weighbridge.execution.dispute.messages import Answer, Challenge, Shown, unsigned
from weighbridge.execution.dispute.recorded import Recorded
from weighbridge.execution.dispute.rulings import judgements

Files = tuple[Path | None, Path | None]
"""Where the files of challenger and defender lie; None of a party that gave none in time."""


@dataclass(frozen=True)
class Processes:
    """Confined processes that read what a party gave, each with what is left of that party's memory and time.

    One that dies or exceeds them raises `ReplayWorkerError`, or is told by a judgement with that error's code. What
    fails through no party's fault raises anything but a `WeighbridgeError`: then there is no ruling.

    Attributes:
        record: Returns what a transcript says of a step. Takes party, path, step.
        opening: Returns the opening of a leaf of a step of a transcript; None if the step ends before it. Takes party,
            path, step, leaf.
        judge: Judges a claim. Takes party, claim, opening.
    """

    record: Callable[[int, Path, int], Recorded]
    opening: Callable[[int, Path, int, int], bytes | None]
    judge: Callable[[int, Claim, bytes], Judgement]


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


def play(terms: DisputeTerms, files: Files, processes: Processes) -> Played:
    """Plays a dispute to its end.

    Args:
        terms: What both parties agreed on.
        files: What each gave.
        processes: Read it.
    """
    claims = [_claimed(terms, party, files[party], processes) for party in (CHALLENGER, DEFENDER)]
    forfeits: dict[int, Verdict] = {party: "forfeit" for party in (CHALLENGER, DEFENDER) if claims[party] is None}
    if forfeits:
        return Played(forfeits)
    asked, own = claims
    assert asked is not None
    assert own is not None
    keys = (terms.challenger_signer, terms.defender_signer)  # what they signed binds the parties, as supplements do
    dispute = Dispute(keys, bound=True)
    try:
        _take(dispute, CHALLENGER, asked)
        _take(dispute, DEFENDER, _answer(own, asked))
        while dispute.due()[1] != "nothing":
            party, _ = dispute.due()
            at = files[party]
            assert at is not None
            assert dispute.leaf is not None
            _take(dispute, party, Shown(opening=_opened(processes, party, at, asked.step, dispute.leaf)))
    except _ForfeitError as error:
        return Played({error.party: "forfeit"})
    judges = [partial(_judged, processes, party) for party in (CHALLENGER, DEFENDER)]
    found: dict[int, Verdict] = {party: each.verdict for party, each in judgements(dispute, *judges)}
    judged = dispute.common and not dispute.equal and not dispute.alike
    return Played(found, dispute.leaf if judged else None, asked.tape if judged else b"")


def _claimed(terms: DisputeTerms, party: int, files: Path | None, processes: Processes) -> Challenge | None:
    """Returns a party's claim about its record of the step of the terms; None if it shows none."""
    if files is None:
        return None
    name, run = PARTIES[party], files / sealed_files.RUN
    try:
        subject, said = Subject.opened(sealed_files.subject(files), terms), sealed_files.claim(files)
        given = sealed_files.transcript(run)
    except (WeighbridgeError, OSError):
        return None
    if subject is None or said.step != subject.step or given != subject.transcript_of(name):
        return None
    try:
        found = processes.record(party, run, subject.step)
    except WeighbridgeError:
        return None
    agreed = (subject.transcript_of(name), terms.signer_of(name))
    if (found.transcript, found.signer) != agreed or not found.bears(said):
        return None
    own = subject.challenger != subject.defender  # a challenger that says so itself would escape from its own record
    return replace(said, terms=unmarked(said.terms), own=own)


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


def _opened(processes: Processes, party: int, files: Path, step: int, leaf: int) -> bytes:
    """Returns what a party's run shows of a leaf; nothing, which shows nothing, if it does not get there."""
    try:
        return processes.opening(party, files / sealed_files.RUN, step, leaf) or b""
    except WeighbridgeError:
        return b""


def _judged(processes: Processes, party: int, claim: Claim, opening: bytes) -> Judgement:
    """Returns what is said of a party's claim, in what is left of what its run may take."""
    try:
        found = processes.judge(party, claim, opening)
    except ReplayWorkerError as error:
        return forfeited(error.message)
    return forfeited(found.reason) if found.code == ReplayWorkerError.code else found
