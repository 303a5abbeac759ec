"""Where the ranks of a job meet after a step that is to be recognised: none goes on before all have executed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weighbridge.execution.recognition.in_job import Executed, recognise
from weighbridge.execution.recognition.outcome import Recognition
from weighbridge.execution.virtual_ranks import Turns
from weighbridge.transcript.steps import StepRecord


@dataclass(slots=True)
class Meetings:
    """The meetings of one replay of a job.

    Attributes:
        turns: Lets one rank run at a time.
        ranks: How many there are.
        chosen: Steps that are to be recognised.
    """

    turns: Turns
    ranks: int
    chosen: set[int]
    _there: dict[int, dict[int, Executed | str]] = field(default_factory=dict)
    _found: dict[int, Sequence[Recognition] | str] = field(default_factory=dict)

    def come(self, rank: int, record: StepRecord, executed: Executed | str) -> Recognition:
        """Hands in a step of a rank, or why it cannot be recognised, and waits for the others.

        Raises:
            AbandonedError: Another rank ended the replay.
        """
        there = self._there.setdefault(record.step, {})
        there[rank] = executed
        if len(there) == self.ranks:
            self._found[record.step] = _recognised([there[each] for each in range(self.ranks)])
            there.clear()
        if not self.turns.wait(rank, lambda: record.step in self._found):
            why = "not all ranks come to the end of this step"
            return Recognition(record.step, record.tape.hex(), reasons=(why,), known=False)
        found = self._found[record.step]
        if isinstance(found, str):
            return Recognition(record.step, record.tape.hex(), reasons=(found,))
        return found[rank]


def _recognised(there: Sequence[Executed | str]) -> list[Recognition] | str:
    whole = [each for each in there if isinstance(each, Executed)]
    if len(whole) == len(there):
        return recognise(whole)
    return next(f"rank {rank}: {each}" for rank, each in enumerate(there) if isinstance(each, str))


@dataclass(frozen=True, slots=True)
class Meeting:
    """One rank's side of it."""

    meetings: Meetings
    rank: int

    @property
    def chosen(self) -> set[int]:
        """Steps that are to be recognised."""
        return self.meetings.chosen

    def met(self, record: StepRecord, executed: Executed | str) -> Recognition:
        """See `Meetings.come`."""
        return self.meetings.come(self.rank, record, executed)
