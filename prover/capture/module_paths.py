"""Where in the program an operation ran: module paths for the tape, forward, backward and recomputation alike.

A path is the Prover's word and serves to locate a difference; nothing that is verified rests on it. Global module hooks
keep a stack of the modules being called. A backward operation is named by the module whose forward made its autograd
node: nodes are numbered in the order in which they are made, so it is enough to note the next number whenever the
stack changes. Nothing here holds a tensor, because the deaths of storages are part of the tape.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from threading import get_ident
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from prover.capture.attached_objects import Attached

BACKWARD, RECOMPUTED = ":backward", ":recomputed"
"""What follows the path of an operation of the backward pass, or of a forward recomputed for it."""

_UNNUMBERED = 1 << 63
"""Nodes that accumulate gradients have no number of their own but the largest there is."""
_NO_BACKWARD = -1


@dataclass(slots=True)
class _Marks:
    """The path in force from each autograd node's number on, in one thread.

    Attributes:
        task: The backward pass in which they were made, or -1.
        starts: Numbers, ascending.
        paths: The path of the nodes from that number on.
    """

    task: int
    starts: list[int] = field(default_factory=list)
    paths: list[str | None] = field(default_factory=list)

    def add(self, path: str | None) -> None:
        start = torch._C._autograd._get_sequence_nr()
        if self.starts and self.starts[-1] == start:
            self.paths[-1] = path
        else:
            self.starts.append(start)
            self.paths.append(path)

    def find(self, number: int) -> str | None:
        place = bisect_right(self.starts, number) - 1
        return self.paths[place] if place >= 0 else None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call in progress: of a module, or of an optimizer's step (`module` is None).

    Attributes:
        module: The module.
        path: Its path.
        task: The backward pass in which it was called, or -1.
    """

    module: torch.nn.Module | None
    path: str | None
    task: int


class Paths:
    """Follows the module calls of one step; a context manager around it."""

    def __init__(self, attached: Attached) -> None:
        """Prepares for one step.

        Args:
            attached: Gives modules and optimizers their names, the same as those of their tensors. A module that is not
                among them goes by the name of its class.
        """
        self._attached = attached
        self._stack = [_Call(None, None, _NO_BACKWARD)]
        self._thread = get_ident()
        self._marks = _Marks(_NO_BACKWARD)
        self._elsewhere: dict[int, _Marks] = {}
        self._last: dict[int, str | None] = {}
        self._names: WeakKeyDictionary[torch.nn.Module, WeakKeyDictionary[torch.nn.Module, str]] = WeakKeyDictionary()
        self._roots: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._seen: WeakKeyDictionary[torch.nn.Module, list[str]] = WeakKeyDictionary()
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        self._marks.add(None)
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            # Called after a failure too: checkpointing ends a recomputation by an exception.
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def current(self) -> str | None:
        """Returns the path of the operation that is being dispatched, or None outside modules and optimizers."""
        task = torch._C._current_graph_task_id()
        call = self._stack[-1]
        if task == _NO_BACKWARD:
            return call.path
        if call.task == task:
            return None if call.path is None else call.path + RECOMPUTED
        path = self._made_by(task)
        return None if path is None else path + BACKWARD

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def _made_by(self, task: int) -> str | None:
        """The path of the forward call that made the node which the backward pass `task` is at."""
        node: Any = torch._C._current_autograd_node()  # None outside nodes
        number = _UNNUMBERED if node is None else node._sequence_nr()
        if number < _UNNUMBERED:
            here = self._elsewhere.get(get_ident())
            # A recomputation in a device's own thread numbers its nodes anew; those are for the pass nested in it.
            marks = self._marks if here is None or here.task == task else here
            self._last[task] = marks.find(number)
        # What accumulates gradients, or adds those that meet at a node, comes right after what made the last of them.
        return self._last.get(task)

    def _mark(self, path: str | None, task: int) -> None:
        thread = get_ident()
        if thread == self._thread:
            self._elsewhere.clear()
            self._marks.add(path)
        else:
            marks = self._elsewhere.get(thread)
            if marks is None or marks.task != task:
                marks = self._elsewhere[thread] = _Marks(task)
            marks.add(path)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _push(self, module: torch.nn.Module | None, path: str | None, task: int) -> None:
        self._stack.append(_Call(module, path, task))
        self._mark(path, task)

    def _leave(self, *_: Any) -> None:
        if len(self._stack) > 1:
            call = self._stack.pop()
            self._mark(self._stack[-1].path if self._stack[-1].task == call.task else None, call.task)

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        names = (name for name, known in self._attached.optimizers() if known is optimizer)
        self._push(None, next(names, type(optimizer).__name__), torch._C._current_graph_task_id())

    def _enter_module(self, module: torch.nn.Module, _: Any) -> None:
        task = torch._C._current_graph_task_id()
        caller = self._stack[-1]
        if caller.module is not None and caller.task == task:
            path = f"{caller.path}.{self._name_in(caller.module, module)}"
        else:
            path = self._recomputed(module, task) or self._root(module)
        seen = self._seen.setdefault(module, [])
        if path not in seen:
            seen.append(path)
        self._push(module, path, task)

    def _recomputed(self, module: torch.nn.Module, task: int) -> str | None:
        """The path under which a recomputed module ran before: where the backward pass is now."""
        if task == _NO_BACKWARD:
            return None
        seen, at = self._seen.get(module, []), self._made_by(task)
        return next((p for p in seen if at is not None and f"{at}.".startswith(f"{p}.")), seen[0] if seen else None)

    def _name_in(self, caller: torch.nn.Module, module: torch.nn.Module) -> str:
        """A module's name below the one that calls it; that of its class if it is no part of it."""
        names = self._names.setdefault(caller, WeakKeyDictionary())
        if module not in names:
            for name, part in caller.named_modules():
                names.setdefault(part, name)
            names.setdefault(module, type(module).__name__)
        return names[module]

    def _root(self, module: torch.nn.Module) -> str:
        """The name of a module that no other module calls."""
        if module not in self._roots:
            for name, known in self._attached.modules():
                for path, part in known.named_modules(prefix=name):
                    self._roots.setdefault(part, path)
            self._roots.setdefault(module, type(module).__name__)
        return self._roots[module]
