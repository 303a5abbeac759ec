"""The modes that stay on while a program is followed; whatever is recorded changes beneath them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prover.capture.overload_facts import overload
from prover.capture.step_capture import wraps
from prover.capture.undispatched import UndispatchedChanges
from weighbridge.numerics.schemas import Op, bind


class Followed(Protocol):
    """The part that decides what happens to an operation."""

    @property
    def aside_now(self) -> bool:
        """Whether what runs now is left alone."""

    def operation(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Executes an operation, recorded or not, and returns its result."""

    def wrapped(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Executes an operation on tensors that wrap others, or returns `NotImplemented`: its own operations come."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operation of the program on."""

    def __init__(self, owner: Followed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner = owner

    def __torch_dispatch__(self, func: Op, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._owner.aside_now:
            return func(*args, **kwargs)
        if any(t is not Tensor and wraps(t) for t in types):
            return self._owner.wrapped(func, types, args, kwargs)
        return self._owner.operation(func, types, args, kwargs)


class OtherChanges(UndispatchedChanges):
    """Watches copies and arrays of recorded memory."""

    def __init__(self, owner: Followed, recorded: Callable[[Tensor], bool]) -> None:
        super().__init__(recorded)
        self._owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._owner.aside_now:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors among operands or results, lists of them included."""
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from tensors(each)


def operands(args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that an operation is given."""
    return [*tensors(args), *(tensors(tuple(kwargs.values())) if kwargs else ())]


def changed(func: Op, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that an operation changes where they are."""
    what = overload(func)
    if not what.mutated:
        return []
    bound = bind(func, args, kwargs)
    return [t for name in what.mutated for t in tensors(bound[name])]


def takes_storage(args: Any) -> bool:
    """True for an operation that is given memory itself, and no tensor on it."""
    return any(isinstance(value, torch.UntypedStorage) for value in args)
