"""Runs that a dishonest Prover makes again: programs and all else are changed, and then really executed.

What an execution gives is taken from it, so checksums, rounding logs, host values, counters and states fit whatever was
changed. The transcript is written and signed as any other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weighbridge.attest.manifest import SigningKey
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import Following
from weighbridge.numerics.rounding import contested, formats, narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import LogReader, LogWriter, OpEntries
from weighbridge.program.operands import Operands
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.steps import Scalar, StepRecord
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import TranscriptWriter

MEMORY = 1 << 28
Logged = Callable[[OpEntries | None, Tensor, Bound], OpEntries | None]
"""Gets what an honest log says of one output, its wide value and the bound; returns what is logged."""
Told = Callable[[list[Scalar], Scalar], None]
"""Gets the values of a step and a host value, and changes the values that follow from it."""


@dataclass
class Step:
    """What a Prover chooses of one step.

    Attributes:
        tape: The program.
        record: The record as it was; what an execution gives is not taken from it.
        batch: Batch tensors by path.
        undeclared: Undeclared tensors by name.
        starts: By generator, where it begins, if not where it ended.
        claimed: Fields of the record that are written instead of what the execution gave.
        logged: What the rounding log says.
        told: Gets the values when the program reads a host value, which later ones may follow.
    """

    tape: Tape
    record: StepRecord
    batch: dict[str, Tensor]
    undeclared: dict[str, Tensor]
    starts: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, Any] = field(default_factory=dict)
    logged: Logged = lambda entries, wide, bound: entries
    told: Told = lambda values, host: None

    def copied(self) -> Step:
        """A step of its own, to be changed."""
        return replace(
            self, tape=copy.deepcopy(self.tape), batch=dict(self.batch), undeclared=dict(self.undeclared),
            starts=dict(self.starts), claimed=dict(self.claimed),
        )  # fmt: skip


@dataclass
class Run:
    """What a Prover chooses of a run.

    Attributes:
        draft: The draft's entries.
        steps: Its steps.
        checkpoints: Checkpoints by step; of those that an execution reaches, only the views are used.
        data: The commitment to its data.
        notes: What it says about its chips.
    """

    draft: dict[str, Any]
    steps: list[Step]
    checkpoints: dict[int, Checkpoint]
    data: DataCommitment | None
    notes: ChipNotes | None

    @staticmethod
    def of(path: Path) -> Run:
        """Reads a recorded run."""
        old = Transcript.open(path)
        steps = [
            Step(
                Tape.decode(old.tape(r.tape)), r, dict(old.batch(r.step)), dict(old.undeclared(r.step))
            )
            for r in old.records()
        ]  # fmt: skip
        draft = {k: v for k, v in old.draft.items() if k not in ("format", "data")}
        return Run(draft, steps, {c: old.checkpoint(c) for c in old.checkpoint_steps}, old.data, old.notes)

    def copied(self) -> Run:
        """A run of its own, to be changed."""
        return Run(
            copy.deepcopy(self.draft),
            [step.copied() for step in self.steps],
            dict(self.checkpoints), self.data, self.notes,
        )  # fmt: skip

    def write(self, target: Path) -> dict[str, Tensor]:
        """Executes every step, writes the transcript, signs it, and returns the state at the end, as bytes by name.

        Raises:
            WeighbridgeError: No execution gives what was chosen, or no transcript can hold it.
        """
        writer = TranscriptWriter(target, draft=self.draft, key=SigningKey.generate(), data=self.data)
        if self.notes is not None:
            writer.put_notes(self.notes)
        again = Again(int(self.draft["seed"]))
        for number, step in enumerate(self.steps):
            if number in self.checkpoints:
                writer.checkpoint(again.checkpoint(number, self.checkpoints[number]))
            fields = again.step(number, step, self.checkpoints)
            writer.append_step(**{**fields, "tape": writer.put_tape(step.tape.encode()), **step.claimed})
        if (end := len(self.steps)) in self.checkpoints:
            writer.checkpoint(again.checkpoint(end, self.checkpoints[end]))
        writer.close()
        return {name: data.clone() for name, data in again.state.items()}


@dataclass(slots=True)
class _Anew(Following):
    """The context of a step that is made anew: nothing is compared, all is written down."""

    logged: Logged = lambda entries, wide, bound: entries
    told: Told = lambda values, host: None
    sums: list[int] = field(default_factory=list)
    hosted: list[Scalar] = field(default_factory=list)
    writer: LogWriter = field(default_factory=LogWriter)

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        small = dtype in formats.NARROW
        if small:
            made = narrow.record(wide, bound, dtype, self.op, self._output)
        else:
            made = contested.record(wide, bound, self.op, self._output)
        entries = self.logged(made.entries, wide, bound)
        if entries is not made.entries:
            if entries is not None:
                entries = OpEntries(self.op, self._output, entries.positions, entries.widths, entries.bits)
            made = narrow.follow(wide, bound, dtype, entries) if small else contested.follow(wide, bound, entries)
        self._output += 1
        self.rounded_elements += wide.numel()
        self.sums.append(made.checksum)
        if entries is not None:
            self.writer.add(entries)
        return made.out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            checksum = (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)
        self.sums.append(checksum)

    def host(self, value: Scalar) -> Scalar:
        """See `Context.host`."""
        self.hosted.append(value)
        self.told(self.record.values, value)
        return value


class Again(Executor):
    """Executes steps that are made anew."""

    def __init__(self, seed: int) -> None:
        super().__init__("cpu", seed, MEMORY)
        self._step: Step
        self._made: _Anew

    def checkpoint(self, step: int, like: Checkpoint) -> Checkpoint:
        """The state before a step, with the named tensors of another checkpoint as far as they still lie in it."""
        state = {name: data.clone() for name, data in self.state.items()}
        views = [v for v in like.views if v.storage in state and v.end() <= state[v.storage].numel()]
        return Checkpoint(step, state, views, dict(self.rng))

    def step(self, number: int, step: Step, checkpoints: Mapping[int, Checkpoint]) -> dict[str, Any]:
        """Executes a step; returns its fields for the writer, without the tape."""
        self._step = step
        old = step.record
        if number == 0 and not step.tape.nodes:
            self.load(checkpoints[1])
            self._made = _Anew(old, LogReader(rounding_log.encode([]), max_entries=0), 0)
        else:
            starts = {name: step.starts.get(name, self.rng.get(name, span[0])) for name, span in old.rng.items()}
            values = list(old.values)
            record = replace(old, step=number, values=values, rng={name: (at, at) for name, at in starts.items()})
            log = LogReader(rounding_log.encode([]), max_entries=0)
            with torch.no_grad():
                self.run(step.tape, step.tape.digest, record, log, step.batch, step.undeclared)
        made = self._made
        log_bytes = made.writer.finish()
        return {
            "kind": old.kind, "values": list(made.record.values), "host": made.hosted, "state": self.state_digest(),
            "rng": {str(n): (made.record.rng[str(n)][0], after) for n, after in made.rng.items()},
            "checksums": np.array(made.sums, dtype="<u8").tobytes(), "rounding": log_bytes, "batch": step.batch,
            "undeclared": step.undeclared, "rounded": made.rounded_elements, "logged": made.writer.entries,
        }  # fmt: skip

    def _context(self, record: StepRecord, log: LogReader) -> _Anew:
        self._made = _Anew(record, log, self._seed, self._policy, logged=self._step.logged, told=self._step.told)
        return self._made

    def _finish(
        self, tape: Tape, record: StepRecord, context: Following, slots: dict[int, Tensor], names: dict[int, str],
        frees: dict[int, list[int]], operands: Operands, entered: list[Tensor],
    ) -> None:  # fmt: skip
        """Ends a step whose record says what the execution gave."""
        made = self._made
        spans = {str(n): (record.rng[str(n)][0], after) for n, after in made.rng.items()}
        made.checked, made.hosts = len(made.sums), len(made.hosted)
        fitting = replace(record, checksums=bytes(8 * len(made.sums)), host=list(made.hosted), rng=spans)
        super()._finish(tape, fitting, context, slots, names, frees, operands, entered)
