"""The sketches of one step, as bytes, beside the rounding log of its 32-bit outputs (docs/formats/sketches.md).

What a sketch takes follows from the number of elements of its output and from the scale, which is the same for a step.
So the bytes state no sizes, and a reader knows from the outputs that it makes itself where each sketch ends.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.errors import LogError
from weighbridge.numerics.sketches import remainders
from weighbridge.numerics.sketches.capacity import BLOCK, MOST_SCALE, SCALE, capacity
from weighbridge.numerics.sketches.codec import Capacity, Sketch, degree_of, make

Array = npt.NDArray[Any]

MAGIC = b"WBSK\x01"
_HEADER = struct.Struct("<5sBQ")
MALFORMED = "replay.sketch.malformed"


def blocks(elements: int) -> list[tuple[int, int]]:
    """Returns where the blocks of an output begin and end."""
    return [(begin, min(begin + BLOCK, elements)) for begin in range(0, elements, BLOCK)]


def pack(sketch: Sketch) -> bytes:
    """Returns the bits of a sketch, filled up with zeros to whole bytes.

    Law: `unpack(pack(s), n, s.capacity)` is s for a sketch of n elements.
    """
    bits = remainders.size(sketch.degree, sketch.capacity.parities)
    first = np.unpackbits(sketch.parities.astype(">u8").view(np.uint8))[:bits]
    places = np.arange(sketch.degree - 1, -1, -1)
    rest = (sketch.values[:, None] >> places & 1).astype(np.uint8).reshape(-1)
    return np.packbits(np.concatenate([first, rest])).tobytes()


def packed_size(elements: int, taken: Capacity) -> int:
    """Returns how many bytes `pack` makes for a block of so many elements."""
    degree = degree_of(elements)
    return -(-(remainders.size(degree, taken.parities) + degree * 2 * taken.values) // 8)


def unpack(data: bytes, elements: int, taken: Capacity) -> Sketch:
    """Reads what `pack` wrote.

    Raises:
        LogError: It has another size, or bits beyond its end (`replay.sketch.malformed`).
    """
    degree = degree_of(elements)
    size = remainders.size(degree, taken.parities)
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
    end = size + degree * 2 * taken.values
    if len(data) != packed_size(elements, taken) or bits[end:].any():
        raise malformed("it has bits that belong to no sketch")
    first = np.zeros(-(-size // 64) * 64, dtype=np.uint8)
    first[:size] = bits[:size]
    words = np.packbits(first).view(">u8").astype(np.uint64)
    rest = bits[size:end].reshape(-1, degree).astype(np.int64)
    values = rest @ (np.int64(1) << np.arange(degree - 1, -1, -1, dtype=np.int64))
    return Sketch(degree, taken, words, values)


class SketchWriter:
    """Makes the sketches of a step, output by output."""

    def __init__(self, scale: int = SCALE) -> None:
        self._scale, self._parts = scale, list[bytes]()

    def add(self, ordered: Array) -> None:
        """Takes in the next 16-bit output, as its ordered integers (int16) in physical order."""
        for begin, end in blocks(ordered.size):
            self._parts.append(pack(make(ordered[begin:end], capacity(end - begin, self._scale))))

    def finish(self, log: bytes) -> bytes:
        """Returns all sketches, and the encoded rounding log of the 32-bit outputs.

        Law: `split` of it gives a reader whose `take` gives the sketches of the outputs in order, and the log.
        """
        sketches = b"".join(self._parts)
        return _HEADER.pack(MAGIC, self._scale, len(sketches)) + sketches + log


class SketchReader:
    """Reads a step's hostile sketches in order."""

    def __init__(self, data: memoryview, scale: int) -> None:
        """Use `split`."""
        self._data, self._scale, self._at = data, scale, 0

    @property
    def left(self) -> bool:
        """Whether there are bytes of further sketches."""
        return self._at < len(self._data)

    def take(self, elements: int) -> list[bytes]:
        """Returns the packed sketches of the blocks of the next output.

        Raises:
            LogError: There are fewer bytes (`replay.sketch.malformed`).
        """
        taken = []
        for begin, end in blocks(elements):
            size = packed_size(end - begin, self.capacity(end - begin))
            if self._at + size > len(self._data):
                raise malformed("it ends before the outputs do")
            taken.append(bytes(self._data[self._at : self._at + size]))
            self._at += size
        return taken

    def capacity(self, elements: int) -> Capacity:
        """Returns what the sketch of a block of so many elements can name."""
        return capacity(elements, self._scale)


def split(data: bytes) -> tuple[SketchReader, bytes]:
    """Returns a reader of a step's sketches, and its encoded rounding log, which is not looked at.

    Raises:
        LogError: The header breaks the rules of the format (`replay.sketch.malformed`).
    """
    if len(data) < _HEADER.size:
        raise malformed("it is shorter than its header")
    magic, scale, size = _HEADER.unpack_from(data)
    if magic != MAGIC or scale > MOST_SCALE:
        raise malformed(f"it does not begin as one of version 1 with a scale of at most {MOST_SCALE}")
    end = _HEADER.size + size
    if end > len(data):
        raise malformed("it is longer than the file")
    return SketchReader(memoryview(data)[_HEADER.size : end], scale), data[end:]


def malformed(why: str) -> LogError:
    """Returns what to raise of sketches that break the rules of the format."""
    return LogError(f"the sketch is malformed: {why}; fetch it again", code=MALFORMED)
