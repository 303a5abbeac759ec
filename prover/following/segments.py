"""A Recorder whose steps are cut by what the program does: from one cut to the next goes one segment, which is a step.

It looks at the memory behind the state at three moments, because anything may happen between a program's operations:
after an optimizer's step, at the cut, and before the first operation of the next segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from prover.capture.sources import Sources
from prover.capture.step_capture import Capture
from prover.capture.storages import HostCopy
from prover.capture.without_modes import unseen
from prover.following.attempts import Attempts
from prover.following.data_memory import DataMemory
from prover.following.earlier_states import EarlierStates
from prover.following.found_objects import Found
from prover.recording import change_guard
from prover.recording.recorder import Recorder
from weighbridge.core.errors import StateChangedError
from weighbridge.transcript.parentage import KEY as PARENT
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.running_digest import FOLLOWED, KEY
from weighbridge.transcript.tape import Input

_SEPARATOR = "\x00"
"""Between a batch's number and a path, until it is known how many batches the segment has."""


@dataclass(slots=True)
class _Segment:
    """What is known of the segment in progress.

    Attributes:
        capture: Its operations.
        scope: Keeps PyTorch's settings while it lasts.
        entered: Copies of the batch's tensors as they entered, by provisional name.
        lent: Where the same lie: (name, address, slot, dtype, shape, strides, offset).
        batches: How many batches entered.
        stepped: Whether an optimizer has made a step.
        marks: What storages held after that, by address: (which storage it was, mark).
        before: Slots that had been written by then.
        optimizers: Identities of those that have begun a step.
        data: Where tensors lie that a program without a loader has taken from outside.
    """

    capture: Capture
    scope: AbstractContextManager[Capture]
    entered: dict[str, HostCopy] = field(default_factory=dict)
    lent: list[tuple[str, int, int | None, torch.dtype, torch.Size, tuple[int, ...], int]] = field(default_factory=list)
    batches: int = 0
    stepped: bool = False
    marks: dict[int, tuple[Any, bytes]] = field(default_factory=dict)
    before: set[int] = field(default_factory=set)
    optimizers: set[int] = field(default_factory=set)
    data: set[int] = field(default_factory=set)


