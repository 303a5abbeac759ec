"""A second decoder of rounding logs, written from docs/formats/rounding-log.md alone: slow, trusting, independent."""

from __future__ import annotations

from collections import defaultdict

Entry = tuple[int, int, int, int, int]


class Block:
    """Decodes one block."""

    def __init__(self, coded: bytes, plain: bytes) -> None:
        self.coded = iter(coded)
        self.plain = int.from_bytes(plain, "little")
        self.contexts: dict[object, list[int]] = defaultdict(lambda: [32768, 0])
        self.range = 2**32 - 1
        self.code = 0
        for _ in range(4):
            self.code = self.code * 256 + next(self.coded, 0)

    def bits(self, n: int) -> int:
        value = self.plain & ((1 << n) - 1)
        self.plain >>= n
        return value

    def decision(self, *name: object) -> int:
        context = self.contexts[name]
        p, age = context
        rate = next(r for r in range(1, 8) if age < 2**r - 1)
        bound = (self.range >> 12) * ((p >> 4) | 1)
        zero = self.code < bound
        if zero:
            self.range, p = bound, p + ((65536 - p) >> rate)
        else:
            self.code, self.range, p = self.code - bound, self.range - bound, p - (p >> rate)
        context[:] = [p, min(age + 1, 63)]
        while self.range < 2**24:
            self.range, self.code = self.range << 8, self.code << 8 | next(self.coded, 0)
        return 0 if zero else 1

    def ones(self, *name: object, first: int = 0, most: int = 10**9) -> int:
        n = 0
        while n < most and self.decision(*name, first + n):
            n += 1
        return n

    def number(self, field: str) -> int:
        n = self.ones(field)
        return (1 << n) - 1 + self.bits(n)

    def entries(self, left: int, op: int, output: int, position: int) -> list[Entry]:
        found: list[Entry] = []
        begun = False
        while left:
            if begun:
                for context in self.contexts.values():
                    context[1] = min(context[1], 6)
                step, more = self.number("OP"), self.number("OUTPUT")
                op, output = op + step, more if step else output + 1 + more
            count = left - self.number("COUNT")
            scale = self.number("SCALE") if count > (0 if begun else 1) else 0
            mean, previous, kind, whole = (3 * 2 ** (12 + scale)) >> 2, -1, 0, 0
            for i in range(count):
                if begun or i:
                    k = max([k for k in range(60) if 2 ** (12 + k) <= mean], default=0)
                    gap = self.gap(k, mean >> 10 if mean < 4096 else 4 + ((mean >> (10 + k)) & 3))
                    mean += (gap * 4096 - mean) >> (3 if i < 8 else 4 if i < 16 else 5 if i < 32 else 6)
                    position = previous + 1 + gap
                width = self.width(kind)
                if width == 0:
                    bits = whole = self.bits(64) if self.decision("SAME") else whole
                else:
                    bits = self.value(width)
                kind = {1: 0, 2: 1}.get(width, 2)
                found.append((op, output, position, width, bits))
                previous = position
            left -= count
            begun = True
        return found

    def gap(self, k: int, group: int) -> int:
        q = self.ones("QUOTIENT", group, most=20)
        if q == 20:
            q += self.number("ESCAPE")
        if not k:
            return q
        top = self.decision("TOP", group)
        return (2 * q + top << k - 1) + self.bits(k - 1)

    def width(self, kind: int) -> int:
        if not self.decision("WIDTH", kind, 0):
            return 1
        if not self.decision("WIDTH", kind, 1):
            return 0
        return 2 + self.ones("WIDTH", kind, first=2, most=61)

    def value(self, width: int) -> int:
        if width == 1:
            return self.decision("LOW", 0)
        if width >= 8 and not self.decision("ZERO"):
            return 0
        low = self.decision("LOW", 1 if width < 8 else 2)
        return low + 2 * self.bits(width - 1)


def decode(data: bytes) -> list[Entry]:
    """Returns (operation, output, position, k, bits) of every entry."""
    assert data[:5] == bytes.fromhex("5742524c02")
    at, found = 5, []

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            at += 1
            value |= (data[at - 1] & 127) << shift
            shift += 7
            if data[at - 1] < 128:
                return value

    while count := varint():
        op, output, position, coded, plain = (varint() for _ in range(5))
        block = Block(data[at : at + coded], data[at + coded : at + coded + plain])
        found += block.entries(count, op, output, position)
        at += coded + plain
    assert at == len(data)
    return found
