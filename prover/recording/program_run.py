"""One recorded step that is run as the straight-line program of a known tape, on the storages that the program holds.

It stands where a capture stands (`prover.capture.in_progress`): what the Recorder does with a finished step it does
with this one too, from the names of what survives to the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from prover.capture.claimed_training import ClaimedTraining
from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from prover.capture.storages import HostCopy, Memory
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.straight_line.frame import Frame, Line
from weighbridge.execution.straight_line.program import Program
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.random.variates import Draw
from weighbridge.program.operands import Operands, tensor
from weighbridge.program.start_rules import WORD
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.steps import Scalar, same_scalar
from weighbridge.transcript.tape import DTYPES, Node, Tape

Tensor = torch.Tensor


class ProgramFaultError(WeighbridgeError):
    """A program did what its tape does not say; the step is not in the transcript."""

    code = "internal"


class Calls(Protocol):
    """What performs the collectives of a step on one of several ranks."""

    def perform(self, context: Recording, node: Node, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        """Performs the collective that `context` has begun, and accounts for it."""


class ProgramRecording(Recording):
    """The context of such a step: it notes results however they come, and draws where the tape says."""

    def __init__(
        self, seed: int, generators: Generators, policy: Policy, stream: int = 0, *, logs: LogKind,
        sources: Mapping[int, torch.Generator] | None = None, calls: Calls | None = None,
    ) -> None:  # fmt: skip
        """Prepares; `sources` are the generators that the tape draws from, by number."""
        super().__init__(seed, generators, policy, stream, logs=logs)
        self._calls = calls
        self._node: Node | None = None
        self._sources = sources or {}

    def begin(self, op: int, node: Node | None = None) -> None:
        """Starts operation number `op`."""
        super().begin(op)
        self._node = node

    def wants_bounds(self, outputs: int, *, small: bool) -> bool:
        """Whether there is a rounding log, which is written from bounds."""
        return self.bounded

    def take_rounded(self, results: Sequence[tuple[Tensor, int]], wide: torch.dtype) -> bool:
        """Takes the rounded outputs of an operation."""
        for out, checksum in results:
            self._took(out, checksum)
        return True

    def take_listed(self, lines: Sequence[Line], sums: npt.NDArray[np.uint64], reads: npt.NDArray[np.float64]) -> None:
        """Takes the results of a list of operations."""
        self.checksums += sums.tolist()
        self.hosts += reads.tolist()

    def collective(self, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        """Performs a collective with the other ranks."""
        assert self._node is not None, "an operation has begun"
        assert self._calls is not None, "a step with collectives belongs to a job"
        self._calls.perform(self, self._node, outs, ins)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`: recomputation repeats draws, so the tape says how far the counter was."""
        assert self._node is not None, "an operation has begun"
        assert self._node.draw is not None, "a random operation draws"
        number, offset = self._node.draw
        source = self._sources[number]
        if self._generators.number(source) != number:  # which may also put it where it was before a crash
            raise ProgramFaultError(f"generators draw in another order than the tape has, at operation {self.op}")
        if number in self.rng:
            source.manual_seed((self.rng[number][0] + offset) % WORD)
        return super().draw(source, device)


class PlacedOperands(Operands):
    """Operands on storages that lie where they lie: of a batch's, references count from where its window begins."""

    def __init__(self, tape: Tape, slots: dict[int, Tensor], values: list[Any], begins: Mapping[int, int]) -> None:
        super().__init__(torch.device("cpu"), tape, slots, values)
        self._moved = {slot: begin for slot, begin in begins.items() if begin}

    def _tensor(self, index: int) -> Tensor:
        if index not in self._cache:
            slot, dtype, size, stride, offset = self._tape.refs[index]
            if slot in self._moved:
                moved = offset + self._moved[slot] // DTYPES[dtype].itemsize
                self.know(index, slot, tensor(self._slots[slot], (slot, dtype, size, stride, moved)))
        return super()._tensor(index)


