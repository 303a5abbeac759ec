"""Notes what a tape cannot say about a step's training, for `weighbridge.transcript.training_claims`.

Hooks of PyTorch tell of backward passes and of optimizers' steps; each operation tells which of its operands carry a
gradient. Nothing here holds a tensor beyond its call, because the deaths of storages are part of the tape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from prover.capture.attached_objects import Attached, local_part
from weighbridge.program.gradient_paths import carried
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.training_claims import Backward, Claims, Gradient, Group, Parameter, Step

Tensor = torch.Tensor
_NO_BACKWARD = -1


Place = tuple[int, tuple[torch.dtype, torch.Size, tuple[int, ...], int]]
"""Where a tensor lies: the address of its storage, and its dtype, shape, stride and offset there."""


class Captured(Protocol):
    """What is asked of a capture."""

    tape: Tape

    def known(self, t: Tensor) -> int | None:
        """The index of the reference that names a tensor on the tape; None if nothing has named it."""

    def place(self, t: Tensor) -> Place | None:
        """Where a tensor lies."""

    def named(self, place: Place) -> int | None:
        """The index of the reference that names what lies there; None if nothing has named it."""


class ClaimedTraining:
    """Watches one step; a context manager around it."""

    def __init__(self, attached: Attached) -> None:
        """Prepares for one step.

        Args:
            attached: What holds the parameters.
        """
        self._attached = attached
        self._capture: Captured | None = None
        self._flags: dict[int, tuple[int, ...]] = {}
        """Of each operation: which tensors among its operands carry no gradient. The others are outside of autograd:
        so are a job's collectives, which PyTorch does not differentiate."""
        self._outer: dict[int, int] = {}
        """Of each operation: the first operation that the same call of the program's made."""
        self._depth = self._first = 0
        self._backwards: list[tuple[Backward, list[tuple[Place, int | None, int]]]] = []
        """With each: where its leaves lie, and the references of their gradients before and after. A leaf of which a
        rank uses a part, or nothing, has no reference before its optimizer's step."""
        self._steps: list[Step] = []
        self._begun: list[tuple[int, dict[int, bool]]] = []
        self._hooks: list[Any] = []
        self._engine: Callable[..., Any] | None = None

    def watch(self, capture: Captured) -> None:
        """Says on which tape the operations come."""
        self._capture = capture

    def __enter__(self) -> Self:
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
        torch.autograd._engine_run_backward = self._run_backward  # type: ignore[attr-defined]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.autograd._engine_run_backward = self._engine  # type: ignore[assignment, attr-defined]
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- operations ----------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A call of the program's, or one within it, begins."""
        if not self._depth and self._capture is not None:
            self._first = len(self._capture.tape.nodes)
        self._depth += 1

    def leave(self) -> None:
        """It ends."""
        self._depth -= 1

    def operation(self, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
        """An operation comes onto the tape."""
        if self._capture is None:
            return
        op = len(self._capture.tape.nodes)
        self._outer[op] = self._first
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != _NO_BACKWARD:
            return
        without: list[int] = []
        count = 0
        for value in (*args, *(kwargs[name] for name in sorted(kwargs))) if kwargs else args:
            if isinstance(value, Tensor):
                if not value.requires_grad:
                    without.append(count)
                count += 1
            elif isinstance(value, (list, tuple)):
                for each in value:
                    if isinstance(each, Tensor):
                        if not each.requires_grad:
                            without.append(count)
                        count += 1
        self._flags[op] = tuple(without)

    # -- backward passes -----------------------------------------------------------------------------------------------

    def _run_backward(self, t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        assert self._engine is not None
        capture = self._capture
        if capture is None or torch._C._current_graph_task_id() != _NO_BACKWARD:
            return self._engine(t_outputs, *args, **kwargs)  # a checkpoint's own pass is a part of the one in progress
        begin = len(capture.tape.nodes)
        leaves = self._leaves()
        before = [None if leaf.grad is None else capture.known(local_part(leaf.grad)) for leaf in leaves]
        places = [None if leaf.grad is None else _place(leaf.grad) for leaf in leaves]
        result = self._engine(t_outputs, *args, **kwargs)
        losses = [capture.known(local_part(t)) for t in t_outputs if isinstance(t, Tensor)]
        given = args[0] if args else (None,) * len(losses)
        seeds = [None if seed is None else capture.known(local_part(seed)) for seed in given]
        gradients: list[tuple[Place, int | None, int]] = []
        for leaf, earlier, place in zip(leaves, before, places, strict=True):
            where = capture.place(local_part(leaf))
            after = None if leaf.grad is None else capture.known(local_part(leaf.grad))
            if earlier is None and place is not None and leaf.grad is not None and place == _place(leaf.grad):
                earlier = after  # it is of an earlier step, and the backward pass was the first to use it
            if where is not None and after is not None:
                gradients.append((where, earlier, after))
        again = bool(args[2] if len(args) > 2 else False) or not kwargs.get("accumulate_grad", False)
        if None not in losses and len(seeds) == len(losses):
            found = tuple(each for each in losses if each is not None)
            end = len(capture.tape.nodes)
            self._backwards.append((Backward(begin, end, found, tuple(seeds), (), again), gradients))
        return result

    def _leaves(self) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for _, module in self._attached.modules():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    found[id(parameter)] = parameter
        for _, optimizer in self._attached.optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        found[id(parameter)] = parameter
        return list(found.values())

    # -- optimizers ----------------------------------------------------------------------------------------------------

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._capture is None:
            return None
        fresh = {id(p): not optimizer.state.get(p) for group in optimizer.param_groups for p in group["params"]}
        self._begun.append((len(self._capture.tape.nodes), fresh))
        given = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(given):
            return None
        closure = self._followed(given, len(self._begun) - 1)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    def _followed(self, closure: Callable[[], Any], number: int) -> Callable[[], Any]:
        """Returns a closure after which the step begins: it makes the loss and the gradients."""

        @functools.wraps(closure)
        def followed() -> Any:
            result = closure()
            if self._capture is not None and number < len(self._begun):
                self._begun[number] = len(self._capture.tape.nodes), self._begun[number][1]
            return result

        return followed

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._capture is None or not self._begun:
            return
        begin, fresh = self._begun.pop()
        if self._begun:
            return  # a class calls the step of the one that it extends
        groups = tuple(self._group(group, optimizer, fresh) for group in optimizer.param_groups)
        own = type(optimizer)
        known = next((kind for kind in own.__mro__ if kind.__module__.startswith("torch.optim")), own)
        name = own.__name__ if known is torch.optim.Optimizer else known.__name__
        self._steps.append(Step(begin, len(self._capture.tape.nodes), name[:80], groups))

    def _group(self, group: dict[str, Any], optimizer: torch.optim.Optimizer, fresh: dict[int, bool]) -> Group:
        assert self._capture is not None
        known = self._capture.known
        parameters = []
        for p in group["params"]:
            ref = known(local_part(p))
            if ref is None:
                continue
            state = {}
            for key, value in optimizer.state.get(p, {}).items():
                at = known(local_part(value)) if isinstance(value, Tensor) else None
                if at is not None and type(key) is str and key.isprintable() and 0 < len(key) <= 80:
                    state[key] = at
            gradient = None if p.grad is None else known(local_part(p.grad))
            parameters.append(Parameter(ref, gradient, state, fresh.get(id(p), True)))
        numbers = {
            key: found for key, value in group.items() if key != "params" and (found := _plain(value)) is not _STRANGE
        }
        return Group(numbers, tuple(parameters))

    # -- what is claimed -----------------------------------------------------------------------------------------------

    def claims(self) -> Claims | None:
        """Returns what is claimed of the tape, once it is complete; None if it trains nothing."""
        if self._capture is None or not (self._backwards or self._steps):
            return None
        tape = self._capture.tape
        backwards = [
            replace(backward, gradients=tuple(
                Gradient(ref, before, after)
                for place, before, after in gradients if (ref := self._capture.named(place)) is not None
            ))
            for backward, gradients in self._backwards
        ]  # fmt: skip
        ops = range(len(tape.nodes))
        without, calls = [self._flags.get(op) for op in ops], [self._outer.get(op, op) for op in ops]
        leaves = {tape.refs[g.leaf][0] for b in backwards for g in b.gradients}
        claims = Claims(tuple(backwards), tuple(self._steps))
        return replace(claims, stops=tuple(carried(tape, leaves, claims.ranges(), without, calls)))


def _place(t: Tensor) -> int:
    address: int = local_part(t).untyped_storage()._cdata
    return address


_STRANGE = object()


def _plain(value: Any) -> Any:
    """A number of a group as a claim can have it."""
    if value is None or type(value) in (bool, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)) and len(value) <= 8:
        found = [_plain(each) for each in value]
        return _STRANGE if _STRANGE in found else tuple(found)
    return _STRANGE
