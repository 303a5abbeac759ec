"""What a step is computed in here: results are rounded, the log is followed, and every checksum and number compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from weighbridge.core.errors import LogError, TapeError
from weighbridge.execution.following import DifferenceError
from weighbridge.execution.second.memory import F32, Array, is_dense, memory_order
from weighbridge.execution.second.rounding import Entry, canonical, checksum, to_float32
from weighbridge.execution.second.table import Wide
from weighbridge.numerics.rounding.rounding_log import LogReader, OpEntries
from weighbridge.program.generator_starts import counter
from weighbridge.program.start_rules import WORD
from weighbridge.transcript.steps import StepRecord, same_scalar
from weighbridge.transcript.tape import Node, Ref


class Step:
    """One step: what its record and its log say, and how far its operations have come in them.

    Attributes:
        rounded_elements: Elements rounded so far.
        contested: Those of them of which the log has an entry.
        followed: Those of these that would have come out otherwise here.
        rng: Counters of generators after their last draw.
    """

    def __init__(self, record: StepRecord, log: LogReader, seed: int) -> None:
        self.record, self._log, self._seed = record, log, seed
        self._wanted = np.frombuffer(record.checksums, dtype="<u8").tolist()
        self._op, self._node, self._output = 0, Node("", (), {}, ()), 0
        self._refs: list[Ref | None] = []
        self._changes = False
        self._checked = self._hosts = 0
        self.rounded_elements = self.contested = self.followed = 0
        self.rng: dict[int, int] = {}

    def begin(self, op: int, node: Node, refs: list[Ref | None], changes: bool) -> None:
        """Starts an operation."""
        self._op, self._node, self._refs, self._changes, self._output = op, node, refs, changes, 0

    def difference(self, expected: object, found: object) -> DifferenceError:
        """Returns what to say of a result that differs."""
        return DifferenceError(
            f"step {self.record.step}, operation {self._op} ({self._node.op}): the transcript says {expected}, "
            f"this replay found {found}",
            step=self.record.step, op=self._op, operation=self._node.op, expected=str(expected), found=str(found),
        )  # fmt: skip

    def _next(self) -> int:
        if self._checked >= len(self._wanted):
            raise self.difference("no further result", "one more rounded result")
        self._checked += 1
        return int(self._wanted[self._checked - 1])

    def _order(self, value: Array, ref: Ref | None) -> list[int]:
        """Returns the order in which a result's elements count: that of its memory, if nothing was changed in place."""
        if ref is None or self._changes or ref[2] != value.shape or not is_dense(ref[2], ref[3]):
            return list(range(value.ndim))
        return memory_order(ref[2], ref[3])

    def rounded(self, wide: Wide, ref: Ref | None = None) -> Array:
        """Rounds a result to float32 as the log says, and compares its checksum.

        Raises:
            DifferenceError: It differs.
            LogError: The log has an entry that no conforming device could have made.
        """
        value = np.asarray(wide.value)
        order = self._order(value, ref)
        memory = value.transpose(order)
        narrow = to_float32(memory)
        try:
            entries = self._log.take(self._op, self._output, narrow.size)
        except LogError as error:
            raise self._bad(error.message, error.reason) from None
        self._output += 1
        self.rounded_elements += narrow.size
        refused = 0 if entries is None else self._follow(wide, memory, narrow, entries, order)
        wanted, found = self._next(), checksum(narrow.reshape(-1))
        if wanted != found:
            raise self.difference(f"{wanted:016x}", f"{found:016x}")
        if refused:
            raise self._bad(
                f"the log asks for {refused} outcomes that no conforming device could have rounded to",
                "replay.rounding.inadmissible",
            )
        return narrow.transpose(np.argsort(order)) if order else narrow

    def _follow(self, wide: Wide, memory: Array, narrow: Array, entries: OpEntries, order: list[int]) -> int:
        """Sets the elements that the log has entries of; returns how many of the entries are inadmissible."""
        places = np.unravel_index(entries.positions, narrow.shape) if narrow.ndim else ()
        values = memory.reshape(-1)[entries.positions]
        logical: list[Any] = [None] * len(order)
        for at, d in enumerate(order):
            logical[d] = places[at]
        bounds = wide.bound().at(values, tuple(logical), np.shape(wide.value))
        flat, refused = narrow.reshape(-1), 0
        for position, value, bound, width, bits in zip(
            entries.positions.tolist(), values.tolist(), bounds.tolist(), entries.widths.tolist(),
            entries.bits.tolist(), strict=True,
        ):  # fmt: skip
            chosen = Entry(width, bits).choose(value, bound)
            if chosen is None:
                refused += 1
            elif chosen.view(np.uint32) != flat[position].view(np.uint32):
                flat.view(np.uint32)[position] = chosen.view(np.uint32)
                self.followed += 1
        self.contested += len(entries.positions)
        return refused

    def _bad(self, what: str, code: str) -> LogError:
        return LogError(
            f"step {self.record.step}, operation {self._op} ({self._node.op}): {what}", code=code,
            step=self.record.step, op=self._op, operation=self._node.op,
        )  # fmt: skip

    def exact(self, value: Array, ref: Ref | None = None) -> Array:
        """Compares the checksum of a float32 result with one right answer; returns it with canonical NaN."""
        order = self._order(value, ref)
        memory = canonical(value.transpose(order))
        if memory.dtype == F32 and memory.size:
            wanted, found = self._next(), checksum(memory.reshape(-1))
            if wanted != found:
                raise self.difference(f"{wanted:016x}", f"{found:016x}")
        return memory.transpose(np.argsort(order)) if order else memory

    def host(self, value: Any) -> None:
        """Compares a number that the program read."""
        if self._hosts >= len(self.record.host):
            raise self.difference("no further host value", repr(value))
        wanted = self.record.host[self._hosts]
        self._hosts += 1
        if not same_scalar(wanted, value):
            raise self.difference(repr(wanted), repr(value))

    def draw(self) -> tuple[int, int, int]:
        """Returns the key of the next draw: seed, stream, counter."""
        if self._node.draw is None:
            raise TapeError(f"operation {self._op} ({self._node.op}) draws without saying from which generator")
        generator, offset = self._node.draw
        if offset and generator not in self.rng:
            raise TapeError(
                f"operation {self._op} draws first from generator {generator}, yet not where its counter begins"
            )
        at = counter(self.record, generator, offset)
        self.rng[generator] = (at + 1) % WORD
        return self._seed, generator << 12, at

    def end(self) -> None:
        """Checks that the record and the log have nothing that no operation made.

        Raises:
            TapeError: The record has.
            LogError: The log has.
        """
        if self._checked != len(self._wanted) or self._hosts != len(self.record.host):
            raise TapeError(f"step {self.record.step}: the record has checksums or host values that no operation made")
        if self._log.left:
            raise LogError(f"step {self.record.step}: the rounding log has entries for operations that round nothing")
        drawn = {str(number): after for number, after in self.rng.items()}
        if drawn != {number: after for number, (_, after) in self.record.rng.items()}:
            raise TapeError(
                f"step {self.record.step}: the record's counters of randomness are not those after its draws"
            )
