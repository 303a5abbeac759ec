"""Entropy coding of one block of a rounding log, with the range coder of `rangecoder`.

What each number is coded as is specified to the bit in docs/formats/rounding-log.md; names there are those of the
constants here. The decoder is total: whatever bytes it is given, it ends after a number of decisions that the declared
count of entries bounds, and says what it found wrong by a number.
"""

from __future__ import annotations

import numpy as np

from weighbridge.numerics.rounding.range_coder import (
    Array,
    Coder,
    byte,
    finish,
    jit,
    put,
    put_number,
    put_plain,
    take,
    take_number,
    take_plain,
)

Both = tuple[Coder, Coder]

FIELD = 48
"""Contexts of one field: more than the 41 bits that a number can have."""

OP, OUTPUT, COUNT, SCALE, ESCAPE = (FIELD * i for i in range(5))
QUOTIENT = 5 * FIELD
UNARY = 20
"""Quotients from here on are written as a number."""

CLASSES = 8
TOP = QUOTIENT + CLASSES * UNARY
WIDTH = TOP + CLASSES
LOW = WIDTH + 3 * 64
ZERO = LOW + 3
SAME = ZERO + 1
CONTEXTS = SAME + 1

FRACTION = 12
"""Fractional bits of the running mean of gaps."""

WIDE = 8
"""Entries of this width or more say first whether their bits are zero."""

CARRIED = 6
"""The age that a context keeps at most when a section begins."""

LIMIT = 1 << 40
WORST = 192
"""More bytes than an entry can take in either stream."""

TOO_MANY, TOO_LARGE, TOO_FAR, CODED_END, PLAIN_END = range(1, 6)
FAULTS = {
    TOO_MANY: "a section has more entries than the block",
    TOO_LARGE: "a number is out of range",
    TOO_FAR: "an element index is 2^40 or more",
    CODED_END: "the coded bytes end elsewhere than the entries",
    PLAIN_END: "the plain bits end elsewhere than the entries",
}
"""What the numbers that `decode_block` returns mean."""


@jit
def _soften(contexts: Array) -> None:
    """Lets every context learn anew a little: a new section has begun."""
    for i in range(contexts.size):
        if contexts[i] & 255 > CARRIED:
            contexts[i] = (contexts[i] & ~255) | CARRIED


@jit
def _exponent(mean: int, k: int) -> int:
    """Returns the largest k >= 0 with 2^k no more than the mean, searching from a k near it."""
    while mean >> (FRACTION + k + 1) > 0:
        k += 1
    while k > 0 and mean >> (FRACTION + k) == 0:
        k -= 1
    return k


@jit
def _class(mean: int, k: int) -> int:
    """Returns which eighth a mean is in: its quarter below 1, or 4 + the quarter from 2^k to 2^(k+1)."""
    if mean >> FRACTION == 0:
        return mean >> (FRACTION - 2)
    return 4 + ((mean >> (FRACTION + k - 2)) & 3)


@jit
def _speed(age: int) -> int:
    """Returns how slowly the mean follows the gaps after so many of them."""
    return 3 + (age >= 8) + (age >= 16) + (age >= 32)


@jit
def _put_gap(c: Coder, d: Coder, contexts: Array, gap: int, k: int, group: int, out: Array, raw: Array) -> Both:
    q = gap >> k
    base = QUOTIENT + group * UNARY
    for i in range(min(q, UNARY)):
        c = put(c, contexts, base + i, 1, out)
    if q < UNARY:
        c = put(c, contexts, base + q, 0, out)
    else:
        c, d = put_number(c, d, contexts, ESCAPE, q - UNARY, out, raw)
    if k > 0:
        c = put(c, contexts, TOP + group, (gap >> (k - 1)) & 1, out)
        d = put_plain(d, gap & ((1 << (k - 1)) - 1), k - 1, raw)
    return c, d


@jit
def _take_gap(
    c: Coder, d: Coder, contexts: Array, k: int, group: int, coded: Array, raw: Array
) -> tuple[int, Coder, Coder]:
    """Returns a gap, or -1 if it is out of range."""
    q = 0
    base = QUOTIENT + group * UNARY
    bit, c = take(c, contexts, base, coded)
    while bit == 1:
        q += 1
        if q == UNARY:
            more, c, d = take_number(c, d, contexts, ESCAPE, coded, raw)
            q += more
            if more < 0 or q > LIMIT >> k:
                return -1, c, d
            break
        bit, c = take(c, contexts, base + q, coded)
    if k == 0:
        return q, c, d
    top, c = take(c, contexts, TOP + group, coded)
    rest, d = take_plain(d, k - 1, raw)
    return (((q << 1) | top) << (k - 1)) | rest, c, d


