"""Decides of every operation of a followed program whether it is recorded.

Every operation of the thread that called `follow` comes here. Memory is of one of four kinds: *known* (made by recorded
operations, or state), *awaited* (a batch that was fetched and is not used yet), *tainted* (computed in an evaluation),
and *outside* (anything else, such as what a file or NumPy gave). An operation is recorded if it has to do with known or
awaited memory or makes memory from nothing; else it runs as it is, and what comes of it is tainted or outside too.
Tainted and outside memory that meets what is trained enters there: as an undeclared input with its line, or, in a
program that fetches no batches, memory from outside as part of the batch.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from prover.capture.overload_facts import overload
from prover.capture.user_line import user_line
from prover.following.awaited import Awaited, Fetched
from prover.following.by_hand import ByHand, selects
from prover.following.dispatch import changed, operands, takes_storage, tensors
from prover.following.evaluation import Evaluations
from prover.following.notes import NUMBER_BYTES, Notes
from prover.following.segments import SegmentRecorder
from prover.following.taint import Taint
from prover.following.updates import Updates
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import Op


class Steps(Protocol):
    """The part that knows where steps end."""

    def fetches_none(self) -> bool:
        """Whether the step in progress has no batch that was fetched, and is not going to have one."""

    def trains_unbuilt(self, t: Tensor) -> bool:
        """True if a tensor is an optimizer's, and the initialisation is not over."""

    def without_optimizer(self) -> bool:
        """Whether the program has made no optimizer so far."""

    def may_train(self) -> bool:
        """Whether the program has made no optimizer so far, and something that gradients are wanted of."""

    def use(self, fetched: Fetched) -> None:
        """Takes a batch in, just before it is used first."""

    def cut(self, *, fed: bool = False) -> None:
        """Ends the step, if an optimizer has made one, or the initialisation.

        Args:
            fed: Whether data are about to be used, so that the initialisation is over without an optimizer too.
        """

    def stop(self) -> None:
        """Ends the recording after an error."""


