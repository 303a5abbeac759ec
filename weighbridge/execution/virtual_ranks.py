"""All ranks of a job in one process, without `torch.distributed`: each runs until a collective, and waits there.

A rank is a thread, but only one runs at a time, so a replay takes the same course every time and needs the working
memory of one rank. Results are put together by `weighbridge.numerics.exchanges`, as the Recorder does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch

from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.numerics import exchanges
from weighbridge.transcript.collectives import Call, Pairing

Tensor = torch.Tensor
Given = TypeVar("Given")


class AbandonedError(Exception):
    """A rank was stopped because another one differs or has what was asked for; its thread ends without a report."""


class Turns:
    """Lets one of several threads run at a time, in the order of their numbers."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._ready: dict[int, Callable[[], bool]] = {number: lambda: True for number in range(count)}
        self._current = 0
        self._ended = False

    def begin(self, number: int) -> None:
        """Waits for the first turn of a thread; every thread calls this once.

        Raises:
            AbandonedError: All was stopped before.
        """
        with self._changed:
            self._await(number)

    def wait(self, number: int, ready: Callable[[], bool]) -> bool:
        """Gives the turn away until `ready`.

        Returns:
            False if no other rank could make it so any more.

        Raises:
            AbandonedError: All was stopped.
        """
        with self._changed:
            if ready():
                return True
            self._ready[number] = ready
            self._pass_on(number)
            self._await(number)
            self._ready[number] = lambda: True
            return ready()

    def leave(self, number: int) -> None:
        """A thread is done."""
        with self._changed:
            self._ready.pop(number, None)
            self._pass_on(number)

    def end(self) -> None:
        """Stops all threads at their next wait."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _await(self, number: int) -> None:
        self._changed.wait_for(lambda: self._ended or self._current == number)
        if self._ended:
            raise AbandonedError("another rank ended the replay of the job")

    def _pass_on(self, number: int) -> None:
        """The next thread that is ready takes its turn; if none is, the next one learns that it waits in vain."""
        order = sorted(self._ready, key=lambda other: (other <= number, other))
        self._current = next((other for other in order if self._ready[other]()), order[0] if order else -1)
        self._changed.notify_all()


def in_turn(
    turns: Turns, works: Sequence[Callable[[], Given]], ends: Callable[[int, Given], bool]
) -> list[Given | None]:
    """Runs the work of every rank, each in a thread of its own and one at a time, without gradients.

    Args:
        turns: Where they wait for each other.
        works: What each rank does.
        ends: Says of a rank, and of what its work gave, whether the others are to stop at their next wait.

    Returns:
        What each gave; None for a rank that was stopped.

    Raises:
        BaseException: What the work of a rank raised; the message of a `WeighbridgeError` then begins with the rank.
    """
    given: list[Given | None] = [None] * len(works)
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            with torch.no_grad():
                turns.begin(rank)
                gave = given[rank] = works[rank]()
            if ends(rank, gave):
                turns.end()
        except AbandonedError:
            pass
        except BaseException as error:  # raised again in the thread that joins this one
            errors.append((rank, error))
            turns.end()
        finally:
            turns.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, error in errors:
        if isinstance(error, WeighbridgeError):
            error.message = f"rank {rank}: {error.message}"
        raise error
    return given


@dataclass(slots=True)
class _Meeting:
    """One collective in progress."""

    calls: dict[int, Call] = field(default_factory=dict)
    ins: dict[int, list[Tensor]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    combined: Tensor | None = None


class Rendezvous:
    """Where the virtual ranks of a job meet."""

    def __init__(self, ranks: int) -> None:
        """Prepares for so many ranks."""
        self.turns = Turns(ranks)
        self.cut: dict[int, int] = {}
        """Steps of each rank that a crash cut off, by rank: it comes to no further collective."""
        self._meetings: dict[Pairing, _Meeting] = {}

    def exchange(self, rank: int, step: int, call: Call, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
        """Gives what a rank contributes and returns what it gets; see `weighbridge.transcript.collectives.Exchange`.

        Raises:
            TapeError: The members' calls do not fit together, or a member never comes (`job.collective.mismatch`, or
                `job.tail` if a crash cut off a rank before).
            AbandonedError: Another rank ended the replay.
        """
        pairing = call.pairing(step)
        meeting = self._meetings.setdefault(pairing, _Meeting())
        for other, theirs in meeting.calls.items():
            if not call.matches(theirs):
                raise _mismatch(step, call, f"{theirs.name} {theirs.reduction} of rank {other}, operation {theirs.op}")
        meeting.calls[rank], meeting.ins[rank] = call, [t.detach().clone().reshape(-1) for t in ins]
        sources = call.sources(rank)
        needed = {call.group[i] for wanted in sources for i, _ in wanted}
        if not self.turns.wait(rank, lambda: needed <= meeting.ins.keys()):
            missing = sorted(needed - meeting.ins.keys())
            if cut := sorted(other for other, steps in self.cut.items() if steps <= step):
                raise TapeError(
                    f"step {step}, operation {call.op} ({call.name}): ranks {missing[:64]} never come, because a crash "
                    f"cut off ranks {cut[:64]} before this step was whole",
                    code="job.tail", step=step, op=call.op,
                )  # fmt: skip
            raise _mismatch(step, call, f"ranks {missing}, which never come")
        results = [
            self._result(step, call, meeting, wanted, out) for wanted, out in zip(sources, outs, strict=True)
        ]  # fmt: skip
        meeting.left.add(rank)
        if meeting.left >= set(call.group):
            del self._meetings[pairing]
        return results

    def _result(self, step: int, call: Call, meeting: _Meeting, wanted: exchanges.Sources, out: Tensor) -> Tensor:
        if call.name == "all_reduce" and meeting.combined is not None:
            return meeting.combined
        parts = [meeting.ins[call.group[i]][j] for i, j in wanted]
        for part, (i, _) in zip(parts, wanted, strict=True):
            if part.numel() != out.numel() or part.dtype != out.dtype:
                raise _mismatch(step, call, f"{part.numel()} elements of {part.dtype} from rank {call.group[i]}")
        result = exchanges.combine(call.reduction, parts)
        if call.name == "all_reduce":
            meeting.combined = result
        return result


def _mismatch(step: int, call: Call, found: str) -> TapeError:
    return TapeError(
        f"step {step}, operation {call.op} ({call.name} over ranks {list(call.group)[:64]}): it meets {found}; the "
        "ranks' tapes are not those of one job",
        code="job.collective.mismatch", step=step, op=call.op,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class VirtualRank:
    """One rank's side of a rendezvous: its `Exchange`."""

    given: ClassVar[bool] = False

    rendezvous: Rendezvous
    rank: int

    def exchange(self, step: int, call: Call, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
        """See `weighbridge.transcript.collectives.Exchange`."""
        return self.rendezvous.exchange(self.rank, step, call, ins, outs)
