"""Compiling loops with Numba: code is cached beside its source, or where NUMBA_CACHE_DIR says, as far as that may be.

A confined replay worker may not write. What it has to compile then serves that process alone, instead of ending it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.caching import FunctionCache, NullCache

P = ParamSpec("P")
R = TypeVar("R")

_watching: list[Callable[[], None]] = []
_lost: list[Any] = []  # signatures that were compiled and could not be kept
_caches: list[_Cache | _NoCache] = []  # of the loops that `weighbridge.numerics.warm` uses


def directories() -> list[Path]:
    """Returns the existing directories that compiled loops are loaded from."""
    paths = {Path(cache.cache_path) for cache in _caches if isinstance(cache, _Cache)}
    return sorted(path for path in paths if path.is_dir())


def lacks() -> bool:
    """Whether a loop of those that were defined has to be compiled when it is used, so far as can be seen quickly."""
    return not all(cache.holds_any() for cache in _caches)


def lost() -> int:
    """Returns how many loops this process compiled and could not keep for the next one."""
    return len(_lost)


@contextmanager
def watched(begins: Callable[[], None]) -> Iterator[None]:
    """Has `begins` called before each loop that is compiled until the end of the block, instead of loaded."""
    _watching.append(begins)
    try:
        yield
    finally:
        _watching.remove(begins)


class _Cache(FunctionCache):
    def holds_any(self) -> bool:
        """Whether there is code of the source as it is now, for any types of operands."""
        with suppress(OSError):
            return bool(self._cache_file._load_index())  # type: ignore[no-untyped-call]
        return False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        with suppress(OSError):
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None:
            _begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        # What people read of its types has places in memory and on storage in it, which no other machine would write.
        told = data._replace(type_annotation="")
        try:
            super().save_overload(sig, told)  # type: ignore[no-untyped-call]
        except OSError:
            _lost.append(sig)


class _NoCache(NullCache):
    """For a process that may write nowhere: neither beside the source, nor in the user's directory of caches."""

    def holds_any(self) -> bool:
        """Nor could another process."""
        return True

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _begin()

    def save_overload(self, sig: Any, data: Any) -> None:
        _lost.append(sig)


def _begin() -> None:
    for begins in _watching:
        begins()


def compiled(*, early: bool = True, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that compiles a function in nopython mode, without the interpreter's lock.

    Args:
        early: Whether `weighbridge.numerics.warm` uses it, so that it is compiled before it is needed.
        **options: Those of `numba.njit`, such as `fastmath`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        dispatcher = numba.njit(nogil=True, **options)(function)
        try:
            cache: _Cache | _NoCache = _Cache(function)  # type: ignore[no-untyped-call]
        except RuntimeError:  # no directory for it
            cache = _NoCache()
        dispatcher._cache = cache
        if early:
            _caches.append(cache)
        result: Callable[P, R] = dispatcher
        return result

    return decorate
