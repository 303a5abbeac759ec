"""What a chip has done since it was made: counters that its firmware keeps and that every token of its carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from weighbridge.core.errors import TokenError

END = 1 << 96
"""Counters are below this: FLOPs of a thousand years at 10^18 a second take 85 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Totals over a chip's life, or what was added to them between two moments.

    Attributes:
        kernels: Kernels that ran.
        busy_ns: Nanoseconds for which they ran, at most; those of threads that run side by side add up.
        moved: Bytes of their operands and results.
        flops: FLOPs, at most, of the kernels whose work follows from their operands (`weighbridge.numerics.flops`); of
            the others, as many as a product of their operands takes.
        unknown_ns: Nanoseconds of `busy_ns` in these others: code that is no kernel of PyTorch's, or whose operands
            have no sizes.
    """

    kernels: int = 0
    busy_ns: int = 0
    moved: int = 0
    flops: int = 0
    unknown_ns: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in NAMES})

    def __sub__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) - getattr(other, name) for name in NAMES})

    def at_least(self, other: Work) -> Work:
        """Returns the larger of each counter."""
        return Work(**{name: max(getattr(self, name), getattr(other, name)) for name in NAMES})

    def decreased(self, since: Work) -> list[str]:
        """Returns the names of the counters that are lower than they were."""
        return [name for name in NAMES if getattr(self, name) < getattr(since, name)]

    def flops_at_most(self, peak: float) -> float:
        """Returns an upper bound of the FLOPs: a kernel of unknown work did as much as the chip can in its time.

        Args:
            peak: The most FLOPs that the chip can do a second.
        """
        return self.flops + self.unknown_ns / 1e9 * peak

    def to_json(self) -> dict[str, int]:
        """Returns the counters by name, as in a token; inverse of `from_json`."""
        return asdict(self)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Work:
        """Reads the counters of a token.

        Raises:
            TokenError: One is missing, unknown or out of range.
        """
        if set(raw) != set(NAMES) or not all(type(value) is int and 0 <= value < END for value in raw.values()):
            raise TokenError(f"The counters of a token must be exactly {', '.join(NAMES)}, within their range.")
        return Work(**raw)


NAMES = tuple(each.name for each in fields(Work))
NONE = Work()
