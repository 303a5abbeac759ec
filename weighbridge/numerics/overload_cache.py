"""A cache for what is known of an overload, which is asked several times for every operation of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

R = TypeVar("R")


class PerOp(Generic[R]):
    """A function of one overload that is called once for each.

    Overloads are found by identity, because PyTorch's own hash of one is a Python function. They are kept, so that no
    other object can take an identity over.
    """

    def __init__(self, function: Callable[[torch._ops.OpOverload], R]) -> None:
        self._function = function
        self._known: dict[int, R] = {}
        self._kept: list[torch._ops.OpOverload] = []
        _ALL.append(self)
        self.__doc__ = function.__doc__

    def __call__(self, op: torch._ops.OpOverload) -> R:
        """Returns what the function says of `op`."""
        try:
            return self._known[id(op)]
        except KeyError:
            self._kept.append(op)
            result = self._known[id(op)] = self._function(op)
            return result

    def forget(self) -> None:
        """Forgets everything."""
        self._known.clear()
        self._kept.clear()


class PerName(Generic[R]):
    """A function of a name, such as a tape's for an overload, that is called once for each that it takes.

    A name for which it raises is not remembered, or else a hostile tape could fill memory.
    """

    def __init__(self, function: Callable[[str], R]) -> None:
        self._function = function
        self._known: dict[str, R] = {}
        _ALL.append(self)
        self.__doc__ = function.__doc__

    def __call__(self, name: str) -> R:
        """Returns what the function says of `name`."""
        try:
            return self._known[name]
        except KeyError:
            result = self._known[name] = self._function(name)
            return result

    def forget(self) -> None:
        """Forgets everything."""
        self._known.clear()


_ALL: list[PerOp[Any] | PerName[Any]] = []


def forget() -> None:
    """Forgets what is known of every overload and name, after a table has changed."""
    for function in _ALL:
        function.forget()


per_op, per_name = PerOp, PerName
"""As decorators."""
