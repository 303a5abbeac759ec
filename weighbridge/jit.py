"""Compiling loops with Numba: code is cached beside its source, or where NUMBA_CACHE_DIR says, as far as that may be.

A confined replay worker may not write. What it has to compile then serves that process alone, instead of ending it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.caching import FunctionCache

P = ParamSpec("P")
R = TypeVar("R")


class _Cache(FunctionCache):
    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(OSError):
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def compiled(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that compiles a function in nopython mode, without the interpreter's lock.

    Args:
        **options: Those of `numba.njit`, such as `fastmath`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        dispatcher = numba.njit(nogil=True, **options)(function)
        dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
        result: Callable[P, R] = dispatcher
        return result

    return decorate
