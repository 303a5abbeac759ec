"""Tiles of products as VDPBF16PS computes them, in vector code for any processor: what `fused_products` is made of.

A tile is `ROWS` by `COLUMNS` sums that lie in registers while pairs of products are added to them, the odd product of a
pair by a fused multiply-add and then the even one. LLVM makes vectors of the processor's own width of the vectors that
stand here, and calls of `fmaf` where it has no fused multiply-add; both round once, to nearest.

The unit flushes what is below 2^-126 once it is rounded to 24 bits. `FLUSHING` tiles compare every sum, which takes
longer. A float32 that *is* 2^-126 may have been rounded up to it by the narrow grid of
subnormal numbers, where 24 bits would have stayed below: a flushing tile says that it saw one, and is then computed
again, element by element.

All compiled code is in this module: after a change to another one, Numba would not compile it anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weighbridge.core.jit import compiled

ROWS = 4
COLUMNS = 16
TINY = 2.0**-126
"""The least normal float32."""
_ALMOST_TINY = 2.0**-126 - 2.0**-151
"""The least number that 24 bits, with any exponent, round to `TINY`; it is the tie."""

_BELOW = 2 * 10
"""How far the last bit of a product of two 16-bit numbers can lie below its factors' exponents: float16 has 11 bits."""

Array = npt.NDArray[Any]
_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, COLUMNS)
_INTS = ir.VectorType(_INT, COLUMNS)
_jit = compiled(fastmath=False, error_model="numpy")


def _splat(builder: Any, value: Any, of: ir.VectorType) -> Any:
    one = builder.insert_element(ir.Constant(of, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, ir.Constant(of, ir.Undefined), ir.Constant(_INTS, [0] * COLUMNS))


def _declared(builder: Any, name: str, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(arguments[0], arguments)
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]


def _variable(builder: Any, value: Any) -> Any:
    return cgutils.alloca_once_value(builder, value)  # type: ignore[no-untyped-call]


def _vectors_at(builder: Any, base: Any, index: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [index]), _VECTOR.as_pointer()), align=4)


def _generate(builder: Any, a: Any, b: Any, c: Any, pairs: Any, *, flush: bool) -> Any:
    """Emits the loop over pairs; returns whether a sum was 2^-126 on the way (i32)."""
    fused = _declared(builder, f"llvm.fma.v{COLUMNS}f32", [_VECTOR] * 3)
    zero = ir.Constant(_VECTOR, [0.0] * COLUMNS)
    word = pairs.type
    sums = [_variable(builder, zero) for _ in range(ROWS)]
    seen = _variable(builder, ir.Constant(_INTS, [0] * COLUMNS))
    sign = ir.Constant(_INTS, [-(1 << 31)] * COLUMNS)
    magnitude = ir.Constant(_INTS, [(1 << 31) - 1] * COLUMNS)
    tiny = ir.Constant(_INTS, [1 << 23] * COLUMNS)
    with cgutils.for_range(builder, pairs) as loop:
        for odd in (1, 0):
            k = builder.add(builder.mul(loop.index, ir.Constant(word, 2)), ir.Constant(word, odd))
            right = _vectors_at(builder, b, builder.mul(k, ir.Constant(word, COLUMNS)))
            at = builder.mul(k, ir.Constant(word, ROWS))
            for row in range(ROWS):
                left = builder.load(builder.gep(a, [builder.add(at, ir.Constant(word, row))]))
                total = builder.call(fused, [_splat(builder, left, _VECTOR), right, builder.load(sums[row])])
                if flush:
                    bits = builder.bitcast(total, _INTS)
                    size = builder.and_(bits, magnitude)
                    small = builder.icmp_unsigned("<", size, tiny)
                    edge = builder.sext(builder.icmp_unsigned("==", size, tiny), _INTS)
                    builder.store(builder.or_(builder.load(seen), edge), seen)
                    total = builder.bitcast(builder.select(small, builder.and_(bits, sign), bits), _VECTOR)
                builder.store(total, sums[row])
    for row in range(ROWS):
        place = builder.gep(c, [ir.Constant(word, row * COLUMNS)])
        builder.store(builder.load(sums[row]), builder.bitcast(place, _VECTOR.as_pointer()), align=4)
    found: Any = ir.Constant(_INT, 0)
    final = builder.load(seen)
    for column in range(COLUMNS):
        found = builder.or_(found, builder.extract_element(final, ir.Constant(_INT, column)))
    return found


