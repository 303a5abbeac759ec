"""Reading what confined workers answer. It is hostile: what a worker decoded may have taken it over.

Every function raises `KeyError`, `TypeError` or `ValueError` where an answer is malformed; the caller turns them
into a `ReplayWorkerError` (`MALFORMED`).
"""

from __future__ import annotations

import math
from typing import Any

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import ReplayWorkerError

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading a malformed answer raises."""

Shape = Any
"""What `shaped` accepts: see there."""


def malformed(error: Exception) -> ReplayWorkerError:
    """Returns what is to be raised in the place of one of `MALFORMED`."""
    return ReplayWorkerError(f"the worker's answer is malformed ({type(error).__name__})")


def natural(raw: Any, below: int = 1 << 64) -> int:
    """Returns a natural number that is smaller than `below`."""
    if type(raw) is not int or not 0 <= raw < below:
        raise ValueError("number")
    return raw


def share(raw: Any) -> float:
    """Returns a finite amount of at least 0."""
    if type(raw) not in (int, float) or not 0 <= raw < math.inf:
        raise ValueError("share")
    return float(raw)


def truth(raw: Any) -> bool:
    """Returns a truth value."""
    if type(raw) is not bool:
        raise ValueError("truth value")
    return raw


def text(raw: Any, most: int) -> str:
    """Returns a text, cut to `most` characters; half characters, which cannot be shown, are replaced."""
    return str(raw)[:most].encode(errors="replace").decode()


def digest(raw: Any) -> bytes:
    """Returns a digest from its hexadecimal form (32 bytes)."""
    data = bytes.fromhex(raw)
    if len(data) != DIGEST_SIZE:
        raise ValueError("digest")
    return data


def shaped(raw: Any, shape: Shape) -> Any:
    """Returns a copy of a nest of plain data if it has a shape to the last item.

    Args:
        raw: What `json.loads` returned.
        shape: A type stands for a value of exactly this type, `None` for itself, a tuple for any of several shapes,
            `[shape]` for a list, `{str: shape}` for a map with any keys. Any other map stands for one with these keys;
            one that ends in a question mark may be absent.
    """
    if isinstance(shape, tuple):
        return _any_of(raw, shape)
    if isinstance(shape, list) and type(raw) is list:
        return [shaped(each, shape[0]) for each in raw]
    if isinstance(shape, dict) and type(raw) is dict:
        if str in shape:
            return {text(name, len(name)): shaped(value, shape[str]) for name, value in raw.items()}
        names = {name.removesuffix("?"): name for name in shape}
        if not raw.keys() <= names.keys() or any(name not in raw for name in shape if not name.endswith("?")):
            raise ValueError("keys")
        return {name: shaped(value, shape[names[name]]) for name, value in raw.items()}
    if shape is str and type(raw) is str:
        return text(raw, len(raw))
    if raw is None if shape is None else isinstance(shape, type) and type(raw) is shape:
        return raw
    raise TypeError(f"expected {shape}")


def _any_of(raw: Any, shapes: tuple[Shape, ...]) -> Any:
    for shape in shapes:
        try:
            return shaped(raw, shape)
        except MALFORMED:
            continue
    raise TypeError(f"expected one of {shapes}")
