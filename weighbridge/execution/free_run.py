"""Runs tapes on what nothing was recorded of: no rounding log is followed, and no result compared."""

from __future__ import annotations

import torch

from weighbridge.execution.executor import Executor
from weighbridge.execution.following import Following
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.transcript.steps import StepRecord


class Free(Following):
    """The context of a step on other data or from another state.

    Numbers that the program reads back from tensors change nothing: what it did with them stands in the values vector.
    """

    def rounded(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> torch.Tensor:
        """See `Context.rounded`."""
        if dtype in formats.NARROW:
            return narrow.follow(wide, bound, dtype, None).out
        return contested.follow(wide, bound, None).out

    def exact(self, bits: torch.Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        return value


class FreeExecutor(Executor):
    """Executes programs in the context `Free`, or another of its kind.

    Attributes:
        context: What steps are evaluated in.
    """

    context: type[Free] = Free

    def _context(self, record: StepRecord, log: LogReader | None) -> Following:
        return self.context(record, log, self._seed, self._policy)
