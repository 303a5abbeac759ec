"""Which type operands of different types meet in, by PyTorch's documented rules of promotion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weighbridge.execution.second.memory import F32, KINDS, Array

_CATEGORY = {"b": 0, "i": 1, "u": 1, "f": 2}


def _rank(kind: np.dtype[Any]) -> int:
    return _CATEGORY[kind.kind]


def _joined(kinds: Iterable[np.dtype[Any]]) -> np.dtype[Any] | None:
    found: np.dtype[Any] | None = None
    for kind in kinds:
        if found is None or _rank(kind) > _rank(found):
            found = kind
        elif _rank(kind) == _rank(found):
            found = np.promote_types(kind, found)
    return found


def common(*operands: Any) -> np.dtype[Any]:
    """Returns the type in which operands meet: numbers and tensors of no dimension count only by their category."""
    arrays = [v for v in operands if isinstance(v, np.ndarray)]
    numbers = [KINDS["bool"] if isinstance(v, bool) else KINDS["i64"] if isinstance(v, int) else F32
               for v in operands if isinstance(v, (bool, int, float))]  # fmt: skip
    found: np.dtype[Any] | None = None
    for kinds in ([v.dtype for v in arrays if v.ndim], [v.dtype for v in arrays if not v.ndim], numbers):
        kind = _joined(kinds)
        if kind is not None and (found is None or _rank(kind) > _rank(found)):
            found = kind
    return F32 if found is None else found


def cast(value: Any, kind: np.dtype[Any]) -> Array:
    """Returns an operand as an array of a type."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(kind)
