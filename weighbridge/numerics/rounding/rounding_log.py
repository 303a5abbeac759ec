"""The rounding log of one step, as bytes (docs/formats/rounding-log.md).

A log is a chain of blocks of at most 65,536 entries, each coded on its own (`logcoding`) behind a header that says
where it begins. So a writer keeps one block in memory and a reader one block and what was asked for, and the entries of
one operation are found from the headers without decoding what comes before. A log is written in exactly one way, and
no other is accepted: a reader writes each block again, and compares.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weighbridge.core.errors import LogError, UsageError
from weighbridge.numerics.rounding import log_coding, range_coder

MAGIC = b"WBRL\x02"
"""Four letters and the version of the format."""

BLOCK = 1 << 16
"""Entries of every block but the last."""

MAX_BLOCKS = 1 << 16
MAX_WIDTH = 63
MAX_POSITION = log_coding.LIMIT
_MAX_VARINT = 6

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OpEntries:
    """The log entries of one rounded output of one operation; the arrays have equal length, at least 1.

    Attributes:
        op: Index of the operation in the step's tape.
        output: Index of the output of that operation.
        positions: int64, indices of contested elements in the result's memory, strictly increasing, below 2^40.
        widths: uint8, k of each entry, at most 63; 0 means that the whole value is logged.
        bits: uint64, the low k bits of the ordered integer; for k = 0 the whole bit pattern.
    """

    op: int
    output: int
    positions: Ints
    widths: NDArray[np.uint8]
    bits: NDArray[np.uint64]

    def part(self, start: int, stop: int | None = None) -> OpEntries:
        """Returns the entries from number `start` to before `stop`, sharing memory."""
        where = slice(start, stop)
        return OpEntries(self.op, self.output, self.positions[where], self.widths[where], self.bits[where])


@dataclass(frozen=True, slots=True)
class Block:
    """What a block's header says, and where its bytes are.

    Attributes:
        entries: How many entries it has, 1 to 65,536.
        key: (operation, output, position) of its first entry.
        coded: First and last + 1 of its coded bytes in the log.
        plain: The same for its plain bytes.
    """

    entries: int
    key: tuple[int, int, int]
    coded: tuple[int, int]
    plain: tuple[int, int]


class LogWriter:
    """Encodes a log while it is made; holds the entries of one block, and the bytes of those before.

    Attributes:
        entries: Entries added so far.
    """

    entries: int

    def __init__(self) -> None:
        self.entries = 0
        self._out = [MAGIC]
        self._waiting: list[OpEntries] = []
        self._last = (-1, 0)

    def add(self, section: OpEntries) -> None:
        """Appends the entries of one output; sections ascend strictly by (op, output).

        Raises:
            UsageError: The order or the arrays break a rule stated in `OpEntries`, or the log is longer than 2^32.
        """
        if self.entries + len(section.positions) > BLOCK * MAX_BLOCKS:
            raise UsageError(f"a rounding log has at most {BLOCK * MAX_BLOCKS} entries; split the step")
        _check_section(section)
        if (section.op, section.output) <= self._last:
            raise UsageError("sections of a rounding log must ascend strictly by (op, output); sort and merge them")
        self._last = (section.op, section.output)
        start = 0
        while start < len(section.positions):
            part = section.part(start, start + BLOCK - self.entries % BLOCK)
            self._waiting.append(part)
            self.entries += len(part.positions)
            start += len(part.positions)
            if self.entries % BLOCK == 0:
                self._flush()

    def finish(self) -> bytes:
        """Returns the whole log; nothing can be added after it."""
        if self._waiting:
            self._flush()
        return b"".join([*self._out, b"\x00"])

    def _flush(self) -> None:
        parts, self._waiting = self._waiting, []
        table = np.array([(p.op, p.output, len(p.positions)) for p in parts], dtype=np.int64)
        positions = np.concatenate([p.positions for p in parts])
        widths, bits = np.concatenate([p.widths for p in parts]), np.concatenate([p.bits for p in parts])
        coded, plain = _encoded(table, positions, widths, bits.view(np.int64))
        header = (len(positions), *table[0, :2].tolist(), int(positions[0]), len(coded), len(plain))
        self._out += [_varints(header), coded, plain]


class LogReader:
    """Reads a hostile log in order, block by block, or anywhere in it.

    Attributes:
        entries: Entries that the log declares, no more than allowed. An entry exists once it was decoded.
        blocks: The headers, in order: the index of the log.
    """

    entries: int
    blocks: list[Block]

    def __init__(self, data: bytes, *, max_entries: int) -> None:
        """Reads the headers.

        Args:
            data: The encoded log; it is not copied.
            max_entries: Most entries to accept in all blocks together.

        Raises:
            LogError: The headers break the rules of the format, or declare too many entries.
        """
        if data[: len(MAGIC)] != MAGIC:
            raise _bad("it does not start with the magic bytes of version 2")
        self._data = np.frombuffer(data, dtype=np.uint8)
        self.blocks, self.entries = [], 0
        for block in _headers(data):
            self.blocks.append(block)
            self.entries += block.entries
            if self.entries > max_entries or len(self.blocks) > MAX_BLOCKS:
                raise _bad(f"it declares more than {MAX_BLOCKS} blocks or the {max_entries} entries that may be there")
        self._next = 0
        self._sections: deque[OpEntries] = deque()

    @property
    def left(self) -> bool:
        """Whether `take` has entries still to give."""
        return bool(self._sections) or self._next < len(self.blocks)

    def reaches(self, op: int) -> bool:
        """Whether the next entry that `take` would give is of this operation or an earlier one.

        Raises:
            LogError: An entry is malformed.
        """
        if not self._sections:
            if self._next == len(self.blocks) or self.blocks[self._next].key[0] > op:
                return False
            self._sections.extend(self._decode(self._next))
            self._next += 1
        return self._sections[0].op <= op

    def take(self, op: int, output: int, elements: int) -> OpEntries | None:
        """Returns the next section if it is that of this output, else None; outputs are asked for in ascending order.

        Args:
            op: Index of the operation.
            output: Index of its output.
            elements: Elements of the output. No more memory is used than so many entries and a block take.

        Raises:
            LogError: An entry is malformed or points outside the output, or belongs to an earlier one.
        """
        parts: list[OpEntries] = []
        while self.left:
            if not self._sections:
                if self.blocks[self._next].key[:2] > (op, output):
                    break  # as `reaches`: what is wrong with a block is said where its entries begin
                self._sections.extend(self._decode(self._next))
                self._next += 1
            section = self._sections[0]
            if (section.op, section.output) < (op, output):
                raise LogError(
                    f"the rounding log has entries for output {section.output} of operation {section.op}, which rounds "
                    "nothing; ask the Prover for the log of this step"
                )
            if (section.op, section.output) > (op, output):
                break
            if int(section.positions[-1]) >= elements:
                raise LogError(
                    f"a rounding-log entry of operation {op} points at element {int(section.positions[-1])} of "
                    f"{elements}; ask the Prover for the log of this step"
                )
            parts.append(self._sections.popleft())
        return _joined(parts)

    def read(self, op: int, output: int, first: int = 0, last: int = MAX_POSITION) -> OpEntries | None:
        """Returns the entries of the elements `first` to before `last` of one output, or None if there are none.

        Only the blocks that can hold them are decoded; `take` goes on where it was.

        Raises:
            LogError: An entry in one of these blocks is malformed.
        """
        keys = [block.key for block in self.blocks]
        start = max(0, bisect.bisect_right(keys, (op, output, first)) - 1)
        stop = bisect.bisect_left(keys, (op, output, last))
        parts = []
        for number in range(start, stop):
            for section in self._decode(number):
                if (section.op, section.output) == (op, output):
                    low, high = np.searchsorted(section.positions, [first, last]).tolist()
                    if low < high:
                        parts.append(section.part(low, high))
        return _joined(parts)

    def __iter__(self) -> Iterator[OpEntries]:
        """Yields the sections from the beginning on; one that spans blocks comes in as many parts."""
        for number in range(len(self.blocks)):
            yield from self._decode(number)

    def _decode(self, number: int) -> list[OpEntries]:
        block = self.blocks[number]
        table = np.empty((block.entries, 3), dtype=np.int64)
        positions, bits = np.empty(block.entries, dtype=np.int64), np.empty(block.entries, dtype=np.int64)
        widths = np.empty(block.entries, dtype=np.uint8)
        coded, plain = self._data[slice(*block.coded)], self._data[slice(*block.plain)]
        fault, found = log_coding.decode_block(coded, plain, *block.key, _contexts(), table, positions, widths, bits)
        if fault:
            raise _bad(f"in block {number}, {log_coding.FAULTS[fault]}")
        if _encoded(table[:found], positions, widths, bits) != (coded.tobytes(), plain.tobytes()):
            raise _bad(f"block {number} is not coded in the one way in which its entries are written")
        cuts = np.cumsum(table[:found, 2])
        if number + 1 < len(self.blocks) and (*table[found - 1, :2].tolist(), int(positions[-1])) >= (
            self.blocks[number + 1].key
        ):
            raise _bad(f"block {number + 1} begins before block {number} ends")
        rows = zip(table[:found].tolist(), (cuts - table[:found, 2]).tolist(), cuts.tolist(), strict=True)
        words = bits.view(np.uint64)
        return [OpEntries(r[0], r[1], positions[a:b], widths[a:b], words[a:b]) for r, a, b in rows]


def encode(log: Sequence[OpEntries]) -> bytes:
    """Returns the one encoding of a step's rounding log.

    Args:
        log: Sections, strictly ascending by (op, output).

    Raises:
        UsageError: The sections or their arrays break a rule stated in `OpEntries`.
    """
    writer = LogWriter()
    for section in log:
        writer.add(section)
    return writer.finish()


def decode(data: bytes, *, max_entries: int) -> list[OpEntries]:
    """Decodes a whole rounding log at once.

    Args:
        data: The encoded log.
        max_entries: Most entries to accept in all sections together.

    Raises:
        LogError: The bytes are not the encoding of a log, or hold too many entries.
    """
    whole: dict[tuple[int, int], list[OpEntries]] = {}
    for section in LogReader(data, max_entries=max_entries):
        whole.setdefault((section.op, section.output), []).append(section)
    return [joined for parts in whole.values() if (joined := _joined(parts)) is not None]


def _joined(parts: list[OpEntries]) -> OpEntries | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    columns = [np.concatenate([getattr(p, name) for p in parts]) for name in ("positions", "widths", "bits")]
    return OpEntries(parts[0].op, parts[0].output, *columns)


def _encoded(table: Ints, positions: Ints, widths: NDArray[np.uint8], bits: Ints) -> tuple[bytes, bytes]:
    """Returns the coded and the plain bytes of a block; the arguments are those of `log_coding.encode_block`."""
    room = log_coding.WORST * len(positions)
    coded, plain = np.zeros(room, dtype=np.uint8), np.zeros(room, dtype=np.uint8)
    sizes = log_coding.encode_block(table, positions, widths, bits, _contexts(), coded, plain)
    return coded[: sizes[0]].tobytes(), plain[: sizes[1]].tobytes()


def _contexts() -> Ints:
    return np.full(log_coding.CONTEXTS, range_coder.EVEN, dtype=np.int64)


def _bad(why: str) -> LogError:
    return LogError(f"malformed rounding log: {why}; fetch the transcript again")


def _headers(data: bytes) -> Iterator[Block]:
    """Yields the headers of all blocks after checking them."""
    at = len(MAGIC)
    before: Block | None = None
    while True:
        count, at = _varint(data, at)
        if count == 0:
            break
        op, at = _varint(data, at)
        output, at = _varint(data, at)
        first, at = _varint(data, at)
        coded, at = _varint(data, at)
        plain, at = _varint(data, at)
        if count > BLOCK or (before is not None and before.entries != BLOCK):
            raise _bad(f"a block has more than {BLOCK} entries, or one before the last has fewer")
        if before is not None and (op, output, first) <= before.key:
            raise _bad("its blocks do not ascend strictly")
        if max(op, output, first) >= MAX_POSITION:
            raise _bad("an operation, output or element index is 2^40 or more")
        if coded + plain > len(data) - at:
            raise _bad("a block is cut off")
        before = Block(count, (op, output, first), (at, at + coded), (at + coded, at + coded + plain))
        at += coded + plain
        yield before
    if at != len(data):
        raise _bad("bytes follow its end")


def _varints(values: Sequence[int]) -> bytes:
    """LEB128: seven bits a byte, least significant first, the high bit set on all but the last byte."""
    out = bytearray()
    for value in values:
        rest = int(value)
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a number; returns (number, the place after it)."""
    value = 0
    for size in range(_MAX_VARINT):
        if at + size >= len(data):
            raise _bad("a header is cut off")
        byte = data[at + size]
        value |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            if byte == 0 and size:
                break
            return value, at + size + 1
    raise _bad("a number is not in its shortest form, or longer than six bytes")


_TYPES = np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.uint64)


def _check_section(section: OpEntries) -> None:
    positions, widths, bits = section.positions, section.widths, section.bits
    wrong = None
    if (positions.dtype, widths.dtype, bits.dtype) != _TYPES:
        wrong = "arrays must be int64, uint8 and uint64; convert them"
    elif not len(positions) == len(widths) == len(bits) or not len(positions):
        wrong = "arrays must have one equal length above 0; leave out empty sections"
    elif not (0 <= section.op < MAX_POSITION and 0 <= section.output < MAX_POSITION):
        wrong = "operation and output must be from 0 to 2^40 - 1"
    elif positions[0] < 0 or positions[-1] >= MAX_POSITION or not (positions[1:] > positions[:-1]).all():
        wrong = "positions must ascend strictly from 0 to 2^40 - 1; sort them"
    elif widths.max() > MAX_WIDTH or ((bits >> widths.astype(np.uint64) != 0) & (widths != 0)).any():
        wrong = f"bits must fit their width, and widths be at most {MAX_WIDTH}; mask them"
    if wrong is not None:
        raise UsageError(f"rounding log of operation {section.op}, output {section.output}: {wrong}")
