"""Many scenarios at once: any quantity over a grid of any parameters, with empty places where a scenario cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from analysis.domain import DetectionDomainError, FloatArray, InfeasibleError

MOST_POINTS = 1_000_000


def axis(text: str) -> FloatArray:
    """Returns the values that `text` names: `1,2,5`, or `START:STOP:COUNT`, or `START:STOP:COUNT:log`.

    Raises:
        DetectionDomainError: The text says no such thing, or more than a million values.
    """
    parts = text.split(":")
    try:
        if len(parts) == 1:
            return np.array([float(part) for part in text.split(",")])
        start, stop, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        raise DetectionDomainError(f"{text!r:.80} names no values; write 1,2,5 or 1:100:25 or 1:100:25:log") from None
    if len(parts) > 4 or parts[3:] not in ([], ["log"]):
        raise DetectionDomainError(f"{text!r:.80} names no values; after START:STOP:COUNT only :log may follow")
    if not 2 <= count <= MOST_POINTS:
        raise DetectionDomainError(f"COUNT must be between 2 and {MOST_POINTS}, not {count}")
    if not (np.isfinite(start) and np.isfinite(stop)):
        raise DetectionDomainError(f"START and STOP must be finite, not {start!r} and {stop!r}")
    if parts[3:]:
        if start <= 0 or stop <= 0:
            raise DetectionDomainError("START and STOP of a logarithmic axis must be positive")
        return np.geomspace(start, stop, count)
    return np.linspace(start, stop, count)


def grid(axes: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Returns the values of each parameter at every point of the grid, the last one changing fastest.

    Raises:
        DetectionDomainError: It has more than a million points.
    """
    points = int(np.prod([len(values) for values in axes.values()], dtype=object))
    if points > MOST_POINTS:
        raise DetectionDomainError(f"{points} points are too many; ask for at most {MOST_POINTS}")
    spread = np.meshgrid(*axes.values(), indexing="ij")
    return {name: values.reshape(-1) for name, values in zip(axes, spread, strict=True)}


def evaluate(function: Callable[..., FloatArray], points: Mapping[str, FloatArray]) -> FloatArray:
    """Returns `function` at every point, NaN where the point is infeasible.

    Args:
        function: Takes the names in `points` as keyword arguments and broadcasts.
        points: One-dimensional arrays of one length.

    Raises:
        DetectionDomainError: A value is out of range by itself, or every point is infeasible.
    """
    count = len(next(iter(points.values())))
    found = np.full(count, np.nan)
    last: InfeasibleError | None = None
    ranges = [(0, count)]
    while ranges:
        start, stop = ranges.pop()
        try:
            found[start:stop] = function(**{name: values[start:stop] for name, values in points.items()})
        except InfeasibleError as error:
            last = error
            if stop - start > 1:
                ranges += [(start, (start + stop) // 2), ((start + stop) // 2, stop)]
    if last is not None and np.isnan(found).all():
        raise last
    return found