def _tile(flush: bool) -> Any:
    def typed(_: Any, left: Any, right: Any, out: Any, pairs: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            ]
            a, b, c = places
            return _generate(builder, a, b, c, arguments[3], flush=flush)

        return types.int32(left, right, out, types.intp), generate

    return intrinsic(typed)


PLAIN: Any = _tile(False)
"""Computes a tile in which no sum is subnormal. For compiled code: (a, b, c, pairs), contiguous float32 arrays of
(2 * pairs, ROWS), (2 * pairs, COLUMNS), and the result (ROWS, COLUMNS); returns an int32 without meaning."""
FLUSHING: Any = _tile(True)
"""The same for any operands without subnormal values; returns an int32 that is not 0 if a sum was 2^-126 on the way."""


def _fused(_: Any, x: Any, y: Any, z: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(_declared(builder, "llvm.fma.f32", [_FLOAT] * 3), arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


fused: Any = intrinsic(_fused)
"""x * y + z in float32, rounded once; for compiled code."""


@_jit
def _flushed(x: Any, y: Any, z: Any) -> Any:
    """Returns x * y + z, rounded once to nearest and flushed as 24 bits with any exponent would be."""
    total = fused(x, y, z)
    size = abs(total)
    if not size <= np.float32(TINY):
        return total
    if size == np.float32(TINY):
        product, addend = np.float64(x) * np.float64(y), np.float64(z)  # exact
        near = product + addend
        second = near - product
        rest = (product - (near - second)) + (addend - second)
        if abs(near) > _ALMOST_TINY or (abs(near) == _ALMOST_TINY and (rest == 0.0 or (rest > 0.0) == (near > 0.0))):
            return total
    return np.copysign(np.float32(0.0), total)


@_jit
def _careful(a: Array, b: Array, c: Array, pairs: int) -> None:
    """Computes a tile as `FLUSHING` does, element by element, with every sum flushed as the unit flushes it."""
    for i in range(ROWS):
        for j in range(COLUMNS):
            total = np.float32(0.0)
            for p in range(pairs):
                total = _flushed(a[2 * p + 1, i], b[2 * p + 1, j], total)
                total = _flushed(a[2 * p, i], b[2 * p, j], total)
            c[i, j] = total


@_jit
def multiply(left: Array, of_left: Array, right: Array, of_right: Array, out: Array, pairs: int) -> None:
    """Adds all tiles of products, chain by chain, to what `out` holds.

    Args:
        left: (B, panels, 2 * P, ROWS).
        of_left: Least exponents of its panels.
        right: (B, panels, 2 * P, COLUMNS).
        of_right: Those of its panels.
        out: (B, ROWS * panels, COLUMNS * panels); zeros, or what earlier chains came to.
        pairs: Pairs of a chain.
    """
    tile = np.empty((ROWS, COLUMNS), dtype=np.float32)
    whole = left.shape[2] // 2
    for n in range(out.shape[0]):
        for j in range(right.shape[1]):
            for i in range(left.shape[1]):
                plain = of_left[n, i] + of_right[n, j] - _BELOW >= -126
                place = out[n, i * ROWS : (i + 1) * ROWS, j * COLUMNS : (j + 1) * COLUMNS]
                for start in range(0, whole, pairs):
                    count = min(pairs, whole - start)
                    a, b = left[n, i, 2 * start :], right[n, j, 2 * start :]
                    if plain:
                        PLAIN(a, b, tile, count)
                    elif FLUSHING(a, b, tile, count) != 0:
                        _careful(a, b, tile, count)
                    place += tile
