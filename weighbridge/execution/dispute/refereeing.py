"""The referee of one dispute, and the reader who checks a finished one.

Each party has one clock for the whole dispute, which runs while the other waits for it and stands still while the
referee works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from weighbridge.attest.manifest import SigningKey
from weighbridge.execution.dispute.asking import Judgement, forfeited
from weighbridge.execution.dispute.asking import judge as judged_by_worker
from weighbridge.execution.dispute.game import NAMES, Dispute
from weighbridge.execution.dispute.memory_messages import Doubt, Granted
from weighbridge.execution.dispute.messages import Answer, Course, DisputeError, Message, Ruling, read, signed, unpack
from weighbridge.execution.dispute.rulings import Judge, judgements

CLOCK = 3600.0
"""Seconds that a party has for its messages, unless the parties agree on others."""


class Referee:
    """Runs one dispute: takes messages, keeps the clocks, and rules.

    Attributes:
        dispute: How far it has come.
        ruling: The referee's last word, once there is one.
    """

    def __init__(
        self, parties: tuple[bytes, bytes], key: SigningKey, *, judge: Judge = judged_by_worker, clock: float = CLOCK,
        now: Callable[[], float] = time.monotonic, used: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        """Opens a dispute; the challenger's clock runs from now on.

        Args:
            parties: Raw public keys of challenger and defender (32 bytes each).
            key: Signs the ruling.
            judge: Judges claims.
            clock: Seconds that each party has.
            now: Reads the time in seconds.
            used: What each party has used of its clock already, if the dispute goes on after a restart.
        """
        self.dispute = Dispute(parties)
        self.ruling: Message | None = None
        self._key, self._judge, self._clock, self._now = key, judge, clock, now
        self._used, self._sent = [*used], [0, 0]
        self._since = now()

    @property
    def used(self) -> tuple[float, float]:
        """Seconds that each party has used of its clock, as of the last message or tick."""
        return self._used[0], self._used[1]

    def post(self, data: bytes) -> None:
        """Takes a message as it was sent, and rules once all was said.

        Raises:
            FormatError, DisputeError: It is no message that is due now. Its sender's clock runs on.
        """
        self.take(data)
        self.judge()

    def take(self, data: bytes) -> None:
        """Takes a message as it was sent, and stops the clocks if all was said; `judge` rules then.

        Raises:
            FormatError, DisputeError: It is no message that is due now. Its sender's clock runs on.
        """
        self.tick()
        if self.ruling is not None:
            raise DisputeError("The dispute is over; open another one.")
        self.resume(data)

    def resume(self, data: bytes) -> None:
        """Takes a message that was taken before a restart, whose time is counted in `used`.

        Raises:
            FormatError, DisputeError: It is none that was due then.
        """
        party, _ = self.dispute.due()
        self.dispute.take(read(data))
        self._sent[party] += len(data)
        self._since = self._now()

    def judge(self) -> None:
        """Rules if all was said and nothing was ruled; no clock runs meanwhile."""
        if self.ruling is None and self.dispute.due()[1] == "nothing":
            began = self._now()
            found = judgements(self.dispute, self._judge)
            self._rule(found, self._now() - began)

    def tick(self) -> None:
        """Charges the party whose turn it is, and rules that it forfeits if its clock has run out."""
        party, due = self.dispute.due()
        if self.ruling is not None or due == "nothing":
            return
        now = self._now()
        self._used[party] += now - self._since
        self._since = now
        if self._used[party] > self._clock:
            self._rule([(party, forfeited(f"the {NAMES[party]} sent no {due} within {self._clock:g} s"))], 0.0)

    def log(self) -> list[Message]:
        """Returns all messages so far, the ruling last."""
        return [*self.dispute.messages, *([] if self.ruling is None else [self.ruling])]

    def _rule(self, found: list[tuple[int, Judgement]], judged: float) -> None:
        leaf = -1 if self.dispute.leaf is None else self.dispute.leaf
        ruling = Ruling(
            leaf=leaf, claims=[(party, each.verdict, each.code, each.reason) for party, each in found],
            seconds=(self._used[0], self._used[1]), clock=self._clock, sent=(self._sent[0], self._sent[1]),
            judged=judged,
        )  # fmt: skip
        self.ruling = signed(self.dispute.head, ruling, self._key)


@dataclass(frozen=True)
class Checked:
    """What a finished dispute says.

    Attributes:
        parties: Keys of challenger and defender.
        referee: Key of the referee.
        ruling: Its ruling.
        again: What the one who checks says of the claims that the referee judged, with their party.
        agrees: Whether that is what the ruling says.
    """

    parties: tuple[bytes, bytes]
    referee: bytes
    ruling: Ruling
    again: list[tuple[int, Judgement]]
    agrees: bool


def verify(data: bytes, judge: Judge = judged_by_worker) -> Checked:
    """Checks a finished dispute from its file alone: signatures, order, the leaf, and every judgement once more.

    A forfeit by the clock is the referee's word: no other party saw the time.

    Args:
        data: The file.
        judge: Judges claims.

    Raises:
        FormatError: It is no such file.
        DisputeError: A signature does not verify, a message is out of its turn, or there is no ruling.
    """
    *said, last = list(unpack(data))
    if not isinstance(last.content, Ruling):
        raise DisputeError("The dispute has no ruling yet; ask the referee.")
    challenger = said[0].key if said else last.key
    answers = Course | Answer | Doubt | Granted
    defender = next((message.key for message in said[1:] if isinstance(message.content, answers)), bytes(32))
    dispute = Dispute((challenger, defender))
    for message in said:
        dispute.take(message)
    ruling = last.content
    party, due = dispute.due()
    if due != "nothing":
        agrees = [(c[0], c[1]) for c in ruling.claims] == [(party, "forfeit")] and ruling.seconds[party] > ruling.clock
        return Checked(dispute.parties, last.key, ruling, [], agrees)
    again = judgements(dispute, judge)
    sent = tuple(sum(len(m.data) for m in said if m.key == key) for key in dispute.parties)
    agrees = (
        ruling.leaf == (-1 if dispute.leaf is None else dispute.leaf)
        and [(party, each.verdict, each.code) for party, each in again] == [claim[:3] for claim in ruling.claims]
        and (sent == tuple(ruling.sent) or challenger == defender)
    )
    return Checked(dispute.parties, last.key, ruling, again, agrees)
