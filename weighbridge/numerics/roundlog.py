"""The rounding log of one step, as bytes (docs/formats/rounding-log.md).

The log is stored by column (sections, gaps, widths, bits), so that NumPy encodes and decodes a whole step at once and
zstd finds the repetition. Every log has exactly one encoding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weighbridge.errors import LogError, UsageError

MAGIC = b"WBRL\x01"
"""Four letters and the version of the format."""

WHOLE_BITS = 64
"""Bits that an entry of width 0 (the whole value) takes."""

MAX_WIDTH = 63
MAX_POSITION = 1 << 40
MAX_SECTIONS = 1 << 20
_MAX_VARINT = 9

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OpEntries:
    """The log entries of one rounded output of one operation; the arrays have equal length, at least 1.

    Attributes:
        op: Index of the operation in the step's tape.
        output: Index of the output of that operation.
        positions: int64, row-major indices of contested elements, strictly increasing, below 2^40.
        widths: uint8, k of each entry, at most 63; 0 means that the whole value is logged.
        bits: uint64, the low k bits of the ordered integer; for k = 0 the whole bit pattern.
    """

    op: int
    output: int
    positions: Ints
    widths: NDArray[np.uint8]
    bits: NDArray[np.uint64]


def encode(log: Sequence[OpEntries]) -> bytes:
    """Returns the one encoding of a step's rounding log.

    Args:
        log: Sections, strictly ascending by (op, output).

    Raises:
        UsageError: The sections or their arrays break a rule stated in `OpEntries`.
    """
    if len(log) > MAX_SECTIONS:
        raise UsageError(f"a rounding log holds at most {MAX_SECTIONS} sections; split the step")
    keys = [(section.op, section.output) for section in log]
    if any(first >= second for first, second in itertools.pairwise(keys)):
        raise UsageError("sections of a rounding log must ascend strictly by (op, output); sort and merge them")
    for section in log:
        _check_section(section)
    counts = np.array([len(section.positions) for section in log], dtype=np.int64)
    table = np.array(
        [(op, output, int(count)) for (op, output), count in zip(keys, counts, strict=True)], dtype=np.int64
    )
    table = table.reshape(-1, 3)
    table[:, 0] = np.diff(table[:, 0], prepend=0)
    out = [MAGIC, _pack_varints(np.array([len(log)], dtype=np.int64)), _pack_varints(table.reshape(-1))]
    if log:
        positions = np.concatenate([section.positions for section in log])
        gaps = np.diff(positions, prepend=np.int64(-1)) - 1
        starts = np.cumsum(counts) - counts
        gaps[starts] = positions[starts]
        widths = np.concatenate([section.widths for section in log])
        bits = np.concatenate([section.bits for section in log])
        out += [_pack_varints(gaps), _pack_runs(widths), _pack_bits(bits, widths)]
    return b"".join(out)


def decode(data: bytes, *, max_entries: int) -> list[OpEntries]:
    """Decodes a rounding log; accepts exactly what `encode` writes.

    Args:
        data: The encoded log.
        max_entries: Most entries to accept in all sections together.

    Raises:
        LogError: The bytes are not the encoding of a log, or hold too many entries.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise _bad("it does not start with the magic bytes of version 1")
    raw = np.frombuffer(data, dtype=np.uint8)[len(MAGIC) :]
    (sections,), raw = _take_varints(raw, 1)
    if sections > MAX_SECTIONS:
        raise _bad(f"it has more than {MAX_SECTIONS} sections")
    table, raw = _take_varints(raw, 3 * int(sections))
    if not sections:
        if len(raw):
            raise _bad("bytes follow an empty log")
        return []
    columns = table.reshape(-1, 3)
    ops, outputs, counts = _check_table(columns[:, 0], columns[:, 1], columns[:, 2], min(max_entries, len(data)))
    total = int(counts.sum())
    gaps, raw = _take_varints(raw, total)
    ends = np.cumsum(counts)
    positions = _positions(gaps, ends - counts, counts)
    widths, raw = _take_runs(raw, total)
    bits = _take_bits(raw, widths)
    cuts = ends[:-1]
    parts = zip(
        ops.tolist(),
        outputs.tolist(),
        np.split(positions, cuts),
        np.split(widths, cuts),
        np.split(bits, cuts),
        strict=True,
    )
    return [OpEntries(*part) for part in parts]


def _bad(why: str) -> LogError:
    return LogError(f"malformed rounding log: {why}; fetch the transcript again")


def _check_section(section: OpEntries) -> None:
    positions, widths, bits = section.positions, section.widths, section.bits
    place = f"rounding log of operation {section.op}, output {section.output}"
    if [array.dtype.name for array in (positions, widths, bits)] != ["int64", "uint8", "uint64"]:
        raise UsageError(f"{place}: arrays must be int64, uint8 and uint64; convert them")
    if not len(positions) == len(widths) == len(bits) or not len(positions):
        raise UsageError(f"{place}: arrays must have one equal length above 0; leave out empty sections")
    if not (0 <= section.op < MAX_POSITION and 0 <= section.output < MAX_POSITION):
        raise UsageError(f"{place}: operation and output must be from 0 to 2^40 - 1")
    if positions[0] < 0 or positions[-1] >= MAX_POSITION or bool(np.any(np.diff(positions) <= 0)):
        raise UsageError(f"{place}: positions must ascend strictly from 0 to 2^40 - 1; sort them")
    if widths.max() > MAX_WIDTH or bool(np.any((bits >> widths.astype(np.uint64) != 0) & (widths != 0))):
        raise UsageError(f"{place}: bits must fit their width, and widths be at most {MAX_WIDTH}; mask them")


