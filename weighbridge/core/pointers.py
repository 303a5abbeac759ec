"""Memory by its address, for compiled loops that walk many arrays in one call."""

from __future__ import annotations

from typing import Any

import numba
from numba import types
from numba.extending import intrinsic


def _make(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


pointer: Any = intrinsic(_make)
"""Makes a pointer, as `array_at` takes one, of an address (int64); for compiled code only."""

array_at: Any = numba.carray  # type: ignore[attr-defined]
"""The array of a pointer, a number of elements and a type, contiguous; for compiled code only."""
