"""Follows a program: where its steps end, and what it fetches.

A step ends at the next fetch of a batch after an optimizer's step. In a program that fetches none it ends at the next
call of a trained module, with gradients, or where the next data come in. What becomes of each operation is decided by
`prover.following.operations`.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from prover.capture.derived_formulas import innermost
from prover.capture.user_line import user_line
from prover.following.awaited import Fetched
from prover.following.calls import Calls
from prover.following.dispatch import Operations as OperationsMode
from prover.following.dispatch import OtherChanges
from prover.following.fetches import Fetches
from prover.following.found_objects import Found, ProgramObjects
from prover.following.jobs import NOT_YET, Objects, in_job
from prover.following.notes import Notes
from prover.following.operations import Operations
from prover.following.segments import SegmentRecorder
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.numerics.schemas import Op
from weighbridge.transcript.data import flatten

T = TypeVar("T")

NOTHING = (
    "nothing was trained while the program was followed: no optimizer made a step, and no parameter was changed after "
    "a backward pass. Call follow() before the model is built, in the thread that trains; under `weighbridge record`, "
    "name the script that trains, and not one that starts it in another process"
)


_followers: WeakSet[Follower] = WeakSet()


def _forked() -> None:
    """In a process that was forked off, such as one that loads data, nothing is recorded."""
    for follower in _followers:
        follower.leave()


os.register_at_fork(after_in_child=_forked)


def any_open() -> bool:
    """Whether a program of this process is followed."""
    return any(each.open for each in _followers)


class Follower:
    """Decides of every operation, fetch and optimizer step of a program what becomes of it."""

    def __init__(
        self, recorder: SegmentRecorder, notes: Notes, *, native: bool, operations: type[Operations] = Operations
    ) -> None:
        """Prepares; nothing is recorded before `begin`.

        Args:
            recorder: Records.
            notes: Takes down what enters without an origin.
            native: Whether evaluations run as they are.
            operations: Decides what becomes of each operation.
        """
        self._recorder, self._native = recorder, native
        self._operations = operations(recorder, notes, self, native=native)
        self._taint, self._evaluations = self._operations.taint, self._operations.evaluations
        self._awaited, self._by_hand = self._operations.awaited, self._operations.by_hand
        self._thread, self._process = get_ident(), os.getpid()
        self._aside = 0
        self._open = False
        self._entered: set[int] = set()
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._stepping = self._new = self._supposed = False
        self._cuts = 0
        self._objects = ProgramObjects()
        self._scope = ExitStack()

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the recording goes on."""
        return self._open

    def begin(self) -> None:
        """Begins to record; see `follow`."""
        self._objects.begin()
        self._recorder.sources.add(self._objects.older_tensors(), "before", "")
        self._recorder.__enter__()
        self._recorder.begin()
        self._evaluations.open()
        hooks = [register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(self._stepped)]
        for hook in hooks:
            self._scope.callback(hook.remove)
        self._scope.callback(self._evaluations.close)
        self._scope.enter_context(Fetches(self))
        self._scope.enter_context(Calls(self))
        self._scope.enter_context(Objects(self))
        self._scope.enter_context(self._other_changes())
        self._scope.enter_context(OperationsMode(self))
        self._open = True
        _followers.add(self)
        atexit.register(self._at_exit)

    def _other_changes(self) -> OtherChanges:
        return OtherChanges(self, lambda t: self._recorder.knows(t.untyped_storage()._cdata))

    def close(self, error: BaseException | None = None) -> None:
        """Ends the recording and signs the transcript; called by itself at the end of the process.

        Args:
            error: What ended the program early, if something did. The transcript then says that it is incomplete.

        Raises:
            UsageError: Nothing was trained, so there is no transcript of a training.
        """
        if not self._open:
            return
        self._open = False
        atexit.unregister(self._at_exit)
        self._scope.close()
        self._awaited.clear()
        recorder = self._recorder
        try:
            if error is None and not recorder.failed:
                if not recorder.built or (self._supposed and not self._operations.updates.parameters):
                    raise UsageError(NOTHING)
                recorder.end(complete=True)
        except BaseException as problem:
            error = error or problem
            raise
        finally:
            recorder.abandon()
            recorder.__exit__(None if error is None else type(error), error, None)

    def _at_exit(self) -> None:
        if os.getpid() == self._process:
            self.close(getattr(sys, "last_value", None))

    def leave(self) -> None:
        """Lets go of the program without a word, in a process that was forked off."""
        self._open = False

    # -- fetches -------------------------------------------------------------------------------------------------------

    @property
    def aside_now(self) -> bool:
        """See `prover.following.dispatch.Followed`."""
        return not self._open or self._aside > 0

    def aside(self, work: Callable[[], T]) -> T:
        """See `prover.following.fetches.Fetching`."""
        if get_ident() != self._thread:
            return work()
        self._aside += 1
        try:
            return work()
        finally:
            self._aside -= 1

    def fetched(self, loader: Any, fetch: Callable[[], T], goes_on: Callable[[], bool]) -> T:
        """See `prover.following.fetches.Fetching`: the place where steps are cut."""
        if self.aside_now or get_ident() != self._thread:
            return fetch()
        self.cut()
        evaluates = self._native and self._evaluations.fetches(loader)
        batch = self.aside(fetch)
        self._evaluations.last_loader = loader
        flat = dict(flatten(batch))
        if self._recorder.on_chip:
            self._recorder.data_memory.loader(loader)
            self._recorder.data_memory.add(flat.values())
        own = {name: t for name, t in flat.items() if not self._recorder.keeps(t.untyped_storage()._cdata)}
        if evaluates:
            self._taint.add(own.values(), user_line())
        elif own:
            addresses = {t.untyped_storage()._cdata for t in own.values()}
            self._awaited.add(Fetched(id(loader), flat, self._cuts, goes_on), addresses)
        return batch

    def use(self, fetched: Fetched) -> None:
        """See `prover.following.operations.Steps`."""
        self._awaited.forget(fetched)
        self._entered.add(fetched.loader)
        self._recorder.enter(fetched.tensors)
        fetched.tensors = {}  # how long they live is up to the program

    # -- calls ---------------------------------------------------------------------------------------------------------

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """See `prover.following.calls.Called`."""
        self._optimizers.add(optimizer)
        self._new, self._supposed = True, False

    def reads(self) -> None:
        """See `prover.following.calls.Called`."""
        if not self.aside_now:
            self._recorder.earlier.read()

    def calls(self, module: nn.Module) -> None:
        """See `prover.following.calls.Called`: a place where the steps of a program without a loader are cut."""
        if self.aside_now or (module.training and not torch.is_grad_enabled()):
            return
        self._look_again()
        recorder = self._recorder
        if not recorder.built and any(self.trains_unbuilt(p) for p in module.parameters()):
            self.cut()
        if not recorder.built or not torch.is_grad_enabled() or not self._evaluations.trains_by(module):
            return
        if recorder.stepped and self.fetches_none():
            self.cut()

    def trains_unbuilt(self, t: Tensor) -> bool:
        """See `prover.following.operations.Steps`."""
        if self._recorder.built:
            return False
        groups = (group for each in self._optimizers for group in each.param_groups)
        updated = self._operations.updates.parameters
        return any(t is p for group in groups for p in group["params"]) or any(t is p for p in updated)

    def without_optimizer(self) -> bool:
        """See `prover.following.operations.Steps`."""
        return not self._optimizers

    def may_train(self) -> bool:
        """See `prover.following.operations.Steps`."""
        return bool(self._wanted())

    def _wanted(self) -> list[Tensor]:
        """What may be trained in a program that has no optimizer: what gradients are wanted of, once all is made."""
        if self._optimizers or self._recorder.in_job:
            return []
        return self._objects.wanted(self._recorder.knows)

    def fetches_none(self) -> bool:
        """See `prover.following.operations.Steps`."""
        if (
            not self._recorder.built
            or self._entered
            or self._awaited
            or (self._stepping and not torch.is_grad_enabled())
        ):
            return False
        return self._by_hand.ever or not self._evaluations.loads

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def cut(self, *, fed: bool = False) -> None:
        """Ends a step, if an optimizer has made one, or the initialisation, if there is an optimizer.

        Args:
            fed: See `prover.following.operations.Steps`.
        """
        recorder = self._recorder
        self._look_again()
        if recorder.built and not recorder.stepped:
            return
        self._guarded(lambda: self._cut_now(fed))

    def _look_again(self) -> None:
        """Takes notice of new optimizers, as when several models are trained one after the other."""
        if self._new and self._recorder.built:
            self._guarded(lambda: self._evaluate(self._objects.find(self._recorder.knows)))

    def _cut_now(self, fed: bool) -> None:
        recorder = self._recorder
        if not recorder.built:
            updated = self._operations.updates.parameters
            if fed and not updated:
                updated = self._wanted()
                self._supposed = bool(updated)
            found = self._objects.find(recorder.knows, updated)
            if not found.optimizers and not updated:
                return
            self._require_job()
            recorder.show(found)
            recorder.build(found)
            self._evaluate(found, updated)
        else:
            recorder.cut()
            if self._new:  # as when several models are trained one after the other
                self._evaluate(self._objects.find(recorder.keeps))
            self._evaluations.used_to_train(self._entered)
        self._entered = set()
        self._cuts += 1
        self._awaited.forget_before(self._cuts - 1)  # fetched two steps ago and not used since
        self._by_hand.begin()
        recorder.begin()

    def _evaluate(self, found: Found, updated: Sequence[Tensor] = ()) -> None:
        """Lets evaluations be told of the program's present objects."""
        self._new = False
        parameters = {id(p) for each in found.optimizers for group in each.param_groups for p in group["params"]}
        self._evaluations.trains(found.trained, parameters | {id(p) for p in updated}, found.others)

    def _require_job(self) -> None:
        if in_job() and not self._recorder.in_job:
            raise UsageError(NOT_YET)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.aside_now:
            return
        if get_ident() != self._thread:
            self._guarded(self._refuse_thread)
        older = self._objects.older(innermost(optimizer))
        if not self._recorder.built:
            self._guarded(self._refuse_older if older else self._refuse_unfetched)
        if older:
            self._objects.stepped(innermost(optimizer))
            self._new = True
        self._recorder.steps(innermost(optimizer))
        self._stepping = True

    def _refuse_thread(self) -> None:
        raise UsageError("an optimizer made a step in another thread than the one that called follow(); call it there")

    def _refuse_older(self) -> None:
        raise UsageError(
            "the optimizer that makes a step was made before follow() was called, so what it holds has no origin; call "
            "follow() first, and make the model and the optimizer after it"
        )

    def _refuse_unfetched(self) -> None:
        raise UsageError(
            "an optimizer made a step before a batch was fetched and before anything was computed with its "
            "parameters, so it is not known where the initialisation ends; write `for batch in run.batches(...)` with "
            "what follow() returned as `run`"
        )

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping = False
        if not self.aside_now and get_ident() == self._thread:
            self._guarded(self._recorder.mark)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Does work of the recording; an error ends the recording, and the program goes on unrecorded if it likes."""
        self._aside += 1
        try:
            work()
        except WeighbridgeError:
            self.stop()
            raise
        finally:
            self._aside -= 1

    def stop(self) -> None:
        """See `prover.following.operations.Steps`."""
        self._recorder.give_up()
        self._aside += 1  # for good
        self._awaited.clear()

    def operation(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """See `prover.following.dispatch.Followed`."""
        return self._operations.run(func, types, args, kwargs)

    def wrapped(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """See `prover.following.dispatch.Followed`."""
        return self._operations.wrapped(func, types, args, kwargs)
