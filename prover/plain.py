"""Plain values of Python objects: what of a `state_dict()` can be written down without running anything to read it."""

from __future__ import annotations

import copy
from typing import Any

_LEFT_OUT = object()
_PAIRS = "numbered"
"""Key under which a dictionary with numbers for keys is written, as pairs."""


def reduce(value: Any) -> Any:
    """Returns what is plain of `value`, as CBOR can carry it: numbers, texts, bytes, lists and dictionaries.

    Entries of a dictionary that hold anything else (tensors, functions) are left out. Tuples become lists, and a
    dictionary with numbers for keys becomes one entry, a list of pairs.
    """
    found = _reduce(value)
    return None if found is _LEFT_OUT else found


def _reduce(value: Any) -> Any:
    if value is None or type(value) in (bool, float, bytes):
        return value
    if type(value) is str:
        return value if value.isascii() or value.encode(errors="replace").decode() == value else _LEFT_OUT
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else _LEFT_OUT
    if isinstance(value, dict):
        found = {k: _reduce(v) for k, v in value.items() if type(k) in (int, str) and _reduce(k) is not _LEFT_OUT}
        kept = {k: v for k, v in found.items() if v is not _LEFT_OUT}
        if any(type(k) is int for k in kept) or kept.keys() == {_PAIRS}:
            return {_PAIRS: [[k, v] for k, v in kept.items()]}
        return kept
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
    if isinstance(stored, dict) and stored.keys() == {_PAIRS}:
        stored = {key: value for key, value in stored[_PAIRS]}
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
        else:
            stored = [merge(None, b) for b in stored]
        return tuple(stored) if type(fresh) is tuple else stored
    if isinstance(stored, dict):
        return {key: merge(None, value) for key, value in stored.items()}
    if isinstance(stored, list):
        return [merge(None, value) for value in stored]
    return stored