class Operations:
    """Records operations, or runs them as they are."""

    def __init__(self, recorder: SegmentRecorder, notes: Notes, steps: Steps, *, native: bool) -> None:
        """Prepares.

        Args:
            recorder: Records.
            notes: Takes down what enters without an origin.
            steps: Knows where steps end.
            native: Whether evaluations run as they are.
        """
        self._recorder, self._notes, self._steps, self._native = recorder, notes, steps, native
        self.taint, self.evaluations, self.awaited = Taint(), Evaluations(), Awaited()
        self.by_hand = ByHand(recorder, notes)
        self.updates = Updates()
        self.evaluations.outside = self._from_outside

    def run(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Executes an operation, recorded or not, and returns its result."""
        recorder = self._recorder
        if any(t is not Tensor and issubclass(t, FakeTensor) for t in types):
            return func(*args, **kwargs)  # PyTorch looks for shapes
        given = operands(args, kwargs)
        known = waiting = tainted = number = False
        outside: set[int] = set()
        for t in given:
            address = t.untyped_storage()._cdata
            if address in self.taint:
                tainted = True
            elif address in self.awaited and not recorder.covers(t):
                waiting = True
            elif not recorder.lacks(t):
                known = True
            elif t.untyped_storage().nbytes() > NUMBER_BYTES:
                outside.add(address)
            else:
                number = True
        evaluating = self.evaluations.line if self._native else None
        if takes_storage(args):
            return self._unrecorded(func, args, kwargs, None)
        if (evaluating is not None or tainted) and not self._trains(func, args, kwargs, given, evaluating):
            return self._unrecorded(func, args, kwargs, evaluating or self._origin(given))
        apart = (outside or number) and not (known or waiting or tainted) and not self._is_collective(func)
        if apart and not _draws(func) and not (recorder.built and self._written(func, args, kwargs)):
            made = func(*args, **kwargs)
            recorder.sources.follows(given, made)
            if recorder.on_chip and not recorder.built:
                recorder.data_memory.early((*given, *tensors(made)))
            if func is torch.ops.aten.lift_fresh.default:
                recorder.sources.add(made, "number")
            return made
        if recorder.failed or recorder.capture is None:
            return func(*args, **kwargs)
        if not given and self._native and self.evaluations.between_trainings():
            return self._unrecorded(func, args, kwargs, user_line())
        by_hand = self._steps.fetches_none()
        if (by_hand or not recorder.built) and outside and selects(func, given, outside):
            return func(*args, **kwargs)
        try:
            data = [t for t in given if by_hand and self._is_data(t)]
            if data and self._written(func, args, kwargs):
                data = []
            if self._begins(func, args, kwargs, given, by_hand=by_hand, data=bool(data)):
                self._steps.cut(fed=True)
                return self.run(func, types, args, kwargs)
            return self._recorded(func, types, args, kwargs, given, data)
        except WeighbridgeError:
            self._steps.stop()
            raise

    def wrapped(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Fills a sharded tensor at random; everything else that is done to one comes as operations on its parts."""
        capture = self._recorder.capture
        if capture is None or capture.ranks is None or self._recorder.failed:
            return NotImplemented
        try:
            self._recorder.operation()
            return capture.ranks.take(func, types, args, kwargs)
        except WeighbridgeError:
            self._steps.stop()
            raise

    def _from_outside(self, given: Any) -> bool:
        """True if tensors that a module is given are of no batch, in a program that fetches its batches."""
        found = [t.untyped_storage()._cdata for t in tensors(given)]
        if not found or not self._native or not self._recorder.built or self._steps.fetches_none():
            return False
        return not any(self._recorder.knows(address) or address in self.awaited for address in found)

    def _is_collective(self, func: Op) -> bool:
        """True if an operation is recorded by all ranks, since a replay lets them wait for each other."""
        return self._recorder.in_job and func.namespace in COLLECTIVES

    def _is_data(self, t: Tensor) -> bool:
        address = t.untyped_storage()._cdata
        return address not in self.taint and address not in self.awaited and self.by_hand.wants(t)

    def _written(self, func: Op, args: Any, kwargs: dict[str, Any]) -> bool:
        """True if an operation changes an attached object."""
        return any(self._recorder.holds(t.untyped_storage()._cdata) for t in changed(func, args, kwargs))

    def _begins(
        self, func: Op, args: Any, kwargs: dict[str, Any], given: list[Tensor], *, by_hand: bool, data: bool
    ) -> bool:
        """True if a step, or the first one, begins with an operation.

        Without an optimizer the first one begins with the first batch of a loop, if there is something to train. A
        batch that was fetched alone, to try a model or to look at it, is none of a loop.
        """
        recorder = self._recorder
        if not torch.is_grad_enabled() and not (data and recorder.stepped):
            return False
        if not recorder.built:
            if self._in_loop(given) and self._steps.may_train():
                return True
            return func not in _COPIES and any(
                t.requires_grad and t.is_leaf and self._steps.trains_unbuilt(t) for t in given
            )
        if not (by_hand and recorder.stepped) or torch._C._current_graph_task_id() != -1:
            return False
        if self._steps.without_optimizer() and func in _COPIES:
            return False  # as `p.data` is one, which a program updates
        trained = (t for t in given if t.requires_grad and t.is_leaf)
        return data or (
            any(recorder.holds(t.untyped_storage()._cdata) for t in trained) and not self._written(func, args, kwargs)
        )

    def _in_loop(self, given: list[Tensor]) -> bool:
        """True if operands are of a batch that is used first, while what it was fetched from goes on."""
        addresses = (t.untyped_storage()._cdata for t in given if self._recorder.lacks(t))
        return any(address in self.awaited and self.awaited[address].goes_on() for address in addresses)

    def _recorded(
        self, func: Op, types: Any, args: Any, kwargs: dict[str, Any], given: list[Tensor], data: list[Tensor]
    ) -> Any:
        recorder = self._recorder
        recorder.operation()
        self.by_hand.operation()
        new: set[int] = set()
        for t in given:
            address = t.untyped_storage()._cdata
            if address in self.awaited and not recorder.covers(t):
                self._steps.use(self.awaited[address])
                if not recorder.covers(t):
                    raise UsageError(
                        "two batches that are in use at the same time lie on one tensor's memory; let the data set "
                        "return copies (`.clone()`)"
                    )
            elif any(t is each for each in data) and recorder.lacks(t):
                self.by_hand.enter(t)
            elif not recorder.knows(address) and address not in new:
                if not recorder.built and self._is_data(t):
                    recorder.tried(address)
                self._notes.add(recorder, t, len(new), self.taint.line(address))
                self.taint.clear(address)
                new.add(address)
        assert recorder.capture is not None, "operations come in a segment"
        out = recorder.capture.__torch_dispatch__(func, types, args, kwargs)
        if self._steps.without_optimizer() and not self._recorder.in_job:
            self.updates.seen(given)
            if self.updates.made(changed(func, args, kwargs)):
                recorder.updated()
        return out

    def _trains(self, func: Op, args: Any, kwargs: dict[str, Any], given: list[Tensor], evaluating: str | None) -> bool:
        """True if an operation belongs to the training although something of an evaluation is in it."""
        if self._written(func, args, kwargs):
            return True
        if evaluating is not None or not torch.is_grad_enabled():
            return False
        return any(t.requires_grad and self._recorder.knows(t.untyped_storage()._cdata) for t in given)

    def _unrecorded(self, func: Op, args: Any, kwargs: dict[str, Any], line: str | None) -> Any:
        """Executes an operation of an evaluation; what it makes or changes is tainted, and no longer recorded."""
        recorder = self._recorder
        touched = changed(func, args, kwargs)
        for t in touched:
            address = t.untyped_storage()._cdata
            if recorder.knows(address):
                recorder.expel(address)
        out = func(*args, **kwargs)
        if line is not None:
            made = (t for t in (*tensors(out), *touched) if not self._has_origin(t))
            self.taint.add(made, line)
        return out

    def _has_origin(self, t: Tensor) -> bool:
        address = t.untyped_storage()._cdata
        return self._recorder.knows(address) or address in self.awaited

    def _origin(self, given: list[Tensor]) -> str:
        lines = (self.taint.line(t.untyped_storage()._cdata) for t in given)
        return next((line for line in lines if line is not None), "an evaluation")


COLLECTIVES = ("c10d", "_c10d_functional")

_COPIES = {torch.ops.aten.clone.default, torch.ops.aten.detach.default}
"""What an average of weights begins with, or a copy for later: no training yet."""


def _draws(func: Op) -> bool:
    rule = overload(func).rule
    return rule is not None and rule.kind is Kind.RANDOM
