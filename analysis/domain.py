"""What every module of `analysis` accepts: numbers or arrays of them, checked where they come in.

Parameters are broadcast against each other as NumPy does it. Functions return float64: an array of the broadcast shape,
or a NumPy scalar (a `float`) where every parameter was one number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DetectionDomainError", "InfeasibleError"]

FloatArray = npt.NDArray[np.float64]
Numbers = npt.ArrayLike  # a number, or an array of any shape

LARGEST_WHOLE = 2.0**53  # above it float64 cannot tell neighbours apart
ENOUGH = 1 - 2.0**-48  # a computed probability may be a few units in the last place below the true one


class DetectionDomainError(ValueError):
    """The inputs describe no possible inspection or no possible violation; the message says which input and why."""


class InfeasibleError(DetectionDomainError):
    """Each input is in range, but not together: a run that does not fit, a probability that nothing reaches."""


def numbers(name: str, value: Numbers) -> FloatArray:
    """Returns `value` as a float64 array of its own shape.

    Raises:
        DetectionDomainError: It holds something that is no number.
    """
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise DetectionDomainError(f"{name} must be a number or an array of numbers, not {value!r:.80}") from None


def refuse(
    wrong: npt.NDArray[np.bool_] | np.bool_,
    values: FloatArray,
    message: Callable[[str], str],
    error: type[DetectionDomainError] = DetectionDomainError,
) -> None:
    """Raises with the first of `values` for which `wrong` holds, both of one shape.

    Raises:
        DetectionDomainError: Something is wrong; the text is `message(offending value)`, the class is `error`.
    """
    if np.any(wrong):
        raise error(message(repr(float(values[wrong].flat[0]))))


def not_more_than_chips(samples: FloatArray, chips: FloatArray) -> None:
    """Refuses more samples than chips; the arrays have one shape.

    Raises:
        InfeasibleError: s > C somewhere.
    """
    refuse(
        samples > chips,
        samples,
        lambda v: f"samples = {float(v):.0f}: more different chips cannot be sampled than there are; lower samples",
        InfeasibleError,
    )


def positive(name: str, value: Numbers, unit: str) -> FloatArray:
    """Returns `value`, which must be positive and finite.

    Raises:
        DetectionDomainError: It is not.
    """
    checked = numbers(name, value)
    wrong = ~(np.isfinite(checked) & (checked > 0))
    refuse(wrong, checked, lambda v: f"{name} must be a positive finite number of {unit}, not {v}")
    return checked


def not_negative(name: str, value: Numbers, unit: str) -> FloatArray:
    """Returns `value`, which must be zero or more and finite.

    Raises:
        DetectionDomainError: It is not.
    """
    checked = numbers(name, value)
    wrong = ~(np.isfinite(checked) & (checked >= 0))
    refuse(wrong, checked, lambda v: f"{name} must be zero or a positive finite number of {unit}, not {v}")
    return checked


def whole(name: str, value: Numbers, least: int) -> FloatArray:
    """Returns `value`, which must be a whole number from `least` to 2**53, as float64.

    Raises:
        DetectionDomainError: It is not.
    """
    checked = numbers(name, value)
    wrong = ~((checked >= least) & (checked <= LARGEST_WHOLE) & (np.floor(checked) == checked))
    refuse(wrong, checked, lambda v: f"{name} must be a whole number of at least {least} (and at most 2**53), not {v}")
    return checked


def probability(name: str, value: Numbers) -> FloatArray:
    """Returns `value`, which must lie between 0 and 1 exclusively.

    Raises:
        DetectionDomainError: It does not.
    """
    checked = numbers(name, value)
    wrong = ~((checked > 0) & (checked < 1))
    refuse(wrong, checked, lambda v: f"{name} must lie between 0 and 1 exclusively, not {v}")
    return checked


def share(name: str, value: Numbers) -> FloatArray:
    """Returns `value`, which must lie between 0 and 1, both included.

    Raises:
        DetectionDomainError: It does not.
    """
    checked = numbers(name, value)
    wrong = ~((checked >= 0) & (checked <= 1))
    refuse(wrong, checked, lambda v: f"{name} must lie between 0 and 1, not {v}")
    return checked


def schedule(run_days: Numbers, period_days: Numbers, snapshot_rate_per_day: Numbers) -> list[FloatArray]:
    """Returns a run's days, a monitoring period's days and the snapshots per chip and day, each of its own shape.

    Raises:
        DetectionDomainError: One is not positive and finite.
    """
    return [
        positive("run_days", run_days, "days"),
        positive("period_days", period_days, "days"),
        positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"),
    ]


def together(*arrays: FloatArray) -> list[FloatArray]:
    """Returns `arrays` broadcast to one shape.

    Raises:
        DetectionDomainError: Their shapes do not fit together.
    """
    try:
        return list(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise DetectionDomainError(f"parameters of the shapes {shapes} cannot be broadcast together") from None


def plain(values: Any) -> FloatArray:
    """Returns an array as it is and an array without dimensions as a NumPy scalar, which is a `float`."""
    unwrapped: FloatArray = np.asarray(values, dtype=np.float64)[()]
    return unwrapped


def least_whole(holds: Callable[[FloatArray], npt.NDArray[np.bool_]], low: FloatArray, high: FloatArray) -> FloatArray:
    """Returns the least whole number above `low` and up to `high` for which `holds`, by bisection.

    Args:
        holds: False up to some number and true from there on, elementwise; true at `high`.
        low: Whole numbers at which it is false, or that are not wanted; shape as `high`.
        high: Whole numbers above `low`.
    """
    low, high = low.copy(), high.copy()
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        found = holds(middle) & (high - low > 1)
        low = np.where(found | (high - low <= 1), low, middle)
        high = np.where(found, middle, high)
    return high


def narrowed(
    holds: Callable[[FloatArray], npt.NDArray[np.bool_]], low: FloatArray, high: FloatArray, halvings: int
) -> tuple[FloatArray, FloatArray]:
    """Returns the ends of the intervals in which `holds` turns from true to false, by bisection.

    Args:
        holds: True up to some number and false from there on, elementwise.
        low: Numbers at which it is true.
        high: Numbers above `low` at which it is false; shape as `low`.
        halvings: How often the intervals are halved.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        still = holds(middle)
        low, high = np.where(still, middle, low), np.where(still, high, middle)
    return low, high
