"""The program's objects of certain types, looked for among all that the garbage collector knows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any


def of_types(wanted: Callable[[type], bool]) -> list[Any]:
    """Returns all live objects of certain types.

    An object's own type counts, and not what the object says that it is, which may be a proxy's answer. Objects that
    the program froze (`gc.freeze`) are not seen.

    Args:
        wanted: Whether a type is one; asked once for each type.
    """
    everything = gc.get_objects()  # a million is common, so each costs no call of our own
    types = {id(kind): kind for kind in map(type, everything)}  # a metaclass may forbid to hash its classes
    chosen = {number for number, kind in types.items() if wanted(kind)}
    return [each for each in everything if id(type(each)) in chosen] if chosen else []
