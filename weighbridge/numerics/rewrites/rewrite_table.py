"""The table from vendor and composite overloads to what replaces them, and how functions enter it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Decomposition = Callable[..., Any]
Condition = Callable[..., bool]

TABLE: dict[str, Decomposition] = {}
"""Decompositions by `name.overload`."""

UNLESS: dict[Decomposition, Condition] = {}
"""For which operands a function of the table is not asked, if for any: they have a rule as they are."""


def decomposes(*names: str, unless: Condition | None = None) -> Callable[[Decomposition], Decomposition]:
    """Registers a function as the decomposition of `name.overload`s.

    Args:
        *names: What it decomposes.
        unless: Says of a call's operands that they need no decomposition. Asked before every such call, where a
            function that returns NotImplemented would first have to be called in the Recorder's mode.
    """

    def add(function: Decomposition) -> Decomposition:
        for name in names:
            TABLE[name] = function
        if unless is not None:
            UNLESS[function] = unless
        return function

    return add
