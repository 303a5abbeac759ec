"""Plain values of Python objects: what of a `state_dict()` can be written down without running anything to read it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

_LEFT_OUT = object()
_PAIRS = "numbered"
"""Key under which a dictionary with numbers for keys is written, as pairs."""
_MARK = "tensor of the state"
"""Key of the dictionary that stands for a tensor within a list or dictionary."""
SEPARATOR = "\x1f"
"""In the name of such a tensor, between its owner's and its place."""


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container holds, with keys; None for anything else."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def tensors(value: Any, name: str, found: dict[str, torch.Tensor]) -> None:
    """Adds every tensor in nested containers to `found`, under a name that `marked` gives it too."""
    if isinstance(value, torch.Tensor):
        found[name] = value
    for key, part in _parts(value) or ():
        tensors(part, f"{name}{SEPARATOR}{key}", found)


def marked(value: Any, name: str) -> Any:
    """Returns `value` with a mark, which is plain, in place of every tensor within containers."""
    parts = _parts(value)
    if parts is None:
        return value
    inner = {}
    for key, part in parts:
        where = f"{name}{SEPARATOR}{key}"
        inner[key] = {_MARK: where} if isinstance(part, torch.Tensor) else marked(part, where)
    return inner if isinstance(value, dict) else list(inner.values())


def unmarked(value: Any, found: Mapping[str, torch.Tensor]) -> Any:
    """Puts the tensors back where `marked` put marks.

    Raises:
        KeyError: If one is missing.
    """
    if isinstance(value, dict):
        if value.keys() == {_MARK}:
            return found[value[_MARK]]
        return {key: unmarked(part, found) for key, part in value.items()}
    return [unmarked(part, found) for part in value] if isinstance(value, list) else value


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
