"""Results of collectives that are taken as given when one rank is replayed alone (`match given collectives`).

They come from the Prover, which recomputes them by replaying the job. Each must have the root that the rank's step
record names; that it is what the members' contributions make is shown by opening chunks
(`weighbridge.execution.collective_openings`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch

from weighbridge.core.errors import TranscriptError
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.transcript.collectives import Call, Exchange, as_flat
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.tensor_file import TensorFile, raw_bytes, write_tensors

Tensor = torch.Tensor


_FORMAT = "weighbridge-results/1"


class GivenResults:
    """The `Exchange` of a cell: takes results from a file."""

    given: ClassVar[bool] = True

    def __init__(self, path: Path, coordinate: MeshCoordinate) -> None:
        """Opens a file of results.

        Raises:
            FormatError: It does not follow the format.
            TranscriptError: It is missing, too large, or that of another rank (`job.results.mismatch`).
        """
        self._file = TensorFile(path)
        self.used = self.bytes = 0
        expected = {"format": _FORMAT, "job": coordinate.job.id.hex(), "rank": str(coordinate.rank)}
        if self._file.metadata != expected:
            raise TranscriptError(
                f"{path.name} does not hold the results of rank {coordinate.rank} of the job "
                f"{coordinate.job.id.hex()}; ask for "
                "those of this rank",
                code="job.results.mismatch",
            )

    def exchange(self, step: int, call: Call, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
        """See `weighbridge.transcript.collectives.Exchange`.

        Raises:
            TranscriptError: A result is absent, or has another size than the tape says (`job.results.mismatch`).
        """
        self.used += bool(outs)
        results = []
        for number, out in enumerate(outs):
            name = result_name(step, call.op, number)
            data = self._file.read(name) if name in self._file else None
            if data is None or data.numel() * data.itemsize != out.numel() * out.itemsize:
                raise TranscriptError(
                    f"the results lack {name}, or it has not {out.numel() * out.itemsize} bytes; ask the Prover again",
                    code="job.results.mismatch",
                )
            self.bytes += data.numel() * data.itemsize
            results.append(as_flat(raw_bytes(data), out))
        return results


def conditional(exchange: Exchange | None) -> bool:
    """Whether a match rests on results that were taken as given."""
    return isinstance(exchange, GivenResults) and exchange.used > 0


def enter(exchange: Exchange | None, ledger: ChosenBits) -> None:
    """Enters results that were taken as given into a ledger: nothing in this replay says how they came about."""
    if isinstance(exchange, GivenResults):
        ledger.add("given", -1, 8.0 * exchange.bytes, f"the results of {exchange.used} collectives")


def result_name(step: int, op: int, number: int) -> str:
    """Returns the name of one result in the file."""
    return f"{step}/{op}/{number}"


def write_results(path: Path, coordinate: MeshCoordinate, results: Mapping[tuple[int, int, int], Tensor]) -> None:
    """Writes results for a cell.

    Args:
        path: The file to write.
        coordinate: The rank whose cell it is.
        results: Bytes (flat uint8) by (step, operation, number of the out).
    """
    metadata = {"format": _FORMAT, "job": coordinate.job.id.hex(), "rank": str(coordinate.rank)}
    write_tensors(path, {result_name(*key): data for key, data in results.items()}, metadata)