def _check_table(steps: Ints, outputs: Ints, counts: Ints, most: int) -> tuple[Ints, Ints, Ints]:
    """Returns (operations, outputs, entry counts) of all sections after checking order and sizes."""
    if bool(np.any(steps >= MAX_POSITION)) or bool(np.any(outputs >= MAX_POSITION)):
        raise _bad("an operation or output index is 2^40 or more")
    ops = np.cumsum(steps)
    if ops[-1] >= MAX_POSITION:
        raise _bad("an operation index is 2^40 or more")
    if bool(np.any((steps[1:] == 0) & (np.diff(outputs) <= 0))):
        raise _bad("its sections do not ascend strictly")
    if bool(np.any(counts == 0)) or bool(np.any(counts > most)) or int(counts.sum()) > most:
        raise _bad(f"a section is empty, or there are more entries than the {most} that may be here")
    return ops, outputs, counts


def _positions(gaps: Ints, starts: Ints, counts: Ints) -> Ints:
    """Turns gaps into element indices, starting afresh in every section."""
    if bool(np.any(gaps >= MAX_POSITION)):
        raise _bad("an element index is 2^40 or more")
    total = np.cumsum(gaps + 1)
    base = np.repeat(total[starts] - gaps[starts], counts)
    positions = total - base
    # No sum wraps unseen: the first index that is out of range is found before 2^20 sections could add up to 2^63.
    if bool(np.any(positions >= MAX_POSITION)):
        raise _bad("an element index is 2^40 or more")
    return positions


def _pack_varints(values: Ints) -> bytes:
    """LEB128: seven bits a byte, least significant first, the high bit set on all but the last byte."""
    lengths = np.ones(len(values), dtype=np.int64)
    for size in range(1, _MAX_VARINT):
        lengths += values >= 1 << 7 * size
    ends = np.cumsum(lengths)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for place in range(_MAX_VARINT):
        chosen = lengths > place
        if not chosen.any():
            break
        more = (lengths[chosen] > place + 1).astype(np.uint8) << 7
        out[(ends - lengths)[chosen] + place] = (values[chosen] >> 7 * place & 0x7F).astype(np.uint8) | more
    return out.tobytes()


def _take_varints(raw: NDArray[np.uint8], count: int) -> tuple[Ints, NDArray[np.uint8]]:
    """Splits `count` varints off `raw`; returns (values, the rest)."""
    if count == 0:
        return np.zeros(0, dtype=np.int64), raw
    ends = np.flatnonzero(raw[: _MAX_VARINT * count] < 0x80)[:count]
    if len(ends) < count:
        raise _bad("a number is cut off or longer than nine bytes")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if int(lengths.max()) > _MAX_VARINT or bool(np.any((raw[ends] == 0) & (lengths > 1))):
        raise _bad("a number is not in its shortest form")
    values = np.zeros(count, dtype=np.int64)
    for place in range(int(lengths.max())):
        chosen = lengths > place
        values[chosen] |= (raw[starts[chosen] + place].astype(np.int64) & 0x7F) << 7 * place
    return values, raw[int(ends[-1]) + 1 :]


def _pack_runs(widths: NDArray[np.uint8]) -> bytes:
    starts = np.concatenate(([0], np.flatnonzero(np.diff(widths)) + 1))
    runs = np.diff(starts, append=len(widths))
    return _pack_varints(np.array([len(runs)], dtype=np.int64)) + widths[starts].tobytes() + _pack_varints(runs)


def _take_runs(raw: NDArray[np.uint8], total: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    (count,), raw = _take_varints(raw, 1)
    if count > min(total, len(raw)):
        raise _bad("it has more runs of widths than entries")
    values, raw = raw[:count], raw[count:]
    runs, raw = _take_varints(raw, int(count))
    if bool(np.any(runs > total)) or bool(np.any(runs == 0)) or int(runs.sum()) != total:
        raise _bad("its runs of widths do not add up to its entries")
    if bool(np.any(values > MAX_WIDTH)) or bool(np.any(values[1:] == values[:-1])):
        raise _bad("a width is above 63, or two neighbouring runs have the same width")
    return np.repeat(values, runs), raw


def _bit_places(widths: NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Returns (bits that each entry takes, its first bit)."""
    sizes = np.where(widths == 0, WHOLE_BITS, widths).astype(np.int64)
    return sizes, np.cumsum(sizes) - sizes


def _pack_bits(bits: NDArray[np.uint64], widths: NDArray[np.uint8]) -> bytes:
    sizes, places = _bit_places(widths)
    flat = np.zeros(int(sizes.sum()), dtype=np.uint8)
    chosen = np.arange(len(widths))
    for place in range(int(sizes.max())):
        chosen = chosen[sizes[chosen] > place]
        flat[places[chosen] + place] = (bits[chosen] >> np.uint64(place) & np.uint64(1)).astype(np.uint8)
    return np.packbits(flat, bitorder="little").tobytes()


def _take_bits(raw: NDArray[np.uint8], widths: NDArray[np.uint8]) -> NDArray[np.uint64]:
    sizes, places = _bit_places(widths)
    total = int(sizes.sum())
    if len(raw) != (total + 7) // 8:
        raise _bad("its bits are cut off or followed by other bytes")
    flat = np.unpackbits(raw, bitorder="little")
    if flat[total:].any():
        raise _bad("its padding is not zero")
    bits = np.zeros(len(widths), dtype=np.uint64)
    chosen = np.arange(len(widths))
    for place in range(int(sizes.max())):
        chosen = chosen[sizes[chosen] > place]
        bits[chosen] |= flat[places[chosen] + place].astype(np.uint64) << np.uint64(place)
    return bits
