"""Follows a program as a recording does, and goes on where a recording would end.

An operation that would be refused runs as it is; a change that would end the recording is taken down. After some steps
the program is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prover.capture.user_line import user_place
from prover.examination.native_results import on_tape, run_natively
from prover.examination.observations import Observations
from prover.examination.pace import Enough, LineTimes, now
from prover.following.dispatch import OtherChanges, operands, tensors
from prover.following.notes import Notes
from prover.following.operations import Operations
from prover.following.program import Follower
from prover.following.segments import SegmentRecorder
from weighbridge.core.errors import (
    DeviceArithmeticError,
    RefusedOperationError,
    StateChangedError,
    UnknownOperationError,
    WeighbridgeError,
)
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.schemas import Op

PROFILED = 2
"""The step whose operations are timed one by one; those after it are timed as a whole."""

UNSEEN = "the steps after the first could not be looked at, because of what is refused in it; there may be more"


class ExaminedRecorder(SegmentRecorder):
    """Records segments; what would end the recording is taken down."""

    observed: Observations

    def _require_arithmetic(self, tensors: Iterable[Tensor]) -> None:
        for device in {torch.device("cpu"), *(t.device for t in tensors)}:
            if str(device) not in self.observed.devices and device.type != "meta":
                fault = None
                try:
                    probes.require(device, self._policy)
                except DeviceArithmeticError as error:
                    fault = error.message
                self.observed.devices[str(device)] = fault

    @contextmanager
    def _or_fail(self) -> Iterator[None]:
        try:
            yield
        except StateChangedError as error:
            self.observed.met(error, self.step_number)
            self.observed.faithful = False

    def state_name(self, address: int) -> str | None:
        """Returns the name of a storage of the state, or None."""
        return self._steps.state.names.get(address)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state after the last step, which a checkpoint holds."""
        return sum(size for size, _ in self._steps.state.digests.values())

    def trust(self) -> None:
        """See `TapeStore.trust`."""
        self._tapes.trust()


