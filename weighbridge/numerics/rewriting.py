"""The table from vendor and composite overloads to what replaces them, and how functions enter it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Decomposition = Callable[..., Any]

TABLE: dict[str, Decomposition] = {}
"""Decompositions by `name.overload`."""


def decomposes(*names: str) -> Callable[[Decomposition], Decomposition]:
    """Registers a function as the decomposition of `name.overload`s."""

    def add(function: Decomposition) -> Decomposition:
        for name in names:
            TABLE[name] = function
        return function

    return add
