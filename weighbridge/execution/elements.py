"""Elements of one result in two runs, side by side: values, wide values, bounds, and what the logs said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weighbridge.execution.following import Seen
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import cpu_kernels, formats, narrow
from weighbridge.numerics.rounding.bound import Bound, bound_at

Tensor = torch.Tensor
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Result:
    """One result of one run, kept as it was when the replay was there.

    Attributes:
        out: Its elements as they lie in memory, 1-D, on the CPU.
        shape: Its shape.
        stride: How it lies, in elements; dense.
        wide: Its wide elements, float64 or float32, or None.
        bound: The bound on their error, or None.
        logged: Elements that the log has an entry for.
    """

    out: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    wide: Tensor | None = None
    bound: Bound | None = None
    logged: frozenset[int] = frozenset()


def keep(seen: Seen, shape: tuple[int, ...], stride: tuple[int, ...]) -> Result:
    """Keeps what a replay saw.

    Args:
        seen: The result.
        shape: Shape of an exact result, which is seen without it.
        stride: Its strides.
    """
    if seen.wide is None:
        return Result(flat(seen.out).cpu().clone(), shape, stride)
    logged = frozenset() if seen.entries is None else frozenset(int(i) for i in seen.entries.positions)
    wide = seen.wide.cpu()
    factors = tuple(f.cpu().to(wide.dtype, copy=True) for f in seen.bound.factors) if seen.bound is not None else ()
    bound = None if seen.bound is None else Bound(seen.bound.rel, seen.bound.absolute, factors)
    return Result(
        flat(seen.out).cpu().clone(), tuple(seen.out.shape), tuple(seen.out.stride()), wide.clone(), bound, logged
    )


def plain(value: Tensor) -> Result:
    """Keeps a tensor that no checksum goes with: moved, drawn, or of the state."""
    dense = value.cpu().contiguous().clone()
    return Result(flat(dense), tuple(dense.shape), tuple(dense.stride()))


def compare(a: Result, b: Result, limit: int) -> dict[str, Any]:
    """Compares a result bit by bit.

    Args:
        a: The first run's.
        b: The second run's, of the same shape, layout and dtype.
        limit: Differing elements to list, at most.

    Returns:
        `shape`, `dtype`, `elements` (how many it has), `differing` (how many differ) and `listed`: for each listed one
        `index`, `position` (in memory, as the log counts) and, of `a` and `b`: `value` and `hex` (its bits); where the
        result was rounded `wide` and `bound`, and whether it is `contested` and `logged`. Numbers are texts, because
        JSON has no NaN; None where there is none.
    """
    kind = _BITS[a.out.itemsize]
    unequal = (a.out.view(kind) != b.out.view(kind)).nonzero().flatten()
    listed = unequal[:limit]
    sides = [_side(side, listed) for side in (a, b)]
    return {
        "shape": list(a.shape),
        "dtype": str(a.out.dtype).removeprefix("torch."),
        "elements": a.out.numel(),
        "differing": unequal.numel(),
        "listed": [
            {"index": _index(int(place), a.shape, a.stride), "position": int(place), "a": ours, "b": theirs}
            for place, ours, theirs in zip(listed, *sides, strict=True)
        ],
    }


def _side(side: Result, places: Tensor) -> list[dict[str, Any]]:
    values = side.out[places]
    patterns = values.view(_BITS[values.itemsize]).tolist()
    digits = 2 * values.itemsize
    shown: list[dict[str, Any]] = [
        {"value": _number(v), "hex": f"0x{p & ((1 << 4 * digits) - 1):0{digits}x}", "wide": None, "bound": None,
         "contested": None, "logged": None}
        for v, p in zip(values, patterns, strict=True)
    ]  # fmt: skip
    if side.wide is None or side.bound is None or not places.numel():
        return shown
    wide = flat(side.wide)[places]
    bounds = bound_at(side.wide, side.bound, places)
    contested = _contested(wide, bounds, side.out.dtype)
    for entry, place, x, e, c in zip(shown, places.tolist(), wide, bounds, contested, strict=True):
        entry.update(wide=repr(x.item()), bound=repr(e.item()), contested=bool(c), logged=place in side.logged)
    return shown


def _contested(wide: Tensor, bounds: Tensor, dtype: torch.dtype) -> Tensor:
    """The Recorder's criterion: rounding the wide value less, and plus, twice its bound gives two values."""
    if dtype in formats.NARROW:
        low, high = (formats.to_format(wide + s * narrow.REACH * bounds.to(wide.dtype), dtype) for s in (-1, 1))
    else:
        low, high = ((wide + s * cpu_kernels.REACH * bounds).to(dtype) for s in (-1, 1))
    return (low != high) | ~torch.isfinite(wide) | ~torch.isfinite(bounds)


def _number(value: Tensor) -> str:
    """The shortest decimal that gives the value back."""
    return str(np.float32(value.item())) if value.dtype == torch.float32 else repr(value.item())


def _index(position: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """The index of the element at a place in memory."""
    return [position // st % n if n > 1 else 0 for n, st in zip(shape, stride, strict=True)]
