"""What a replayed step is evaluated in: the rounding log is followed, and every checksum and host value compared."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.errors import LogError, TapeError, TranscriptError, WeighbridgeError
from weighbridge.execution.choice_statistics import Tally
from weighbridge.execution.straight_line.frame import Line
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.execution.unit_results import is_units
from weighbridge.numerics.conformance.bound_policy import STRICT, Policy
from weighbridge.numerics.context import Context
from weighbridge.numerics.exchanges import CANONICAL
from weighbridge.numerics.operations.prescribed_products import way_of
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.outputs_digest import OutputsDigest
from weighbridge.numerics.rounding.rounding_log import LogReader, OpEntries
from weighbridge.numerics.sketches.codec import FailedError
from weighbridge.numerics.sketches.following import agrees, follow
from weighbridge.numerics.sketches.step_sketches import SketchReader
from weighbridge.program.generator_starts import counter
from weighbridge.program.operands import UNFIT, resolve, unfit
from weighbridge.program.start_rules import WORD
from weighbridge.transcript.collectives import Call, Exchange, commit
from weighbridge.transcript.steps import StepRecord, same_scalar
from weighbridge.transcript.tape import Node

Tensor = torch.Tensor

LOOKS = 16
"""Of so many sketches, one is compared with the output, whichever the replayer draws."""


class DifferenceError(WeighbridgeError):
    """The replay differs from the transcript; `details` say where."""

    code = "replay.mismatch"


@dataclass(frozen=True, slots=True)
class Seen:
    """One result with a checksum, as the replay made it.

    Attributes:
        op: Index of its operation.
        index: Number of its checksum in the step.
        out: The result; for an exact operation its elements in one dimension.
        wide: The wide result that `out` was rounded from, of the same layout; None for an exact operation.
        bound: The bound on its error, or None.
        entries: What the log said about it, or None.
    """

    op: int
    index: int
    out: Tensor
    wide: Tensor | None = None
    bound: Bound | None = None
    entries: OpEntries | None = None


@dataclass(slots=True)
class Following(Context):
    """The context of a replayed step: follows the log and compares every checksum.

    Of a step whose log is made on demand it takes the digest of the rounded outputs, and `log` may be None. Then a
    result must come out as it was recorded; if it does not, and a log could explain it, the difference is no evidence.
    With sketches, a 16-bit result that comes out otherwise is set right by its sketch before the next operation runs.
    """

    record: StepRecord
    log: LogReader | None
    seed: int
    policy: Policy = STRICT
    watch: Callable[[Seen], None] | None = None
    tally: Tally = field(default_factory=Tally)
    adjudication: Adjudication = field(default_factory=Adjudication)
    stream: int = 0
    calls: Mapping[int, Call] = field(default_factory=dict)
    exchange: Exchange | None = None
    exchanged: int = 0
    op: int = 0
    operation: str = ""
    node: Node | None = None
    followed: int = 0
    rounded_elements: int = 0
    calibrated_elements: int = 0
    probable_elements: int = 0
    checked: int = 0
    hosts: int = 0
    rng: dict[int, int] = field(default_factory=dict)
    outputs: OutputsDigest | None = None
    sketches: SketchReader | None = None
    sketched: int = 0
    _wanted: list[int] = field(default_factory=list)
    _output: int = 0

    def __post_init__(self) -> None:
        self._wanted = np.frombuffer(self.record.checksums, dtype="<u8").tolist()
        self.outputs = OutputsDigest() if self.record.outputs else None

    def begin(self, op: int, node: Node) -> None:
        """Starts operation number `op`."""
        self.op, self.node, self.operation, self._output = op, node, node.op, 0

    def _difference(self, expected: object, found: object, **details: Any) -> DifferenceError:
        return DifferenceError(
            f"step {self.record.step}, operation {self.op} ({self.operation}): the transcript says {expected}, "
            f"this replay found {found}",
            step=self.record.step,
            op=self.op,
            operation=self.operation,
            expected=str(expected),
            found=str(found),
            **details,
        )

    def _next_checksum(self) -> int:
        if self.checked >= len(self._wanted):
            raise self._difference("no further result", "one more rounded result")
        self.checked += 1
        return self._wanted[self.checked - 1]

    def _entries(self, elements: int) -> OpEntries | None:
        if self.log is None:
            return None
        try:
            return self.log.take(self.op, self._output, elements)
        except LogError as error:
            raise self._bad(error) from None

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        sketches = self.sketches if dtype in formats.NARROW else None
        entries = None if sketches is not None else self._entries(wide.numel())
        self._count(wide.numel(), wide.dtype)
        wanted = self._next_checksum()
        small = dtype in formats.NARROW
        if sketches is not None:
            result, entries = self._sketched(sketches, wide, bound, dtype, wanted)
        else:
            result = narrow.follow(wide, bound, dtype, entries) if small else contested.follow(wide, bound, entries)
        self.followed += result.followed
        if self.outputs is not None:
            self.outputs.add(self.op, self._output, result.out)
        self._output += 1
        if result.checksum != wanted:
            if self.log is None:
                raise self._unlogged(wide, bound, dtype, wanted, result.checksum)
            explanation = narrow.explanation if small else contested.explanation
            other = explanation(wide, bound, entries, result.out, wanted, result.checksum)
            if not result.inadmissible and other is not None and is_units(wide, bound, result.out, other):
                raise self._difference(f"{wanted:016x}", f"{result.checksum:016x}", inconclusive=True)
            raise self._difference(
                f"{wanted:016x}",
                f"{result.checksum:016x}",
                inadmissible=result.inadmissible,
                entries=0 if entries is None else len(entries.positions),
            )
        if result.inadmissible:
            raise LogError(
                f"step {self.record.step}, operation {self.op} ({self.operation}): the log asks for "
                f"{result.inadmissible} outcomes that no conforming device could have rounded to",
                code="replay.rounding.inadmissible", step=self.record.step, op=self.op, operation=self.operation,
            )  # fmt: skip
        confirmed, place = None, (self.record.step, self.operation, self.op)
        if bound.judge is not None:
            confirmed = self.adjudication.judge(place, wide, bound, result, entries)
        if self.log is not None:  # what no log was asked about chose nothing
            self.tally.add(
                self.record.step, self.operation, wide, bound, dtype, entries, result.choices,
                names_all=sketches is None, confirmed=confirmed,
            )  # fmt: skip
        if self.watch is not None:
            self.watch(Seen(self.op, self.checked - 1, result.out, wide, bound, entries))
        return result.out

    def _count(self, elements: int, wide: torch.dtype) -> None:
        """Counts rounded elements, and those of them whose bounds are not proven."""
        self.rounded_elements += elements
        policy = self.policy.at(wide)
        if policy.calibrated:
            exact = self.policy.unit and way_of(resolve(self.operation), self.policy, wide).exact
            self.calibrated_elements += 0 if exact else elements
        elif policy.probabilistic:
            self.probable_elements += elements

    def _sketched(
        self, sketches: SketchReader, wide: Tensor, bound: Bound, dtype: torch.dtype, wanted: int
    ) -> tuple[Rounded, OpEntries | None]:  # fmt: skip
        """Rounds to 16 bits and follows the sketch; of the sketches that are drawn, also sees whether they are true."""
        try:
            result, entries, packed = follow(wide, bound, dtype, sketches, wanted, (self.op, self._output))
        except FailedError as error:
            found = narrow.round_plain(wide, dtype)[1]
            failed = self._unlogged(wide, bound, dtype, wanted, found)
            failed.details["failed"] = str(error)
            raise failed from None
        except LogError as error:
            raise self._bad(error) from None
        self.sketched += entries is not None
        # Where nothing differs here, only a look at them tells sketches that would fail elsewhere.
        if secrets.randbelow(LOOKS) == 0 and not agrees(result.out, packed, sketches):
            raise self._bad(
                LogError("its sketch is not that of this output, and was made up", code="replay.sketch.false")
            )
        return result, entries

    def _bad(self, error: LogError) -> LogError:
        return LogError(
            f"step {self.record.step}, operation {self.op} ({self.operation}): {error.message}", code=error.reason,
            step=self.record.step, op=self.op, operation=self.operation,
        )  # fmt: skip

    def _unlogged(self, wide: Tensor, bound: Bound, dtype: torch.dtype, wanted: int, found: int) -> DifferenceError:
        """What to say of a result that comes out otherwise here, of a step without a log."""
        small = dtype in formats.NARROW
        own = narrow.record(wide, bound, dtype, 0, 0) if small else contested.record(wide, bound, 0, 0)
        error = self._difference(f"{wanted:016x}", f"{found:016x}", unlogged=own.entries is not None)
        if own.entries is None:
            error.message += "; none of its elements lies next to a rounding boundary, so no rounding log explains that"
        return error

    # -- what a straight-line program gives (`straight_line.frame.Taker`) ----------------------------------------------

    def wants_bounds(self, outputs: int, *, small: bool) -> bool:
        """Whether log, sketch or tally look at one of the next outputs, of which the next operation has so many."""
        if small and (self.sketches is not None or self._judged()):
            return True
        try:
            return self.log is not None and (self.log.reaches(self.op) or self.tally.looks(outputs))
        except LogError:
            return True  # where its entries are asked for, it is said which step and operation they belong to

    def _judged(self) -> bool:
        """Whether the results of an operation are judged by a declared unit's model, with or without log entries."""
        return self.policy.truncating and way_of(resolve(self.operation), self.policy, torch.float32).declared

    def take_rounded(self, results: Sequence[tuple[Tensor, int]], wide: torch.dtype) -> bool:
        """Takes the outputs of an operation and their checksums; nothing if one is not as it was recorded."""
        expected = self._wanted[self.checked : self.checked + len(results)]
        if [checksum for _, checksum in results] != expected:
            return False
        for out, _ in results:
            elements = out.numel()
            self._count(elements, wide)
            if self.outputs is not None:
                self.outputs.add(self.op, self._output, out)
            if self.log is not None:
                small = out.dtype in formats.NARROW
                self.tally.pass_by(self.record.step, self.operation, elements, small=small)
            self._output += 1
        self.checked += len(results)
        return True

    def take_listed(self, lines: Sequence[Line], sums: npt.NDArray[np.uint64], reads: npt.NDArray[np.float64]) -> None:
        """Compares the results of a list of operations; the first that differs is named."""
        found = sums.tolist()
        host = self.record.host[self.hosts : self.hosts + len(reads)]
        same = len(host) == len(reads) and all([same_scalar(a, b) for a, b in zip(host, reads.tolist(), strict=True)])
        if same and found == self._wanted[self.checked : self.checked + len(found)]:
            self.checked += len(found)
            self.hosts += len(reads)
            return
        sum_of, read_of = iter(found), iter(reads.tolist())
        for line in lines:
            self.begin(line.op, line.node)
            if line.reads:
                self.host(next(read_of))
            elif line.checked and (wanted := self._next_checksum()) != (got := next(sum_of)):
                raise self._difference(f"{wanted:016x}", f"{got:016x}")

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        wanted, found = self._next_checksum(), checksum
        if found is None:
            found = (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)
        if wanted != found:
            raise self._difference(f"{wanted:016x}", f"{found:016x}")
        if self.watch is not None:
            self.watch(Seen(self.op, self.checked - 1, bits))

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`: the record says where a generator starts, the tape which one it is and how far it was."""
        if self.node is None or self.node.draw is None:
            raise TapeError(f"operation {self.op} ({self.operation}) draws without saying from which generator")
        number, offset = self.node.draw
        if offset and number not in self.rng:
            raise TapeError(
                f"operation {self.op} draws first from generator {number}, yet not where its counter begins"
            )
        at = counter(self.record, number, offset)  # the one that the ledger of chosen bits charges
        self.rng[number] = (at + 1) % WORD
        return Draw(self.seed, self.stream + (number << 12), at)

    def collective(self, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        """Exchanges with other ranks: writes the results, and compares both sides with what the record commits to."""
        try:
            self._collective(outs, ins)
        except WeighbridgeError:
            raise
        except UNFIT as error:
            raise unfit(f"operation {self.op} ({self.operation})", error) from None

    def _collective(self, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        call = self.calls.get(self.op)
        if call is None or self.exchange is None:
            raise WeighbridgeError(
                f"step {self.record.step}, operation {self.op} ({self.operation}) needs the other ranks; replay the "
                "whole job, or this rank with the results of its collectives",
                code="replay.collectives.missing",
            )
        recorded = self.record.collectives[self.exchanged : self.exchanged + 1]
        if not recorded or recorded[0][0] != self.op:
            raise self._difference("no collective here", "a collective")
        self.exchanged += 1
        _, given, got = recorded[0]
        if (found := commit(ins)) != given:
            raise self._difference(f"the contribution {given.hex()}", found.hex())
        results = self.exchange.exchange(self.record.step, call, ins, outs)
        if (found := commit(results)) != got:
            if self.exchange.given:
                raise TranscriptError(
                    f"step {self.record.step}, operation {self.op} ({self.operation}): the results that were given are "
                    "not those that the step record names; ask the Prover again",
                    code="job.results.mismatch",
                )
            raise self._difference(f"the result {got.hex()}", found.hex())
        for out, result in zip(outs, results, strict=True):
            out.copy_(result.view(out.shape))
            if call.reduction and out.dtype in CANONICAL and out.numel():
                self.exact(out.contiguous().reshape(-1))

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        if self.hosts >= len(self.record.host):
            raise self._difference("no further host value", repr(value))
        wanted = self.record.host[self.hosts]
        self.hosts += 1
        if not same_scalar(wanted, value):
            raise self._difference(repr(wanted), repr(value))
        return value
