"""The evaluation context of a step that is recomputed after a crash: it follows the log and compares each result."""

from __future__ import annotations

import torch

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.rounding import contested, formats, narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.sketches.codec import FailedError
from weighbridge.numerics.sketches.following import follow
from weighbridge.numerics.sketches.step_sketches import SketchReader, split
from weighbridge.transcript.steps import StepRecord

Tensor = torch.Tensor


class RecomputedStep(Recording):
    """The context of a recomputed step: it follows the rounding log, so that other hardware may recompute it too."""

    def __init__(
        self, record: StepRecord, log: bytes, seed: int, generators: Generators, policy: Policy, stream: int = 0
    ) -> None:
        super().__init__(seed, generators, policy, stream, logs="on-demand" if record.outputs else "full")
        self._record, self.given = record, record.values
        self._recorded: SketchReader | None = None
        if record.sketches:
            self._recorded, log = split(log)
            self.bounded = self.bounds_halves = True
        self._logged = rounding_log.LogReader(log, max_entries=record.logged)

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        small, entries = dtype in formats.NARROW, None
        try:
            if small and self._recorded is not None:
                at = 8 * len(self.checksums)
                wanted = int.from_bytes(self._record.checksums[at : at + 8], "little")
                result, _, _ = follow(wide, bound, dtype, self._recorded, wanted, (self.op, self._output))
            else:
                entries = self._logged.take(self.op, self._output, wide.numel())
                result = narrow.follow(wide, bound, dtype, entries) if small else contested.follow(wide, bound, entries)
        except (WeighbridgeError, FailedError):
            raise self._differs() from None
        if entries is not None:
            self.log.add(entries)
        self._took(result.out, result.checksum)
        self._compare(self.checksums.pop())
        return result.out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        super().exact(bits, checksum)
        self._compare(self.checksums.pop())

    def _compare(self, checksum: int) -> None:
        at = 8 * len(self.checksums)
        if self._record.checksums[at : at + 8] != checksum.to_bytes(8, "little"):
            raise self._differs()
        self.checksums.append(checksum)

    def _differs(self) -> UsageError:
        return UsageError(
            f"operation {self.op} of step {self._record.step} does not give what was recorded; resume with the same "
            "seed, code, data and arguments, and attach whatever has tensors or numbers that outlive a step",
            code="record.resume.differs",
        )