@jit
def _put_long(
    c: Coder, d: Coder, contexts: Array, base: int, width: int, bits: int, whole: int, out: Array, raw: Array
) -> Both:
    """Codes width and bits of an entry whose width is not 1, after the decision that says so."""
    if width == 0:
        c = put(c, contexts, base + 1, 0, out)
        c = put(c, contexts, SAME, int(bits != whole), out)
        if bits != whole:
            d = put_plain(d, bits & 0xFFFFFFFF, 32, raw)
            d = put_plain(d, (bits >> 32) & 0xFFFFFFFF, 32, raw)
        return c, d
    c = put(c, contexts, base + 1, 1, out)
    for i in range(2, width):
        c = put(c, contexts, base + i, 1, out)
    if width < 63:
        c = put(c, contexts, base + width, 0, out)
    if width >= WIDE:
        c = put(c, contexts, ZERO, int(bits != 0), out)
        if bits == 0:
            return c, d
    c = put(c, contexts, LOW + 1 + (width >= WIDE), bits & 1, out)
    rest = bits >> 1
    first = min(width - 1, 32)
    d = put_plain(d, rest & ((1 << first) - 1), first, raw)
    return c, put_plain(d, rest >> first, width - 1 - first, raw)


@jit
def _take_long(
    c: Coder, d: Coder, contexts: Array, base: int, whole: int, coded: Array, raw: Array
) -> tuple[int, int, Coder, Coder]:
    """Decodes what `_put_long` coded; returns width and bits first."""
    bit, c = take(c, contexts, base + 1, coded)
    if bit == 0:
        bit, c = take(c, contexts, SAME, coded)
        if bit == 0:
            return 0, whole, c, d
        low, d = take_plain(d, 32, raw)
        high, d = take_plain(d, 32, raw)
        return 0, low | (high << 32), c, d
    width = 2
    while width < 63:
        bit, c = take(c, contexts, base + width, coded)
        if bit == 0:
            break
        width += 1
    if width >= WIDE:
        bit, c = take(c, contexts, ZERO, coded)
        if bit == 0:
            return width, 0, c, d
    low, c = take(c, contexts, LOW + 1 + (width >= WIDE), coded)
    first = min(width - 1, 32)
    rest, d = take_plain(d, first, raw)
    more, d = take_plain(d, width - 1 - first, raw)
    return width, (((more << first) | rest) << 1) | low, c, d


@jit
def _length(value: int) -> int:
    n = 0
    while value >> n > 0:
        n += 1
    return n