class ExaminedOperations(Operations):
    """Records operations, runs those that are refused as they are, and times them."""

    _recorder: ExaminedRecorder

    def __init__(self, recorder: SegmentRecorder, notes: Notes, steps: Any, *, native: bool) -> None:
        super().__init__(recorder, notes, steps, native=native)
        self.lines = LineTimes()
        self.values: dict[int, list[tuple[str, int] | None]] = {}
        """By step: the line of each of its values."""
        self._beside = False
        """Whether an operation that was refused has made what no tape has, such as complex numbers."""

    def run(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """See `Operations.run`; what no tape has is left alone, since what made it has been taken down."""
        if self._beside and any(not on_tape(t) and t.device.type != "meta" for t in operands(args, kwargs)):
            return self._natively(func, args, kwargs)
        return super().run(func, types, args, kwargs)

    def _recorded(
        self, func: Op, types: Any, args: Any, kwargs: dict[str, Any], given: list[Tensor], data: list[Tensor]
    ) -> Any:
        recorder = self._recorder
        step, capture = recorder.step_number, recorder.capture
        begin = time.perf_counter()
        try:
            out = super()._recorded(func, types, args, kwargs, given, data)
        except (RefusedOperationError, UnknownOperationError) as error:
            recorder.observed.met(error, step)
            return self._natively(func, args, kwargs)
        seconds = time.perf_counter() - begin
        if step == PROFILED:
            self.lines.add(func, seconds)
        if capture is not None:
            places = self.values.setdefault(step, [])
            if len(capture.values) > len(places):
                places += [user_place()] * (len(capture.values) - len(places))
        return out

    def _natively(self, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        recorder = self._recorder
        if recorder.capture is None:
            return func(*args, **kwargs)
        recorder.trust()
        out, names, whole = run_natively(recorder.capture, func, args, kwargs)
        recorder.observed.entered |= {(recorder.step_number, name) for name in names}
        recorder.observed.faithful &= whole
        self._beside |= any(not on_tape(t) for t in tensors(out))
        return out


class WritableArrays(OtherChanges):
    """Lets a program write to arrays of what is recorded, which a recording does not."""

    def __init__(self, owner: Any, recorded: Callable[[Tensor], bool], recorder: ExaminedRecorder) -> None:
        super().__init__(owner, recorded)
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (func is Tensor.numpy or func is Tensor.__array__) and on_tape(args[0]):
            address = args[0].untyped_storage()._cdata
            name = self._recorder.state_name(address)
            if name is not None:
                self._recorder.observed.arrays.add(name)
            elif self._recorder.knows(address):
                self._recorder.observed.faithful = False
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


class ExaminedFollower(Follower):
    """Follows a program for some steps, and then ends it.

    Attributes:
        times: When an optimizer had made a step, in seconds.
        cuts: How many there had been at the end of each step, the initialisation first.
        keeping: Seconds that it took to write each step and to look at the memory.
        over: Whether the program is to end.
    """

    def __init__(
        self, recorder: ExaminedRecorder, notes: Notes, *, native: bool, steps: int, writable: bool = False
    ) -> None:
        """Prepares.

        Args:
            recorder: Records.
            notes: Takes down what enters without an origin.
            native: Whether evaluations run as they are.
            steps: After how many the program ends.
            writable: Whether the program may write to arrays of what is recorded.
        """
        super().__init__(recorder, notes, native=native, operations=ExaminedOperations)
        self._examined, self._steps, self._writable = recorder, steps, writable
        self.times: list[float] = []
        self.cuts: list[int] = []
        self.keeping: list[float] = []
        self.over = False

    @property
    def operations(self) -> ExaminedOperations:
        """What decides of operations."""
        assert isinstance(self._operations, ExaminedOperations), "which it was made with"
        return self._operations

    @property
    def state_bytes(self) -> int:
        """See `ExaminedRecorder.state_bytes`."""
        return self._examined.state_bytes

    def _other_changes(self) -> OtherChanges:
        if not self._writable:
            return super()._other_changes()
        return WritableArrays(self, lambda t: self._recorder.knows(t.untyped_storage()._cdata), self._examined)

    def operation(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """See `prover.following.dispatch.Followed`."""
        try:
            return super().operation(func, types, args, kwargs)
        except WeighbridgeError as error:
            self.end(error)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            super()._guarded(work)
        except WeighbridgeError as error:
            self.end(error)

    def end(self, error: WeighbridgeError | None = None) -> None:
        """Ends the program.

        Args:
            error: What would have ended the recording, if something did.

        Raises:
            Enough: Always.
        """
        if error is not None:
            self._examined.observed.met(error, self._recorder.step_number)
        if not self.over:
            self.over = True
            self._aside += 1  # for good
        raise Enough

    def _cut_now(self, fed: bool) -> None:
        before, begin = self._recorder.step_number, time.perf_counter()
        try:
            super()._cut_now(fed)
        except WeighbridgeError:
            raise
        except Exception:
            if not self._examined.observed.obstacles:
                raise
            # What was refused, and run all the same, cannot be written down.
            self._recorder.give_up()
            self._examined.observed.notes[UNSEEN, ""] = None
            self.end()
        if self._recorder.step_number > before:
            self.keeping.append(time.perf_counter() - begin)
            self.cuts.append(len(self.times))
            if self._recorder.step_number > self._steps:
                self.end()

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.over:
            raise Enough  # for a program that kept the first one to itself
        super()._stepped(optimizer)
        self.times.append(now())


def examined(path: Path, observed: Observations, **options: Any) -> ExaminedRecorder:
    """Returns a Recorder for an examination.

    Args:
        path: Directory of the transcript, which is thrown away.
        observed: Takes down what is met.
        **options: Of the Recorder.
    """
    recorder = ExaminedRecorder(path, **options)
    recorder.observed = observed
    return recorder
