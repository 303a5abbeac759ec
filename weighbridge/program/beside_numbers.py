"""What a run chose beside the numbers that its programs take, for orders of trainings to name it.

Two runs of one program with the same numbers are still two trainings if one seeds its generators otherwise, lets a
schedule run at another pace, or begins from other weights. So each program's digest of numbers says, over all steps
that ran it: at which counters generators were put that follow from no rule, how far schedules went from step to step,
and what step 0 was given. A counter that is the run's seed is named as that: a program that seeds with what it was
ordered with is as it was rehearsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.generator_starts import Starts
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


@dataclass(slots=True)
class Beside:
    """What the steps of one program chose.

    Attributes:
        starts: Counters at which generators were put that follow from no rule, without the run's seed.
        seeded: Whether one was the run's seed.
        paces: (schedule, how far it went since the last step that names it); of the first such step, how far it was.
        given: Digests of what step 0 was given: the state that no program made, or its undeclared tensors.
    """

    starts: set[int] = field(default_factory=set)
    seeded: bool = False
    paces: set[tuple[int, int, bool]] = field(default_factory=set)
    given: list[bytes] = field(default_factory=list)

    def told(self) -> list[Any]:
        """Returns it as an array for a digest."""
        return [sorted(self.starts), self.seeded, [list(each) for each in sorted(self.paces)], self.given]


def beside(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> dict[bytes, Beside]:
    """Returns what the steps of each program chose, by the digest of its tape.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.

    Raises:
        TapeError: A record's counters are not those of its tape's draws.
    """
    seed = transcript.draft.get("seed")
    starts = Starts(seed if type(seed) is int else 0, ChosenBits())
    found: dict[bytes, Beside] = {}
    before: dict[int, int] = {}
    for record in transcript.records():
        mine = found.setdefault(record.tape, Beside())
        tape = tapes(record.tape)
        for start in starts.step(record, tape):
            if start == seed:
                mine.seeded = True
            else:
                mine.starts.add(start)
        for schedule, count in enumerate(record.counts):
            mine.paces.add((schedule, count - before.get(schedule, 0), schedule not in before))
            before[schedule] = count
        if not record.step:
            if not tape.nodes:
                mine.given.append(record.state)
            if record.free:
                mine.given.append(batch_digest({}, transcript.undeclared(0)))
    return found