@jit
def encode_block(
    table: Array, positions: Array, widths: Array, bits: Array, contexts: Array, out: Array, raw: Array
) -> tuple[int, int]:
    """Encodes a block; returns the lengths of its coded and of its plain bytes.

    Args:
        table: int64, (sections, 3): operation, output, entries of each.
        positions: int64, of all entries.
        widths: uint8, of all entries.
        bits: int64, the bits of a uint64, of all entries.
        contexts: int64, `CONTEXTS` of them, all `EVEN`.
        out: uint8 zeros, `WORST` for each entry; takes the coded bytes.
        raw: The same for the plain bytes.
    """
    c, d = (0, 0xFFFFFFFF, 0), (0, 0, 0)
    at = 0
    left = positions.size
    for part in range(table.shape[0]):
        count = table[part, 2]
        skip = 1  # the first position of a block stands in its header
        previous = positions[0]
        if part > 0:
            skip = 0
            previous = -1
            _soften(contexts)
            step = table[part, 0] - table[part - 1, 0]
            c, d = put_number(c, d, contexts, OP, step, out, raw)
            after = table[part, 1] - (table[part - 1, 1] + 1 if step == 0 else 0)
            c, d = put_number(c, d, contexts, OUTPUT, after, out, raw)
        c, d = put_number(c, d, contexts, COUNT, left - count, out, raw)
        scale = 0
        if count > skip:
            gaps = count - skip
            scale = _length((positions[at + count - 1] - previous - gaps) // gaps)
            c, d = put_number(c, d, contexts, SCALE, scale, out, raw)
        mean = (3 << FRACTION << scale) >> 2
        k = 0
        before = 0
        whole = 0
        for i in range(count):
            place = np.uint64(at + i)
            position = positions[place]
            if i >= skip:
                k = _exponent(mean, k)
                gap = position - previous - 1
                c, d = _put_gap(c, d, contexts, gap, k, _class(mean, k), out, raw)
                mean += ((gap << FRACTION) - mean) >> _speed(i)
            previous = position
            width = 0 + int(widths[place])
            value = bits[place]
            base = WIDTH + 64 * before
            if width == 1:
                c = put(c, contexts, base, 0, out)
                c = put(c, contexts, LOW, value, out)
                before = 0
            else:
                c = put(c, contexts, base, 1, out)
                c, d = _put_long(c, d, contexts, base, width, value, whole, out, raw)
                before = 1 if width == 2 else 2
                if width == 0:
                    whole = value
        at += count
        left -= count
    return finish(c, d, out, raw)


@jit
def decode_block(
    coded: Array, raw: Array, op: int, output: int, first: int, contexts: Array,
    table: Array, positions: Array, widths: Array, bits: Array,
) -> tuple[int, int]:  # fmt: skip
    """Decodes a block; returns (number of a fault or 0, sections found).

    Args:
        coded: uint8, the coded bytes.
        raw: uint8, the plain bytes.
        op: Operation of the first section, from the block's header.
        output: Its output.
        first: Position of the first entry.
        contexts: int64, `CONTEXTS` of them, all `EVEN`.
        table: int64, (entries, 3): takes operation, output and entries of each section.
        positions: int64, one for each entry that there should be; takes the positions.
        widths: uint8, as many; takes the widths.
        bits: int64, as many; takes the bits.
    """
    code = 0
    for i in range(4):
        code = (code << 8) | byte(coded, i)
    c, d = (code, 0xFFFFFFFF, 4), (0, 0, 0)
    if coded.size > 0 and coded[coded.size - 1] == 0:
        return CODED_END, 0
    at = 0
    part = 0
    while at < positions.size:
        skip = 1
        previous = first
        if part > 0:
            skip = 0
            previous = -1
            _soften(contexts)
            step, c, d = take_number(c, d, contexts, OP, coded, raw)
            more, c, d = take_number(c, d, contexts, OUTPUT, coded, raw)
            if step < 0 or more < 0:
                return TOO_LARGE, part
            output = more + (output + 1 if step == 0 else 0)
            op += step
            if op >= LIMIT or output >= LIMIT:
                return TOO_LARGE, part
        after, c, d = take_number(c, d, contexts, COUNT, coded, raw)
        count = positions.size - at - after
        if after < 0 or count <= 0:
            return TOO_MANY, part
        scale = 0
        if count > skip:
            scale, c, d = take_number(c, d, contexts, SCALE, coded, raw)
            if scale < 0 or scale > 40:
                return TOO_LARGE, part
        mean = (3 << FRACTION << scale) >> 2
        k = 0
        before = 0
        whole = 0
        for i in range(count):
            place = np.uint64(at + i)
            if i >= skip:
                k = _exponent(mean, k)
                gap, c, d = _take_gap(c, d, contexts, k, _class(mean, k), coded, raw)
                previous += gap + 1
                if gap < 0 or previous >= LIMIT:
                    return TOO_FAR, part
                mean += ((gap << FRACTION) - mean) >> _speed(i)
            positions[place] = previous
            base = WIDTH + 64 * before
            bit, c = take(c, contexts, base, coded)
            if bit == 0:
                value, c = take(c, contexts, LOW, coded)
                widths[place] = 1
                before = 0
            else:
                width, value, c, d = _take_long(c, d, contexts, base, whole, coded, raw)
                widths[place] = width
                before = 1 if width == 2 else 2
                if width == 0:
                    whole = value
            bits[place] = value
        table[part, 0], table[part, 1], table[part, 2] = op, output, count
        part += 1
        at += count
    if c[2] < coded.size:
        return CODED_END, part
    if d[2] != raw.size or d[0] != 0:
        return PLAIN_END, part
    return 0, part
