"""Plain values of Python objects: what of a `state_dict()` can be written down without running anything to read it."""

from __future__ import annotations

import copy
from typing import Any

_LEFT_OUT = object()


def reduce(value: Any) -> Any:
    """Returns what is plain of `value`: numbers, texts and bytes, and lists and dictionaries of them.

    Entries of a dictionary that hold anything else (tensors, functions) are left out. Tuples become lists.
    """
    found = _reduce(value)
    return None if found is _LEFT_OUT else found


def _reduce(value: Any) -> Any:
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else _LEFT_OUT
    if isinstance(value, dict):
        found = {k: _reduce(v) for k, v in value.items() if type(k) in (int, str)}
        return {k: v for k, v in found.items() if v is not _LEFT_OUT}
    if isinstance(value, list | tuple):
        items = [_reduce(v) for v in value]
        return _LEFT_OUT if any(v is _LEFT_OUT for v in items) else items
    return _LEFT_OUT


def merge(fresh: Any, stored: Any) -> Any:
    """Returns `fresh` with the plain values that `reduce` returned of an object of the same making.

    Args:
        fresh: What the object has now; what is not plain in it stays, and so do the types of its containers.
        stored: The plain values.
    """
    if isinstance(fresh, dict) and isinstance(stored, dict):
        merged = copy.copy(fresh)
        for key in [k for k, v in fresh.items() if _reduce(v) is not _LEFT_OUT and k not in stored]:
            del merged[key]
        for key, value in stored.items():
            merged[key] = merge(fresh.get(key), value)
        return merged
    if isinstance(fresh, list | tuple) and isinstance(stored, list):
        if len(fresh) == len(stored):
            stored = [merge(a, b) for a, b in zip(fresh, stored, strict=True)]
        return tuple(stored) if type(fresh) is tuple else stored
    return stored
