"""Tiles of products as NVIDIA's tensor cores compute them, in vector code: what `truncated_products` is made of.

The model in `nvidia` says what is computed; here significands are integers. A product of two is shifted left once, as
far as the unit keeps bits, and right by as much as its exponent is below the block's largest. Each half of a block,
with the addend in the first, is a sum of less than 2^31. The sum of both is exact in float64, whose low bits are then
cut off. Operands are finite: what a caller has to do about others is said in `truncated_products`.

All compiled code is in this module: after a change to another one, Numba would not compile it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weighbridge.core.jit import compiled

LANES = 16
"""Sums of a tile."""
NONE = -(1 << 12)
"""Exponent of an operand that is zero: below all others."""

Array = npt.NDArray[Any]
_WORD = ir.IntType(32)
_LONG = ir.IntType(64)
_INTS = ir.VectorType(_WORD, LANES)
_LONGS = ir.VectorType(_LONG, LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_LEAST = 1023 - 149
"""Exponent field, in float64, of the least subnormal float32."""
_NORMAL = 1023 - 126
_jit = compiled(fastmath=False, error_model="numpy")


@dataclass(frozen=True, slots=True)
class Block:
    """What `nvidia.TruncatedSum` says of a unit's blocks that end in float32.

    Attributes:
        products: Products of a block.
        fraction: Bits kept below the largest exponent.
        zero: Exponent of a zero addend.
    """

    products: int
    fraction: int
    zero: int


AMPERE = Block(products=8, fraction=24, zero=-132)
HOPPER = Block(products=16, fraction=25, zero=-133)


class _Emit:
    """Emits vector code of a tile."""

    def __init__(self, builder: Any, block: Block) -> None:
        self.builder, self.block = builder, block

    def ints(self, value: int) -> Any:
        return ir.Constant(_INTS, [value] * LANES)

    def longs(self, value: int) -> Any:
        return ir.Constant(_LONGS, [value] * LANES)

    def splat(self, value: Any) -> Any:
        undefined = ir.Constant(_INTS, ir.Undefined)
        one = self.builder.insert_element(undefined, value, ir.Constant(_WORD, 0))
        return self.builder.shuffle_vector(one, undefined, self.ints(0))

    def load(self, base: Any, index: Any, *, lanes: bool) -> Any:
        """Loads a number for all lanes, or one for each."""
        b = self.builder
        if not lanes:
            return self.splat(b.load(b.gep(base, [index])))
        place = b.gep(base, [b.mul(index, ir.Constant(index.type, LANES))])
        return b.load(b.bitcast(place, _INTS.as_pointer()), align=4)

    def signed(self, size: Any, sign: Any) -> Any:
        """Gives sizes the signs that masks of all or no bits have."""
        return self.builder.sub(self.builder.xor(size, sign), sign)

    def shifted(self, size: Any, by: Any) -> Any:
        b = self.builder
        return b.lshr(size, b.select(b.icmp_unsigned("<", by, self.ints(31)), by, self.ints(31)))

    def addend(self, c: Any) -> tuple[Any, Any, Any, Any]:
        """Returns exponents, significands, sign masks and bits without sign of float32 numbers."""
        b = self.builder
        bits = b.bitcast(c, _INTS)
        size = b.and_(bits, self.ints((1 << 31) - 1))
        field = b.lshr(size, self.ints(23))
        normal = b.icmp_signed("!=", field, self.ints(0))
        hidden = b.select(normal, self.ints(1 << 23), self.ints(0))
        significand = b.or_(b.and_(size, self.ints((1 << 23) - 1)), hidden)
        exponent = b.sub(b.select(normal, field, self.ints(1)), self.ints(127))
        zero = b.icmp_signed("==", size, self.ints(0))
        return b.select(zero, self.ints(self.block.zero), exponent), significand, b.ashr(bits, self.ints(31)), size

    def step(self, c: Any, terms: list[tuple[Any, Any]]) -> Any:
        """Adds a block of products, (significands, exponents), to float32 addends."""
        b, block = self.builder, self.block
        exponent, significand, sign, size = self.addend(c)
        largest = exponent
        for _, e in terms:
            largest = b.select(b.icmp_signed(">", e, largest), e, largest)
        kept = b.shl(significand, self.ints(block.fraction - 23))
        halves = [self.signed(self.shifted(kept, b.sub(largest, exponent)), sign), self.ints(0)]
        for k, (p, e) in enumerate(terms):
            mask = b.ashr(p, self.ints(31))
            part = self.signed(self.shifted(self.signed(p, mask), b.sub(largest, e)), mask)
            half = int(k >= block.products // 2)
            halves[half] = b.add(halves[half], part)
        wide = [b.sitofp(half, _DOUBLES) for half in halves]
        unit = b.add(b.sext(largest, _LONGS), self.longs(1023 - block.fraction))
        scale = b.bitcast(b.shl(unit, self.longs(52)), _DOUBLES)
        total = b.bitcast(b.fmul(b.fadd(*wide), scale), _LONGS)
        return b.select(b.icmp_signed("==", size, self.ints(0x7F800000)), c, self.cut(total))

    def cut(self, total: Any) -> Any:
        """Truncates float64 numbers, given by their bits, to float32; a zero is +0."""
        b = self.builder
        field = b.and_(b.lshr(total, self.longs(52)), self.longs(0x7FF))
        below = b.sub(self.longs(_NORMAL), field)
        below = b.select(b.icmp_signed(">", below, self.longs(0)), below, self.longs(0))
        some = b.icmp_signed("<", below, self.longs(_NORMAL - _LEAST + 1))
        below = b.select(some, below, self.longs(0))
        kept = b.and_(total, b.shl(self.longs(-1), b.add(below, self.longs(29))))
        cut = b.select(some, b.bitcast(kept, _DOUBLES), ir.Constant(_DOUBLES, [0.0] * LANES))
        return b.fadd(b.fptrunc(cut, _FLOATS), ir.Constant(_FLOATS, [0.0] * LANES))


def _tile(block: Block, *, lanes: bool) -> Any:
    """Returns an intrinsic: (significands and exponents of a, those of b, sums, blocks) as `_generate` has them."""

    def typed(_: Any, sa: Any, ea: Any, sb: Any, eb: Any, out: Any, blocks: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pairs = zip(signature.args[:5], arguments[:5], strict=True)
            a, of_a, b, of_b, c = (context.make_array(kind)(context, builder, value).data for kind, value in pairs)
            place = builder.bitcast(c, _FLOATS.as_pointer())
            total = cgutils.alloca_once_value(builder, builder.load(place, align=4))  # type: ignore[no-untyped-call]
            emit, word = _Emit(builder, block), arguments[5].type
            with cgutils.for_range(builder, arguments[5]) as loop:
                first, terms = builder.mul(loop.index, ir.Constant(word, block.products)), []
                for k in range(block.products):
                    at = builder.add(first, ir.Constant(word, k))
                    left, right = emit.load(a, at, lanes=lanes), emit.load(b, at, lanes=True)
                    low, high = emit.load(of_a, at, lanes=lanes), emit.load(of_b, at, lanes=True)
                    terms.append((builder.mul(left, right), builder.add(low, high)))
                builder.store(emit.step(builder.load(total), terms), total)
            builder.store(builder.load(total), place, align=4)
            return ir.Constant(_WORD, 0)

        return types.int32(sa, ea, sb, eb, out, types.intp), generate

    return intrinsic(typed)


@_jit
def unpack(x: Array, fraction: int, shift: int, significands: Array, exponents: Array) -> bool:
    """Writes significands, shifted left, and exponents of 16-bit numbers; 0 and `NONE` of what is zero or not finite.

    Subnormal numbers have the least exponent, as the unit reads them.

    Args:
        x: Their bits, (lines, K), int16.
        fraction: Fraction bits of the type: 7 or 10.
        shift: How far significands are shifted.
        significands: (panels, at least K, lines of a panel), int32, written; one panel has lines of several numbers.
        exponents: The same shape, written.

    Returns:
        Whether all numbers are finite.
    """
    bias, whole = (1 << (14 - fraction)) - 1, True
    last, lines = 2 * bias + 1, significands.shape[2]
    for p in range(significands.shape[0]):
        for i in range(lines):
            line = p * lines + i
            for k in range(significands.shape[1]):
                size = np.int32(0)
                bits = np.int32(0)
                if line < x.shape[0] and k < x.shape[1]:
                    bits = np.int32(x[line, k])
                    size = np.int32(bits & np.int32(0x7FFF))
                field = np.int32(size >> np.int32(fraction))
                if size == 0 or field == last:
                    whole = whole and size == 0
                    significands[p, k, i] = 0
                    exponents[p, k, i] = NONE
                else:
                    part = np.int32(size & np.int32((1 << fraction) - 1))
                    if field > 0:
                        part = np.int32(part | np.int32(1 << fraction))
                    part = np.int32(part << np.int32(shift))
                    significands[p, k, i] = -part if bits < 0 else part
                    exponents[p, k, i] = (field if field > 0 else 1) - bias
    return whole


_AMPERE_TILE: Any = _tile(AMPERE, lanes=False)
_AMPERE_LANES: Any = _tile(AMPERE, lanes=True)
_HOPPER_TILE: Any = _tile(HOPPER, lanes=False)
_HOPPER_LANES: Any = _tile(HOPPER, lanes=True)
_AMPERE_BLOCK = AMPERE.products


@_jit
def multiply(sa: Array, ea: Array, sb: Array, eb: Array, out: Array, chain: int, block: int) -> None:
    """Adds a product, chain by chain, to what `out` holds.

    Args:
        sa: Significands, (M, K), int32, K a multiple of the block's.
        ea: Exponents, the same shape; `NONE` of zeros.
        sb: Significands times 2^(fraction - bits that two have below the point), (panels, K, `LANES`), int32.
        eb: Exponents, the same shape.
        out: (M, panels * `LANES`), float32.
        chain: Products of a chain, a multiple of the block's.
        block: Products of a block of the unit: `AMPERE`'s or `HOPPER`'s.
    """
    tile = np.empty(LANES, dtype=np.float32)
    for j in range(sb.shape[0]):
        for i in range(sa.shape[0]):
            place = out[i, j * LANES : (j + 1) * LANES]
            for start in range(0, sa.shape[1], chain):
                tile[:] = np.float32(0.0)
                terms = min(chain, sa.shape[1] - start)
                if block == _AMPERE_BLOCK:
                    _AMPERE_TILE(sa[i, start:], ea[i, start:], sb[j, start:], eb[j, start:], tile, terms // block)
                else:
                    _HOPPER_TILE(sa[i, start:], ea[i, start:], sb[j, start:], eb[j, start:], tile, terms // block)
                place += tile


@_jit
def dots(sa: Array, ea: Array, sb: Array, eb: Array, out: Array, chain: int, block: int) -> None:
    """Adds sums that have nothing in common, chain by chain, to what `out` holds.

    Args:
        sa: Significands, (panels, K, `LANES`), int32, K a multiple of the block's.
        ea: Exponents, the same shape; `NONE` of zeros.
        sb: As `sa`, times a power of two as in `multiply`.
        eb: As `ea`.
        out: (panels, `LANES`), float32.
        chain: Products of a chain, a multiple of the block's.
        block: As for `multiply`.
    """
    tile = np.empty(LANES, dtype=np.float32)
    for j in range(sb.shape[0]):
        for start in range(0, sa.shape[1], chain):
            tile[:] = np.float32(0.0)
            terms = min(chain, sa.shape[1] - start)
            if block == _AMPERE_BLOCK:
                _AMPERE_LANES(sa[j, start:], ea[j, start:], sb[j, start:], eb[j, start:], tile, terms // block)
            else:
                _HOPPER_LANES(sa[j, start:], ea[j, start:], sb[j, start:], eb[j, start:], tile, terms // block)
            out[j] += tile
