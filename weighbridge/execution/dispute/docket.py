"""All disputes of one referee: who may open how many, what is due in each, and what a lost one costs.

A party is a key that the referee was told of, with the organisation that it belongs to. A claim that is under dispute
is not disputed a second time: the second challenger is given the first one's dispute. If the first one forfeits, the
claim may be disputed again, so that no accomplice can take an honest challenger's place and fall silent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, NotFoundError, WeighbridgeError
from weighbridge.execution.dispute.asking import judge as judged_by_worker
from weighbridge.execution.dispute.case_files import CaseFiles
from weighbridge.execution.dispute.confidential import require_open
from weighbridge.execution.dispute.game import CHALLENGER, Dispute
from weighbridge.execution.dispute.memory_game import MemoryGame
from weighbridge.execution.dispute.memory_messages import Equality
from weighbridge.execution.dispute.messages import START, Challenge, Course, DisputeError, Message, Ruling, plain, read
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.refereeing import CLOCK, Referee
from weighbridge.execution.dispute.rulings import Judge

CLOCK_SAVED_S = 1.0
"""A referee that is killed loses at most so many seconds of a party's clock, to that party's advantage."""


class PartyError(WeighbridgeError):
    """A key is not that of a party to disputes here."""

    code = "dispute.party"


class DisputeLimitError(WeighbridgeError):
    """A party may open no dispute now, or send no message so large."""

    code = "dispute.limit"


@dataclass(frozen=True, kw_only=True)
class DocketLimits:
    """What a referee grants.

    Attributes:
        clock: Seconds that each party has for all its messages of one dispute.
        open: Disputes that one organisation may have opened and that have no ruling yet.
        lost: Lost disputes after which a key opens no more.
        size: Most bytes of a message.
        challenge: Most bytes of a challenge.
    """

    clock: float = CLOCK
    open: int = 4
    lost: int = 8
    size: int = 256 << 20
    challenge: int = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What the loser of a dispute owes: seconds that the referee worked, and bytes that it took from both parties."""

    dispute: str
    key: bytes
    organisation: str
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a dispute has come; see `GetDisputeResponse` in `referee.proto`."""

    parties: tuple[bytes, bytes]
    party: int
    due: str
    used: tuple[float, float]
    ruled: bool
    messages: int


class _Case:
    """A dispute. Once it is over, its messages lie on disk alone: any number of them may be large.

    Attributes:
        over: Whether its ruling is on disk.
    """

    def __init__(self, referee: Referee, files: CaseFiles, claim: bytes) -> None:
        self.referee, self.files, self.claim = referee, files, claim
        self.saved, self.over = referee.used, False
        self._by_course = isinstance(referee.dispute.messages[0].content, Course)
        self._count = 0

    @property
    def count(self) -> int:
        """How many messages there are, the ruling included."""
        return self._count if self.over else len(self.referee.log())

    def end(self) -> None:
        """Lets go of the messages; to be called once all of them and the ruling are on disk."""
        self._count = self.count
        self.referee.dispute = Dispute(self.referee.dispute.parties)
        self.over = True

    def messages(self) -> list[Message]:
        """Returns the messages of a dispute that is over."""
        return [read(data) for data in (*self.files.messages(), self.files.ruling())]

    @property
    def id(self) -> str:
        return self.files.directory.name

    def losers(self) -> list[bytes]:
        """The parties whose claim was refuted or forfeited; the challenger if there was nothing to refute."""
        ruling, parties = self._ruling(), self.referee.dispute.parties
        lost = [party for party, verdict, _, _ in ruling.claims if verdict in ("false", "forfeit")]
        if not lost and all(verdict == "admissible" for _, verdict, _, _ in ruling.claims):
            lost = [CHALLENGER]
        return [parties[party] for party in sorted(set(lost))]

    def given_up(self) -> bool:
        """Whether the challenger forfeited, so that nothing was said about the claim of the other party.

        A course says less than a challenge: what follows it may still be any lie. So one that ended with anything but
        an admissible claim of the challenger's is given up too.
        """
        if self.referee.ruling is None:
            return False
        said = [verdict for party, verdict, _, _ in self._ruling().claims if party == CHALLENGER]
        if self._by_course:
            return any(verdict != "admissible" for verdict in said)
        return "forfeit" in said

    def charges(self, parties: Mapping[bytes, str]) -> list[Charge]:
        ruling, losers = self._ruling(), self.losers()
        return [
            Charge(
                dispute=self.id, key=key, organisation=parties.get(key, ""),
                seconds=ruling.judged / len(losers), bytes=sum(ruling.sent) // len(losers),
            )
            for key in losers
        ]  # fmt: skip

    def _ruling(self) -> Ruling:
        assert self.referee.ruling is not None
        assert isinstance(self.referee.ruling.content, Ruling)
        return self.referee.ruling.content


class Docket:
    """The disputes of one referee, in a directory; safe to use from several threads.

    Attributes:
        key: The referee's.
        limits: What it grants.
    """

    def __init__(
        self, root: Path, key: SigningKey, parties: Mapping[bytes, str], *, limits: DocketLimits | None = None,
        judge: Judge = judged_by_worker, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Goes on with the disputes that it finds; clocks stood still meanwhile.

        Args:
            root: Directory with one directory for each dispute; it is made.
            key: Signs rulings.
            parties: Organisation by raw public key.
            limits: What it grants.
            judge: Judges claims.
            now: Reads the time in seconds.

        Raises:
            WeighbridgeError: A dispute on disk is damaged.
        """
        self.key, self.limits = key, limits or DocketLimits()
        self._root, self._parties, self._judge, self._now = root, dict(parties), judge, now
        self._lock = threading.Lock()
        self._judging = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)
        self._cases = {
            path.name: self._loaded(CaseFiles(path))
            for path in sorted(root.iterdir())
            if path.is_dir() and CaseFiles(path).messages()
        }
        self._lost = Counter(key for case in self._cases.values() if case.referee.ruling for key in case.losers())

    def open(self, notice: bytes, data: bytes) -> tuple[str, bool]:
        """Takes a challenge.

        Args:
            notice: Its signed notice.
            data: The challenge as it was sent.

        Returns:
            The dispute, and whether it was there before.

        Raises:
            FormatError, DisputeError: It is no challenge, for another referee, or of a confidential run.
            PartyError: A key of it is not a party's.
            DisputeLimitError: The challenger may open none now.
        """
        if len(data) > self.limits.challenge:
            raise DisputeLimitError(f"A challenge may have {self.limits.challenge} bytes here; send a smaller one.")
        message = read(data)
        said = Notice.read(notice, message.key)
        if not isinstance(message.content, Challenge | Course | Equality) or message.previous != START:
            raise DisputeError("A dispute begins with a challenge, a course or a claim about memory, after nothing.")
        if said.challenge != message.head or said.referee != self.key.public:
            raise DisputeError("The notice is about another challenge, or for another referee; sign one for this one.")
        if message.key == said.defender:
            raise DisputeError("A key disputes its own claim; name the defender's.")
        organisation = self._organisation(message.key)
        self._organisation(said.defender)
        if isinstance(message.content, Equality):
            MemoryGame.open(message.content)  # it decodes a state: for a party alone
        else:
            require_open(message.content.terms)
        claim = _claim(said.defender, message.content)
        with self._lock:
            for case in self._cases.values():
                if case.id == message.head.hex() or (case.claim == claim and not case.given_up()):
                    return case.id, True
            self._admit(message.key, organisation)
            files = CaseFiles(self._root / message.head.hex())
            files.create(notice, data)
            case = self._cases[files.directory.name] = self._loaded(files)
            return case.id, False

    def post(self, dispute: str, data: bytes) -> None:
        """Takes the message that is due; `judge` rules if it was the last one.

        Raises:
            NotFoundError: There is no such dispute.
            FormatError, DisputeError: It is no message that is due.
            DisputeLimitError: It is too large.
        """
        case = self._case(dispute)
        if len(data) > self.limits.size:
            raise DisputeLimitError(f"A message may have {self.limits.size} bytes here; send a smaller one.")
        with self._lock:
            try:
                case.referee.take(data)
                case.files.add(len(case.referee.dispute.messages) - 1, data)
            except OSError:
                self._cases[dispute] = self._loaded(case.files)  # what is not on disk was not said
                raise
            finally:
                self._settle(self._cases[dispute])

    def require_due(self, dispute: str) -> None:
        """Checks that a dispute waits for a message.

        Raises:
            NotFoundError: There is no such dispute.
            DisputeError: It waits for none.
        """
        found = self.standing(dispute)
        if found.due == "nothing":
            raise DisputeError("The dispute waits for no message; fetch it, or wait for the ruling.")

    def tick(self) -> None:
        """Lets the clocks run; parties whose clock has run out forfeit."""
        with self._lock:
            for case in self._cases.values():
                case.referee.tick()
                self._settle(case)

    def judge(self) -> None:
        """Rules, one after another, in all disputes in which everything was said."""
        with self._judging:
            for case in list(self._cases.values()):
                if case.referee.ruling is None:
                    case.referee.judge()
                    with self._lock:
                        self._settle(case)

    def standing(self, dispute: str) -> Standing:
        """Returns how far a dispute has come.

        Raises:
            NotFoundError: There is no such dispute.
        """
        case = self._case(dispute)
        with self._lock:
            referee = case.referee
            referee.tick()
            self._settle(case)
            party, due = referee.dispute.due()
            ruled = referee.ruling is not None
            return Standing(
                parties=referee.dispute.parties, party=party, due="nothing" if ruled else due, used=referee.used,
                ruled=ruled, messages=case.count,
            )  # fmt: skip

    def messages(self, dispute: str) -> list[Message]:
        """Returns all messages of a dispute, the ruling last.

        Raises:
            NotFoundError: There is no such dispute.
        """
        case = self._case(dispute)
        with self._lock:
            if not case.over:
                return case.referee.log()
        return case.messages()

    def charges(self) -> list[Charge]:
        """Returns what the losers of all disputes owe."""
        with self._lock:
            ruled = [case for case in self._cases.values() if case.referee.ruling is not None]
            return [charge for case in ruled for charge in case.charges(self._parties)]

    def _case(self, dispute: str) -> _Case:
        with self._lock, contextlib.suppress(KeyError):
            return self._cases[dispute]
        raise NotFoundError(f"There is no dispute {dispute[:80]!r} here.", resource="dispute", name=dispute)

    def _organisation(self, key: bytes) -> str:
        if key not in self._parties:
            raise PartyError(f"The key {key.hex()} is not a party's here; have the referee told of it.")
        return self._parties[key]

    def _admit(self, key: bytes, organisation: str) -> None:
        if self._lost[key] >= self.limits.lost:
            raise DisputeLimitError(f"This key has lost {self._lost[key]} disputes and opens no more here.")
        opened = [case.referee for case in self._cases.values() if case.referee.ruling is None]
        own = sum(self._parties.get(each.dispute.parties[CHALLENGER]) == organisation for each in opened)
        if own >= self.limits.open:
            raise DisputeLimitError(f"{organisation} has {own} disputes open here; wait until one of them is ruled.")

    def _settle(self, case: _Case) -> None:
        """Writes what came about: clocks, or a ruling and who lost."""
        referee = case.referee
        if case.over:
            return
        if referee.ruling is not None:
            case.files.clock(referee.used)
            case.files.rule(referee.ruling.data)
            self._lost.update(case.losers())
            case.end()
        elif max(abs(a - b) for a, b in zip(referee.used, case.saved, strict=True)) >= CLOCK_SAVED_S:
            case.files.clock(referee.used)
            case.saved = referee.used

    def _loaded(self, files: CaseFiles) -> _Case:
        challenge, *rest = files.messages()
        opened = read(challenge)
        notice = Notice.read(files.notice(), opened.key)
        if not isinstance(opened.content, Challenge | Course | Equality):
            raise FormatError(f"{files.directory} begins with no challenge; restore it.")
        if notice.referee != self.key.public:
            raise FormatError(f"{files.directory} is a dispute of another referee; give that one's key.")
        parties = (opened.key, notice.defender)
        referee = Referee(
            parties, self.key, judge=self._judge, clock=self.limits.clock, now=self._now, used=files.used()
        )
        for data in (challenge, *rest):
            referee.resume(data)
        if files.ruling():
            referee.ruling = read(files.ruling())
        case = _Case(referee, files, _claim(notice.defender, opened.content))
        if files.ruling():
            case.end()
        return case


def _claim(defender: bytes, challenge: Challenge | Course | Equality) -> bytes:
    """Returns what a challenge is about, whichever party sends it."""
    return record_digest("dispute-claim/1", [defender, cbor(plain(challenge))])
