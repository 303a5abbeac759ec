"""Follows a program: what it computes is recorded, and what it only looks at is not.

Every operation of the thread that called `follow` comes here. Memory is of one of four kinds: *known* (made by recorded
operations, or state), *awaited* (a batch that was fetched and is not used yet), *tainted* (computed in an evaluation),
and *outside* (anything else, such as what a file or NumPy gave). An operation is recorded if it has to do with known or
awaited memory or makes memory from nothing; else it runs as it is, and what comes of it is tainted or outside too.
Tainted and outside memory that meets what is trained enters there, as an undeclared input with its line.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from prover.capture.overload_facts import overload
from prover.capture.user_line import user_line
from prover.following.dispatch import Operations, OtherChanges, changed, operands, takes_storage, tensors
from prover.following.evaluation import Evaluations
from prover.following.fetches import Fetches
from prover.following.found_objects import found_objects
from prover.following.notes import NUMBER_BYTES, Notes
from prover.following.segments import SegmentRecorder
from prover.following.taint import Taint
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import Op
from weighbridge.transcript.data import flatten

T = TypeVar("T")


_followers: WeakSet[Follower] = WeakSet()


def _forked() -> None:
    """In a process that was forked off, such as one that loads data, nothing is recorded."""
    for follower in _followers:
        follower.leave()


os.register_at_fork(after_in_child=_forked)


@dataclass(slots=True)
class _Fetched:
    """A batch that was fetched and not used yet.

    Attributes:
        loader: Identity of the loader.
        tensors: Path to tensor.
        cuts: How many segments had been cut then.
    """

    loader: int
    tensors: dict[str, Tensor]
    cuts: int


class Follower:
    """Decides of every operation, fetch and optimizer step of a program what becomes of it."""

    def __init__(self, recorder: SegmentRecorder, notes: Notes, *, native: bool) -> None:
        """Prepares; nothing is recorded before `begin`.

        Args:
            recorder: Records.
            notes: Takes down what enters without an origin.
            native: Whether evaluations run as they are.
        """
        self._notes = notes
        self._recorder, self._native = recorder, native
        self._thread, self._process = get_ident(), os.getpid()
        self._aside = 0
        self._open = False
        self._taint, self._evaluations = Taint(), Evaluations()
        self._awaited: dict[int, _Fetched] = {}
        self._entered: set[int] = set()
        self._cuts = self._fetches = 0
        self._scope = ExitStack()

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the recording goes on."""
        return self._open

    def begin(self) -> None:
        """Begins to record; see `follow`."""
        self._recorder.__enter__()
        self._recorder.begin()
        self._evaluations.open()
        hooks = [register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(self._stepped)]
        for hook in hooks:
            self._scope.callback(hook.remove)
        self._scope.callback(self._evaluations.close)
        self._scope.enter_context(Fetches(self))
        self._scope.enter_context(OtherChanges(self, lambda t: self._recorder.knows(t.untyped_storage()._cdata)))
        self._scope.enter_context(Operations(self))
        self._open = True
        _followers.add(self)
        atexit.register(self._at_exit)

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
                if not recorder.built:
                    raise UsageError(
                        "nothing was trained while the program was followed; call follow() before the model is built, "
                        "in the thread that trains"
                    )
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

    def fetched(self, loader: Any, fetch: Callable[[], T]) -> T:
        """See `prover.following.fetches.Fetching`: the place where steps are cut."""
        if self.aside_now or get_ident() != self._thread:
            return fetch()
        self._fetches += 1
        self._cut()
        evaluates = self._native and self._evaluations.fetches(loader)
        batch = self.aside(fetch)
        self._evaluations.last_loader = loader
        flat = dict(flatten(batch))
        own = {name: t for name, t in flat.items() if not self._recorder.keeps(t.untyped_storage()._cdata)}
        if evaluates:
            self._taint.add(own.values(), user_line())
        elif own:
            fetched = _Fetched(id(loader), flat, self._cuts)
            addresses = {t.untyped_storage()._cdata for t in own.values()}
            for address in addresses & self._awaited.keys():
                if address in self._awaited:
                    self._forget(self._awaited[address])
            self._awaited |= dict.fromkeys(addresses, fetched)
        return batch

    def _enter(self, fetched: _Fetched) -> None:
        """Takes a batch in, just before it is used first."""
        self._forget(fetched)
        self._entered.add(fetched.loader)
        self._recorder.enter(fetched.tensors)
        fetched.tensors = {}  # how long they live is up to the program

    def _forget(self, fetched: _Fetched) -> None:
        self._awaited = {address: each for address, each in self._awaited.items() if each is not fetched}

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Ends a step, if an optimizer has made one, or the initialisation, if there is an optimizer."""
        recorder = self._recorder
        if recorder.built and not recorder.stepped:
            return
        self._guarded(self._cut_now)

    def _cut_now(self) -> None:
        recorder = self._recorder
        if not recorder.built:
            found = found_objects(recorder.knows)
            if not found.optimizers:
                return
            self._require_one_device_kind()
            recorder.build(found)
            parameters = {id(p) for each in found.optimizers for group in each.param_groups for p in group["params"]}
            self._evaluations.trains(found.trained, parameters)
        else:
            recorder.cut()
            self._evaluations.used_to_train(self._entered)
        self._entered = set()
        self._cuts += 1
        for fetched in [each for each in self._awaited.values() if each.cuts < self._cuts - 1]:
            self._forget(fetched)  # fetched two steps ago and not used since
        recorder.begin()

    def _require_one_device_kind(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise UsageError("a job on several ranks is not followed yet; record it with Recorder(job=...)")

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.aside_now:
            return
        if get_ident() != self._thread:
            self._guarded(self._refuse_thread)
        if not self._recorder.built:
            self._guarded(self._refuse_unfetched)

    def _refuse_thread(self) -> None:
        raise UsageError("an optimizer made a step in another thread than the one that called follow(); call it there")

    def _refuse_unfetched(self) -> None:
        raise UsageError(
            "an optimizer made a step before a batch was fetched from a DataLoader, so it is not known where the "
            "initialisation ends; write `for batch in run.batches(...)` with what follow() returned as `run`"
        )

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self.aside_now and get_ident() == self._thread:
            self._guarded(self._recorder.mark)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Does work of the recording; an error ends the recording, and the program goes on unrecorded if it likes."""
        self._aside += 1
        try:
            work()
        except WeighbridgeError:
            self._stop()
            raise
        finally:
            self._aside -= 1

    def _stop(self) -> None:
        self._recorder.give_up()
        self._aside += 1  # for good
        self._awaited.clear()

    # -- operations ----------------------------------------------------------------------------------------------------

    def operation(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """See `prover.following.dispatch.Followed`."""
        recorder, given = self._recorder, operands(args, kwargs)
        known = waiting = tainted = outside = False
        for t in given:
            address = t.untyped_storage()._cdata
            if address in self._taint:
                tainted = True
            elif address in self._awaited and not recorder.covers(t):
                waiting = True
            elif recorder.knows(address):
                known = True
            elif t.untyped_storage().nbytes() > NUMBER_BYTES:
                outside = True
        evaluating = self._evaluations.line if self._native else None
        if takes_storage(args):
            return self._unrecorded(func, args, kwargs, None)
        if (evaluating is not None or tainted) and not self._trains(func, args, kwargs, given, evaluating):
            return self._unrecorded(func, args, kwargs, evaluating or self._origin(given))
        if outside and not (known or waiting or tainted) and not _draws(func):
            return func(*args, **kwargs)
        if recorder.failed or recorder.capture is None:
            return func(*args, **kwargs)
        try:
            return self._recorded(recorder, func, types, args, kwargs, given)
        except WeighbridgeError:
            self._stop()
            raise

    def _recorded(
        self, recorder: SegmentRecorder, func: Op, types: Any, args: Any, kwargs: dict[str, Any], given: list[Tensor]
    ) -> Any:
        recorder.operation()
        new: set[int] = set()
        for t in given:
            address = t.untyped_storage()._cdata
            if address in self._awaited and not recorder.covers(t):
                self._enter(self._awaited[address])
                if not recorder.covers(t):
                    raise UsageError(
                        "two batches that are in use at the same time lie on one tensor's memory; let the data set "
                        "return copies (`.clone()`)"
                    )
            elif not recorder.knows(address) and address not in new:
                self._notes.add(recorder, t, len(new), self._taint.line(address))
                self._taint.clear(address)
                new.add(address)
        assert recorder.capture is not None, "operations come in a segment"
        return recorder.capture.__torch_dispatch__(func, types, args, kwargs)

    def _trains(self, func: Op, args: Any, kwargs: dict[str, Any], given: list[Tensor], evaluating: str | None) -> bool:
        """True if an operation belongs to the training although something of an evaluation is in it."""
        if any(self._recorder.holds(t.untyped_storage()._cdata) for t in changed(func, args, kwargs)):
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
            self._taint.add(made, line)
        return out

    def _has_origin(self, t: Tensor) -> bool:
        address = t.untyped_storage()._cdata
        return self._recorder.knows(address) or address in self._awaited

    def _origin(self, given: list[Tensor]) -> str:
        lines = (self._taint.line(t.untyped_storage()._cdata) for t in given)
        return next((line for line in lines if line is not None), "an evaluation")


def _draws(func: Op) -> bool:
    rule = overload(func).rule
    return rule is not None and rule.kind is Kind.RANDOM
