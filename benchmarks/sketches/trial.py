"""Sketches at work: made here, and followed under another instruction set in place of the log of 16-bit outputs.

Results of 32 bits follow the log as they do today: its entries for them are few.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.sketches.repeats import repeat
from weighbridge.execution.following import Following, Seen
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.rounding import formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import LogReader, LogWriter, decode
from weighbridge.numerics.sketches import codec
from weighbridge.numerics.sketches.candidates import candidates, ordered, unordered
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord

Array = npt.NDArray[Any]
Capacities = dict[int, codec.Capacity]
"""By place."""


def make(path: Path, capacities: Capacities, folder: Path) -> dict[str, float]:
    """Makes the sketches of all steps of a transcript, and the logs of their 32-bit outputs.

    Args:
        path: The transcript, recorded on this kind of machine.
        capacities: Of its steps after the initialisation.
        folder: Receives `<step>.npz` and `<step>.wlog`.

    Returns:
        Bits and processor seconds a step, and nanoseconds for each 16-bit element.
    """
    codec.warm()
    transcript = Transcript.open(path)
    made: dict[int, codec.Sketch] = {}
    spent, elements, bits = 0.0, 0, 0

    def look(seen: Seen) -> None:
        nonlocal spent, elements, bits
        if seen.wide is not None and seen.index in capacities and seen.out.dtype in formats.NARROW:
            values, capacity = ordered(seen.out), capacities[seen.index]
            codec.prepare(values.size, capacity)
            begin = time.thread_time()
            sketch = made[seen.index] = codec.make(values, capacity)
            spent += time.thread_time() - begin
            elements += values.size
            bits += sketch.bits

    def context(record: StepRecord, *arguments: Any) -> Following:
        made.clear()
        following = _Noting(record, *arguments)
        if record.step:
            following.watch = look
        return following

    for step, _, following in repeat(path, context):
        if step:
            _write(folder, step, made)
            _write_log(folder, step, transcript, following)
    steps = transcript.steps - 1
    return {"bits": bits / steps, "seconds": spent / steps, "nanoseconds": 1e9 * spent / max(1, elements)}


def _write(folder: Path, step: int, sketches: dict[int, codec.Sketch]) -> None:
    arrays: dict[str, Array] = {}
    for index, sketch in sketches.items():
        arrays[f"{index}.capacity"] = np.array([sketch.degree, sketch.capacity.parities, sketch.capacity.values])
        arrays[f"{index}.parities"], arrays[f"{index}.values"] = sketch.parities, sketch.values
    np.savez(folder / f"{step}.npz", **arrays)  # type: ignore[arg-type]  # no keyword of the function has a dot


def _read(folder: Path, step: int) -> dict[int, codec.Sketch]:
    with np.load(folder / f"{step}.npz", allow_pickle=False) as arrays:
        sketches = {}
        for name in arrays.files:
            index, _, part = name.partition(".")
            if part == "capacity":
                degree, t, u = arrays[name].tolist()
                sketches[int(index)] = codec.Sketch(
                    degree, codec.Capacity(t, u), arrays[f"{index}.parities"], arrays[f"{index}.values"]
                )
        return sketches


def _write_log(folder: Path, step: int, transcript: Transcript, following: Following) -> None:
    assert isinstance(following, _Noting)
    writer = LogWriter()
    for section in decode(transcript.rounding(step), max_entries=transcript.step(step).logged):
        if (section.op, section.output) in following.single:
            writer.add(section)
    (folder / f"{step}.wlog").write_bytes(writer.finish())


@dataclass(slots=True)
class _Noting(Following):
    """Notes which outputs are of 32 bits."""

    single: set[tuple[int, int]] = field(default_factory=set)

    def rounded(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in formats.NARROW:
            self.single.add((self.op, self._output))
        return Following.rounded(self, wide, bound, dtype)


@dataclass
class Decoded:
    """What became of the sketches of a replay.

    Attributes:
        outputs: 16-bit outputs.
        decoded: Those that came out otherwise here, and were set right.
        changed: Elements that were set right.
        search: Processor seconds for finding contested elements.
        seconds: Processor seconds for decoding.
        slowest: The longest of one output.
        steps: Steps whose states came out as recorded.
    """

    outputs: int = 0
    decoded: int = 0
    changed: int = 0
    search: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0
    steps: int = 0


def follow(path: Path, folder: Path) -> Decoded:
    """Replays a transcript with its sketches alone: no log for 16-bit outputs. Every checksum and state is compared.

    Raises:
        FailedError: A sketch does not explain what differs.
        DifferenceError: An output does not come out with its checksum.
    """
    codec.warm()
    decoded = Decoded()

    def context(record: StepRecord, log: LogReader | None, seed: int, policy: Policy) -> Following:
        if not record.step:
            return Following(record, log, seed, policy)
        entries = LogReader((folder / f"{record.step}.wlog").read_bytes(), max_entries=record.logged)
        following = _Sketched(record, entries, seed, policy)
        following.recorded, following.decoded = _read(folder, record.step), decoded
        return following

    for step, _, _ in repeat(path, context):
        decoded.steps += bool(step)
    return decoded


@dataclass(slots=True)
class _Sketched(Following):
    """Sets 16-bit outputs right by their sketches."""

    recorded: dict[int, codec.Sketch] = field(default_factory=dict)
    decoded: Decoded = field(default_factory=Decoded)

    def rounded(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in formats.NARROW:
            return Following.rounded(self, wide, bound, dtype)
        sketch = self.recorded[self.checked]
        wanted = self._next_checksum()
        self._output += 1
        out, found = narrow.round_plain(wide, dtype)
        self.decoded.outputs += 1
        if found != wanted:
            codec.prepare(wide.numel(), sketch.capacity)
            begin = time.thread_time()
            mine = candidates(wide, bound, out)
            searched = time.thread_time()
            at, values = codec.recover(sketch, ordered(out), mine.positions, mine.low, mine.high, mine.up)
            flat(out)[torch.from_numpy(at)] = unordered(values, dtype)
            taken = time.thread_time() - searched
            self.decoded.search += searched - begin
            self.decoded.seconds += taken
            self.decoded.slowest = max(self.decoded.slowest, taken)
            self.decoded.decoded += 1
            self.decoded.changed += len(at)
            found = formats.checksum(flat(out))
        if found != wanted:
            raise self._difference(f"{wanted:016x}", f"{found:016x}")
        return out
