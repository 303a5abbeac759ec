"""Tiles of products in float64 in a fixed order, with the partial sums of chunks: what `chunked_products` is made of.

A product of two 16-bit numbers is exact in float64, so a fused multiply-add and a multiplication with an addition give
the same bits, and the code takes whichever a processor has. Nothing is reordered: sums run along K, one by one. So
every machine has the same sums, and the same bounds that are made of them.

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
COLUMNS = 8
SHARE = 1.0 / 16.0
"""What of the norms of a chunk is added to its larger end."""

Array = npt.NDArray[Any]
_DOUBLE = ir.DoubleType()
_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_DOUBLE, COLUMNS)
_jit = compiled(fastmath=False, error_model="numpy")


def _generate(builder: Any, a: Any, b: Any, c: Any, terms: Any) -> None:
    """Emits the loop over terms, which adds to the sums that `c` holds."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    either = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{COLUMNS}f64")  # type: ignore[no-untyped-call]
    word = terms.type

    def at(base: Any, index: Any) -> Any:
        return builder.bitcast(builder.gep(base, [index]), _VECTOR.as_pointer())

    places = [at(c, ir.Constant(word, row * COLUMNS)) for row in range(ROWS)]
    sums = [cgutils.alloca_once_value(builder, builder.load(place, align=8)) for place in places]  # type: ignore[no-untyped-call]
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(_INT, COLUMNS), [0] * COLUMNS)
    with cgutils.for_range(builder, terms) as loop:
        right = builder.load(at(b, builder.mul(loop.index, ir.Constant(word, COLUMNS))), align=8)
        first = builder.mul(loop.index, ir.Constant(word, ROWS))
        for row in range(ROWS):
            value = builder.load(builder.gep(a, [builder.add(first, ir.Constant(word, row))]))
            one = builder.insert_element(undefined, value, ir.Constant(_INT, 0))
            left = builder.shuffle_vector(one, undefined, lanes)
            builder.store(builder.call(either, [left, right, builder.load(sums[row])]), sums[row])
    for place, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), place, align=8)


def _typed(_: Any, left: Any, right: Any, out: Any, terms: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        ]
        a, b, c = places
        _generate(builder, a, b, c, arguments[3])
        return ir.Constant(_INT, 0)

    return types.int32(left, right, out, types.intp), generate


TILE: Any = intrinsic(_typed)
"""Adds the products of a chunk. For compiled code: (a, b, c, terms), contiguous float64 arrays of (terms, `ROWS`),
(terms, `COLUMNS`) and the sums (`ROWS`, `COLUMNS`); returns an int32 without meaning."""


@_jit
def norms(x: Array, chunk: int, out: Array) -> None:
    """Writes the norm of each chunk of lines.

    Args:
        x: (panels, K, lines), float64.
        chunk: Terms of a chunk.
        out: (panels, chunks, lines), written.
    """
    for p in range(x.shape[0]):
        for c in range(out.shape[1]):
            for i in range(x.shape[2]):
                total = 0.0
                for k in range(c * chunk, min((c + 1) * chunk, x.shape[1])):
                    total += x[p, k, i] * x[p, k, i]
                out[p, c, i] = np.sqrt(total)


@_jit
def accumulate(
    left: Array, of_left: Array, right: Array, of_right: Array, sums: Array, sizes: Array, chunk: int, squared: bool
) -> None:
    """Computes products and the sizes of their accumulators, tile by tile.

    Args:
        left: (panels, K, `ROWS`), float64.
        of_left: Norms of its chunks, (panels, chunks, `ROWS`).
        right: (panels, K, `COLUMNS`), float64.
        of_right: Norms of its chunks.
        sums: (`ROWS` * panels, `COLUMNS` * panels), written: the products.
        sizes: The same shape, written: sum over chunks of the larger end and a share of the norms, or of its square.
        chunk: Terms of a chunk.
        squared: Whether squares are added.
    """
    tile = np.empty((ROWS, COLUMNS))
    before = np.empty((ROWS, COLUMNS))
    total = np.empty((ROWS, COLUMNS))
    for j in range(right.shape[0]):
        for i in range(left.shape[0]):
            tile[:] = 0.0
            total[:] = 0.0
            for c in range(of_left.shape[1]):
                before[:] = tile
                start = c * chunk
                TILE(left[i, start:], right[j, start:], tile, min(chunk, left.shape[1] - start))
                for y in range(ROWS):
                    for x in range(COLUMNS):
                        share = of_left[i, c, y] * of_right[j, c, x] * SHARE
                        size = max(abs(before[y, x]), abs(tile[y, x])) + share
                        total[y, x] += size * size if squared else size
            sums[i * ROWS : (i + 1) * ROWS, j * COLUMNS : (j + 1) * COLUMNS] = tile
            sizes[i * ROWS : (i + 1) * ROWS, j * COLUMNS : (j + 1) * COLUMNS] = total