class ProgramRun:
    """Such a step.

    Attributes:
        complete: Operations that are complete.
        And those of `prover.capture.in_progress.InProgress`.
    """

    def __init__(
        self, tape: Tape, context: ProgramRecording, values: list[Scalar], hosts: list[Scalar], written: set[int],
        memory: Memory, entered: Mapping[int, int], begins: Mapping[int, int],
    ) -> None:  # fmt: skip
        """Prepares for the run.

        Args:
            tape: The tape of an earlier step, complete.
            context: What operations are evaluated in.
            values: The step's values.
            hosts: The host values that will be read.
            written: Slots of the storages that the operations change.
            memory: Follows the storages.
            entered: Slot to address of the storages that exist: those of state and batch.
            begins: At which byte of its storage the window of each slot of the batch begins.
        """
        self.tape: Tape = replace(tape, survivors=[])
        self.context: Recording = context
        self.values: list[bool | int | float] = values
        self.undeclared: dict[str, HostCopy] = {}
        self.claimed: ClaimedTraining | None = None
        self.adopted: dict[int, str] = {}
        self.written: set[int] = written
        self.slots: dict[int, int] = {address: slot for slot, address in entered.items()}
        self.complete = 0
        self._expected, self._memory, self._entered = hosts, memory, dict(entered)
        self._live: dict[int, Tensor] = {}
        for slot, address in entered.items():
            storage = memory.storage(address)
            assert storage is not None, "what enters a step lives"
            self._live[slot] = torch.empty(0, dtype=torch.uint8).set_(storage)
        for item in tape.inputs:
            if item.origin == "free":  # of no bytes, which PyTorch itself makes and hands in
                self._live[item.slot] = torch.empty(0, dtype=torch.uint8)
                self.undeclared[item.name] = HostCopy(self._live[item.slot])
        self._operands = PlacedOperands(self.tape, self._live, values, begins)
        self._let_go: Callable[[int], None] = lambda slot: None

    def run(self, program: Program, step: int, let_go: Callable[[int], None], reached: Callable[[], None]) -> None:
        """Runs the program.

        Args:
            program: The tape's.
            step: The step's number.
            let_go: Called with each slot of the state that dies, to let go of what else refers to it.
            reached: Called whenever `complete` has changed.

        Raises:
            WeighbridgeError: As an operation does, or something is not as the tape says.
        """
        self._let_go = let_go

        def at(complete: int) -> None:
            self.complete = complete
            reached()

        at(0)
        frame = Frame(torch.device("cpu"), self._live, self._operands, self.values, self.context, self._release, at)
        program.run(frame, step)
        last = len(self.tape.nodes)
        for when, slot in self.tape.frees:
            if when == last:
                self._release(slot)
        self.complete = last
        found = self.context.hosts
        if len(found) != len(self._expected) or not all(map(same_scalar, found, self._expected)):
            raise ProgramFaultError(
                f"step {step} read other numbers than were foreseen; this is a fault of the Recorder"
            )
        for slot, data in self._live.items():
            if slot not in self._entered:
                self.slots[self._memory.watch(data.untyped_storage())] = slot

    def tensor(self, slot: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
        """Returns a new tensor on a storage that lives."""
        return torch.empty(0, dtype=dtype).set_(self._live[slot].untyped_storage(), offset, size, stride)

    def close(self) -> None:
        """Lets go of all storages."""
        for slot in [*self._live]:
            self._live.pop(slot)
            self._operands.forget(slot)

    def _release(self, slot: int) -> None:
        self._live.pop(slot, None)
        self._operands.forget(slot)
        address = self._entered.get(slot)
        if address is None:
            return
        self._let_go(slot)
        if self._memory.storage(address) is not None:
            raise ProgramFaultError(
                f"something holds memory that the step lets go of (slot {slot} of its tape); keep no gradients and "
                "results of earlier steps in a loop with compiled steps"
            )

    # -- what the Recorder asks ----------------------------------------------------------------------------------------

    def died(self, address: int) -> None:
        """Notes that a storage has died, which the tape has already."""
        self.slots.pop(address, None)

    def state_died(self, address: int, name: str, size: int) -> None:
        """Notes that a storage of the state has died, which the tape has already."""
        self.slots.pop(address, None)

    def where(self) -> str | None:
        """Returns None: no module runs."""
        return None

    def finish(self) -> Tape:
        """Returns the tape, with the survivors that were named."""
        return self.tape