class SegmentRecorder(Recorder):
    """Records segments; the Recorder's own blocks are not used."""

    _remedy = change_guard.FOLLOWED
    _declares: Mapping[str, Any] = MappingProxyType({KEY: FOLLOWED})
    earlier: EarlierStates
    data_memory: DataMemory
    attempts: Attempts | None = None
    """Those at this run, if it may be resumed."""
    _segment: _Segment | None = None
    _fresh = False
    """Whether the segment in progress has no operation yet."""

    def __enter__(self) -> Self:
        keep = (lambda *_: None) if self.attempts is None else self.attempts.keep
        self.earlier = EarlierStates(self._steps.state, lambda: self.step_number, keep)
        self.data_memory = DataMemory()
        super().__enter__()
        if self._chip_session is not None and self._shows_data:
            self._chip_session.before = lambda: self.data_memory.snapshot(self.step_number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self.attempts is not None and error is None and not self.failed:
            self.attempts.end()

    @property
    def parent(self) -> Parent | None:
        """The state of an earlier attempt that the program went on from, once step 0 is over."""
        return self._began_from

    @property
    def capture(self) -> Capture | None:
        """The capture of the segment in progress."""
        return None if self._segment is None else self._segment.capture

    @property
    def sources(self) -> Sources:
        """Where tensors come from that no operation makes."""
        return self._steps.sources

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has made a step in the segment in progress."""
        return self._segment is not None and self._segment.stepped

    @property
    def built(self) -> bool:
        """Whether step 0 is over."""
        return self.step_number > 0

    @property
    def in_job(self) -> bool:
        """Whether this is the recording of one of several ranks."""
        return self._job is not None

    @property
    def on_chip(self) -> bool:
        """Whether a chip sees what the program does."""
        return self._chip is not None

    @property
    def _shows_data(self) -> bool:
        """Whether data that lie on a chip beside a step are stored; a commitment says itself what a step has."""
        return self.on_chip and self._data is None

    @property
    def failed(self) -> bool:
        """Whether a step failed, so that nothing more can be recorded."""
        return self._steps.failed

    def knows(self, address: int) -> bool:
        """True if a storage is on the tape or part of the state."""
        capture = self.capture
        return capture is not None and (address in capture.slots or address in self._steps.state.names)

    def lacks(self, t: Tensor) -> bool:
        """True if what a tensor shows is neither on the tape nor part of the state."""
        address, capture = t.untyped_storage()._cdata, self.capture
        if address in self._steps.state.names:
            return False
        return capture is None or address not in capture.slots or not capture.covers(t)

    def keeps(self, address: int) -> bool:
        """True if a storage is part of the state."""
        return address in self._steps.state.names

    def covers(self, t: Tensor) -> bool:
        """True if what a tensor shows is on the tape, and not only other parts of its memory."""
        return self.capture is not None and self.capture.covers(t)

    def holds(self, address: int) -> bool:
        """True if a storage is one of the attached objects' now."""
        return address in self._attached.storage_names()

    def expel(self, address: int) -> None:
        """See `StepRunner.expel`."""
        self._steps.expel(address)

    # -- segments ------------------------------------------------------------------------------------------------------

    @unseen
    def begin(self) -> None:
        """Begins a segment."""
        self._steps.followed = True
        kind = "step" if self.built else "init"
        scope = self._steps.run({}, kind=kind)
        self._segment = _Segment(scope.__enter__(), scope)
        self._steps.batch = self._segment.entered  # what a chip is told of it, as far as it has come in
        self._fresh = self.built

    def operation(self) -> None:
        """To be called before every operation.

        Raises:
            StateChangedError: It is the segment's first, and the state is not what the segment before it left.
        """
        if self._fresh:
            self._fresh = False
            if self._verify:
                with self._or_fail():
                    change_guard.between_steps(self._steps.state, self.step_number, self._remedy)

    @unseen
    def enter(self, batch: dict[str, Tensor], *, joins: bool = False, by_hand: bool = False) -> None:
        """Takes in one batch, just before it is used first.

        Args:
            batch: Path to tensor.
            joins: Whether it is part of the batch that entered last.
            by_hand: Whether it is data that the program may use again, as an agent does its memories: it enters anew
                then, and does not become state, which would give each step a program of its own.
        """
        assert self._segment is not None, "operations come in a segment"
        segment = self._segment
        segment.batches += not (joins and segment.batches)
        named = {f"{segment.batches - 1}{_SEPARATOR}{path}": t for path, t in batch.items()}
        segment.capture.begin_batch(named, segment.before)
        for name, t in named.items():
            address = t.untyped_storage()._cdata
            segment.entered[name] = HostCopy(t)
            if by_hand:
                segment.data.add(address)
            slot = segment.capture.slots.get(address)
            segment.lent.append((name, address, slot, t.dtype, t.shape, t.stride(), int(t.storage_offset())))
        self._require_arithmetic(batch.values())

    @unseen
    def steps(self, optimizer: torch.optim.Optimizer) -> None:
        """To be called before an optimizer's step: how far schedules are may have changed since the segment began."""
        segment = self._segment
        if segment is not None and id(optimizer) not in segment.optimizers:
            self._steps.recount(optimizer, first=not segment.optimizers)
            segment.optimizers.add(id(optimizer))

    def tried(self, address: int) -> None:
        """Notes that the initialisation takes data from outside, which are its first batch if it updates a parameter.

        Args:
            address: Where they lie.
        """
        if self._segment is not None:
            self._segment.data.add(address)

    def updated(self) -> None:
        """Notes that the program has updated a parameter without an optimizer."""
        if self._segment is not None:
            self._segment.stepped = True

    @unseen
    def mark(self) -> None:
        """Notes what the memory holds after an optimizer's step, so that a change by no operation is seen later."""
        segment = self._segment
        if segment is None:
            return
        segment.stepped = True
        if self._verify:
            self._unmarked(segment)
            state = self._steps.state
            marks = state.contents([*state.names, *segment.capture.slots])
            segment.marks = {address: (self._which(address), mark) for address, mark in marks.items()}
            segment.before |= segment.capture.written
            segment.capture.written = set()

    def _which(self, address: int) -> Any:
        """Tells storages apart that have one address, one after the other."""
        assert self._segment is not None, "only within segments"
        return self._steps.state.names.get(address) or self._segment.capture.slots.get(address)

    def _unmarked(self, segment: _Segment) -> None:
        """Checks that what no operation has written since the mark is as it was then."""
        capture = segment.capture
        for address, mark in self._steps.state.contents(segment.marks).items():
            which, before = segment.marks[address]
            if which == self._which(address) and capture.slots.get(address) not in capture.written and mark != before:
                name = self._attached.storage_names().get(address, "a tensor")
                with self._or_fail():
                    raise StateChangedError(
                        f"{name} was changed after the optimizer's step {self.updates + 1}, by nothing that was "
                        f"recorded. {self._remedy.within}",
                        tensor=name,
                    )

    def show(self, found: Found) -> None:
        """Lets the chip know of the memory that is about to be attached; some of it no operation may ever have used.

        Args:
            found: The program's objects.
        """
        if self._chip_session is not None:
            self._chip_session.show(t for t in found.tensors() if t.device.type != "meta")

    @unseen
    def build(self, found: Found) -> None:
        """Ends step 0: what was found is attached, and what of it was made elsewhere enters.

        Of a program that updates its parameters itself, its first batch is in step 0. The data that this batch is of do
        not become state, which would give each later step a program of its own: they enter anew when they are used.

        Args:
            found: The program's objects.
        """
        assert self._segment is not None, "operations come in a segment"
        segment, self._segment = self._segment, None
        for t in found.tensors():
            if t.device.type != "meta" and t.untyped_storage()._cdata not in segment.capture.slots:
                segment.capture.enter_tensor(t)
        self._close_scope(segment)
        self._rename(segment)
        self._pending = segment.capture
        self._made = {}
        self.data_memory.built()
        if self.attempts is not None and PARENT not in self._declared:
            self._began_from = self.attempts.parent(segment.capture.undeclared)
        written = self._written_in(segment)
        self.attach(*found.objects, **found.tensors_by_name)
        if segment.stepped:
            self._let_go(segment, written)
        self.earlier.settle()

    @unseen
    def cut(self, *, last: bool = False) -> None:
        """Ends the segment in progress as a step.

        Args:
            last: Whether none comes after it.

        Raises:
            StateChangedError: Memory was changed without an operation.
        """
        assert self._segment is not None, "operations come in a segment"
        segment, self._segment = self._segment, None
        self._close_scope(segment)
        self._segment = segment  # which the checks look at
        try:
            if self._verify:
                with self._or_fail():
                    self._unmarked(segment)
                segment.capture.written |= segment.before
                with self._or_fail():
                    change_guard.while_running(
                        segment.capture, self._steps.memory, self._lent(segment), segment.entered, self.step_number,
                        self._remedy,
                    )  # fmt: skip
        finally:
            self._segment = None
        beside = self._beside(segment, last=last)
        self._rename(segment)
        undeclared, before = dict(segment.capture.undeclared), self.step_number
        # Ranks draw from streams of their own in steps, and from one in edits.
        written = self._written_in(segment)
        held = self._finish(segment.capture, "step" if segment.stepped or self.in_job else "edit")
        if self.earlier.cut(segment.capture.tape, undeclared, before):
            self._out.put_returned(self.earlier.returned)
        if (self.step_number - 1) % self._every == 0:
            self._checkpoint()  # of what the step left behind, so before anything of it is let go
        held.clear()
        beside.clear()
        self._let_go(segment, written)

    def _written_in(self, segment: _Segment) -> set[int]:
        """Where the memory lies that operations have written."""
        return {a for a, slot in segment.capture.slots.items() if slot in segment.capture.written | segment.before}

    def _let_go(self, segment: _Segment, written: set[int]) -> None:
        """Takes data out of the state that no operation has written and no attached object holds."""
        for address in segment.data - written - self._attached.storage_names().keys():
            if address in self._steps.state.names:
                self._steps.expel(address)

    @unseen
    def end(self, complete: bool) -> None:
        """Ends the last segment: one that changed nothing of the state is dropped, except in a job or on a chip.

        The ranks of a job may differ in what they changed, and a replay has to find them at the same step. A chip may
        have taken snapshots in it, or take one afterwards, of the memory that it left.

        Args:
            complete: Whether the program ended as planned.
        """
        segment = self._segment
        if segment is None:
            return
        named = {segment.capture.slots.get(address) for address in self._steps.state.names}
        changed = segment.stepped or (segment.capture.written | segment.before) & named
        if complete and self.built and (changed or self.in_job or self.on_chip):
            self.cut(last=True)
            return
        self.abandon()

    def give_up(self) -> None:
        """Ends the recording after a failure: the transcript ends with the step before."""
        self._steps.failed = True
        self.abandon()

    @unseen
    def abandon(self) -> None:
        """Leaves the segment in progress without a record."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._close_scope(segment)
            self._steps.capture = None

    def _close_scope(self, segment: _Segment) -> None:
        segment.scope.__exit__(None, None, None)

    def _beside(self, segment: _Segment, *, last: bool) -> list[Tensor]:
        """Adds to the batch the data that lay beside it at a snapshot; returns what holds them meanwhile."""
        if not self._shows_data:
            return []
        copies = self.data_memory.cut(self.step_number, segment.entered.values(), last=last)
        if not copies:
            return []
        named = {f"{segment.batches}{_SEPARATOR}held{number}": copy for number, copy in enumerate(copies)}
        segment.batches += 1
        tensors = {name: copy.tensor() for name, copy in named.items()}
        segment.capture.begin_batch(tensors, segment.before)
        segment.entered |= named
        return list(tensors.values())

    def _lent(self, segment: _Segment) -> dict[str, Tensor]:
        """The batch's tensors whose memory still lives, as they are now."""
        found = {}
        for name, address, slot, dtype, shape, stride, offset in segment.lent:
            storage = self._steps.memory.storage(address)
            if storage is not None and slot is not None and segment.capture.slots.get(address) == slot:
                found[name] = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)
        return found

    def _rename(self, segment: _Segment) -> None:
        """Gives the batch's tensors their names: those of one batch, or of a list of several."""

        def plain(name: str) -> str:
            number, _, path = name.partition(_SEPARATOR)
            return path if segment.batches == 1 else f"{number}.{path}"

        tape = segment.capture.tape
        tape.inputs = [
            Input(
                i.slot, i.bytes, i.origin, "\n".join(map(plain, i.name.split("\n"))) if i.origin == "batch" else i.name
            )
            for i in tape.inputs
        ]
        tape.batch_views = [(plain(name), ref) for name, ref in tape.batch_views]
        self._steps.batch = {plain(name): copy for name, copy in segment.entered.items()}
