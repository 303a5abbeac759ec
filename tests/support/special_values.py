"""Calls of every rule that is not rounded, on every special value of every format, and digests of what they give.

`python -m support.special_values` prints the digests as JSON. Run under another `ATEN_CPU_CAPABILITY`, it says what
another processor gives: vector code and the scalar code of a tail do not treat NaN alike, so there are calls of several
sizes and layouts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.conformance.bound_policy import calibrated
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random import variates
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rule_table import RULES, Kind

aten = torch.ops.aten
Tensor = torch.Tensor
Calls = Callable[[Tensor, Tensor], Iterator[tuple[Any, ...]]]

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
FORMATS = {torch.float32: (8, 23), torch.bfloat16: (8, 7), torch.float16: (5, 10), torch.float64: (11, 52)}
"""Bits of the exponent and of the fraction."""
SIZES = (1, 3, 7, 16, 33, 70)


def special(dtype: torch.dtype) -> Tensor:
    """Every kind of value of a format, of both signs, shortest period first: 70 of them in no order."""
    exponent, fraction = FORMATS[dtype]
    top, one, quiet = ((1 << exponent) - 1) << fraction, ((1 << exponent - 1) - 1) << fraction, 1 << fraction - 1
    least = 1 << fraction
    patterns = [0, 1, least - 1, least, one, one + 1, one + quiet, one - least, top - 1, top]
    patterns += [top + quiet, top + quiet + 1, top + least - 1, top + 1, top + quiet - 1, top + (quiet >> 1)]
    half = one + least + (quiet >> 1)  # 2.5
    # What lies between two values of a narrower format, and what is too large or too small for it.
    patterns += [half, one + (least >> 8), one + 3 * (least >> 8), one + (least >> 11), one + 3 * (least >> 11)]
    patterns += [one + (fraction << fraction), top - least + (least >> 8) * 255, one + 17 * least, one - 26 * least]
    patterns += [p for p in (one + 130 * least, one - 140 * least) if 0 < p < top]
    sign = 1 << exponent + fraction
    both = [p + s for p in patterns for s in (0, sign)]
    kind = INTEGERS[dtype.itemsize]
    wrap = 1 << 8 * dtype.itemsize
    values = torch.tensor([p - wrap if p >= sign else p for p in both], dtype=kind)
    order = torch.randperm(len(both), generator=torch.Generator().manual_seed(1))
    return torch.cat([values[order], values])[:70].view(dtype)


def bits(value: Tensor) -> Tensor:
    """A tensor's bit patterns, row-major."""
    value = value.detach().contiguous()
    return value.view(INTEGERS[value.itemsize]) if value.is_floating_point() else value


class Alone(Context):
    """Rounds and canonicalises as Recorder and executor do, without a log."""

    policy = calibrated()

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        return formats.to_format(wide, dtype)

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> variates.Draw:
        """See `Context.draw`."""
        raise AssertionError("nothing is drawn")

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        return value


CALLS: dict[str, Calls] = {}
"""Operands of each overload, given two tensors of special values of the same size and layout."""


def _of(names: str, *makes: Callable[[Tensor, Tensor], tuple[Any, ...]]) -> None:
    for name in names.split():
        CALLS[name] = lambda x, y: (make(x, y) for make in makes)


def _index(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0]).flip(0)


def _image(x: Tensor) -> Tensor:
    return x.reshape(1, 1, -1)


def _plane(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 1, -1).expand(1, 1, 2, -1)


def _block(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 1, 1, -1).expand(1, 1, 2, 2, -1)


def _channels_last(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 1, -1).expand(1, 3, 2, -1).contiguous(memory_format=torch.channels_last)


NAN, INF = float("nan"), float("inf")
OTHERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _other(x: Tensor, dtype: torch.dtype) -> Tensor:
    return special(dtype)[: x.shape[0]]


_of(
    "abs.default ceil.default clone.default floor.default frac.default neg.default round.default sign.default "
    "trunc.default nan_to_num.default sgn.default hardshrink.default relu.default relu6.default hardtanh.default "
    "amax.default amin.default aminmax.default max.default min.default reciprocal.default sqrt.default "
    "softshrink.default median.default ones_like.default zeros_like.default isfinite.default isinf.default "
    "isnan.default logical_not.default signbit.default diag_embed.default nonzero.default argmax.default "
    "argmin.default any.default all.default unique_consecutive.default zero.default",
    lambda x, y: (x,),
)  # fmt: skip
_of(
    "copysign.Tensor maximum.default minimum.default clamp_min.Tensor clamp_max.Tensor add.Tensor sub.Tensor "
    "rsub.Tensor mul.Tensor div.Tensor heaviside.default remainder.Tensor fmod.Tensor eq.Tensor ne.Tensor lt.Tensor "
    "le.Tensor gt.Tensor ge.Tensor logical_and.default logical_or.default logical_xor.default floor_divide.default",
    lambda x, y: (x, y), *(lambda x, y, d=d: (x, _other(x, d)) for d in OTHERS),
)  # fmt: skip
_of(
    "add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar clamp_min.default clamp_max.default fill.Scalar "
    "full_like.default remainder.Scalar fmod.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar "
    "floor_divide.Scalar",
    *(lambda x, y, v=v: (x, v) for v in (0.0, 1.5, 1e30, -INF, NAN)),
)  # fmt: skip
_of("remainder.Scalar_Tensor", *(lambda x, y, v=v: (v, x) for v in (0.0, 1.5, NAN)))
_of("max.dim min.dim", lambda x, y: (x, 0))
_of("clamp.default", lambda x, y: (x, -1, 1), lambda x, y: (x, None, 2.0))
_of("clamp.Tensor", lambda x, y: (x, y, x.flip(0)))
_of("threshold.default", lambda x, y: (x, 0.5, 7.0))
_of("hardtanh_backward.default", lambda x, y: (x, y, -1, 1))
_of("threshold_backward.default softshrink_backward.default hardshrink_backward.default", lambda x, y: (x, y, 0.5))
_of("div.Tensor_mode", *(lambda x, y, m=m: (x, y, {"rounding_mode": m}) for m in (None, "floor", "trunc")))
_of("div.Scalar_mode", *(lambda x, y, m=m: (x, 1.5, {"rounding_mode": m}) for m in (None, "floor", "trunc")))
_of("lerp.Scalar", lambda x, y: (x, y, 0.3))
_of("lerp.Tensor", lambda x, y: (x, y, x.flip(0)))
_of("addcmul.default addcdiv.default", lambda x, y: (x, y, x.flip(0), {"value": 0.3}))
_of(
    "_to_copy.default",
    *(lambda x, y, d=d: (x, {"dtype": d}) for d in OTHERS),
    *(lambda x, y, d=d: (_plane(x), {"dtype": d, "memory_format": torch.channels_last}) for d in OTHERS),
    *(lambda x, y, d=d: (_channels_last(x), {"dtype": d, "memory_format": torch.contiguous_format}) for d in OTHERS),
)  # fmt: skip
_of("copy.default", *(lambda x, y, d=d: (x, _other(x, d)) for d in OTHERS), lambda x, y: (x, y.flip(0)),
    *(lambda x, y, d=d: (torch.stack([x, y]).t(), _other(x, d)[:, None].expand(-1, 2)) for d in OTHERS),
)  # fmt: skip
_of("fill.Tensor", *(lambda x, y, d=d, k=k: (x, special(d)[k]) for d in OTHERS for k in range(0, 70, 3)))
_of("cat.default", *(lambda x, y, d=d: ([x, _other(x, d)],) for d in OTHERS))
_of("stack.default", lambda x, y: ([x, y],))
_of("block_diag.default", *(lambda x, y, d=d: ([x, _other(x, d)],) for d in OTHERS))
_of("where.self", *(lambda x, y, d=d: (x > y, x, _other(x, d)) for d in OTHERS),
    *(lambda x, y, d=d, k=k: (x > y, x, special(d)[k]) for d in OTHERS for k in (3, 11, 12)))  # fmt: skip
_of("where.ScalarOther", lambda x, y: (x > y, x, NAN))
_of("where.ScalarSelf", lambda x, y: (x > y, NAN, x))
_of("where.Scalar", lambda x, y: (x > y, NAN, 1.0))
_of("masked_fill.Scalar", lambda x, y: (x, x > y, NAN))
_of("masked_fill.Tensor", *(lambda x, y, d=d, k=k: (x, x > y, special(d)[k]) for d in OTHERS for k in range(0, 70, 5)))
_of("masked_scatter.default", lambda x, y: (x, x > y, y))
_of("masked_select.default", lambda x, y: (x, x > y))
_of("constant_pad_nd.default", lambda x, y: (x, [1, 2], NAN))
_of("embedding.default", lambda x, y: (torch.stack([x, y], 1), _index(x)))
_of("flip.default", lambda x, y: (x, [0]))
_of("gather.default", lambda x, y: (x, 0, _index(x)))
_of("index.Tensor _unsafe_index.Tensor", lambda x, y: (x, [_index(x)]))
_of("index_fill.int_Scalar", lambda x, y: (x, 0, _index(x)[::2], NAN))
_of("index_fill.int_Tensor", lambda x, y: (x, 0, _index(x)[::2], x[-1]))
_of("index_select.default", lambda x, y: (x, 0, _index(x)))
_of("isin.Tensor_Tensor", lambda x, y: (x, y))
_of("searchsorted.Tensor", lambda x, y: (y.sort().values, x))
_of("bucketize.Tensor", lambda x, y: (x, y.sort().values))
_of("pixel_shuffle.default", lambda x, y: (_plane(x).expand(1, 4, 2, -1).contiguous(), 2))
_of("pixel_unshuffle.default", lambda x, y: (_plane(x), 1))
_of("repeat.default", lambda x, y: (x, [2]))
_of("roll.default", lambda x, y: (x, [1], [0]))
_of("new_full.default", lambda x, y: (x, [3], NAN))
_of("new_ones.default new_zeros.default", lambda x, y: (x, [3]))
_of("full.default", *(lambda x, y, d=d: ([3], NAN, {"dtype": d}) for d in OTHERS))
_of("scalar_tensor.default", *(lambda x, y, d=d: (NAN, {"dtype": d}) for d in OTHERS))
_of("scatter.src", lambda x, y: (x, 0, _index(x), y))
_of("scatter.value", lambda x, y: (x, 0, _index(x)[:2], NAN))
_of("select_backward.default", lambda x, y: (x, [2, x.shape[0]], 0, 1))
_of("select_scatter.default", lambda x, y: (torch.stack([x, y]), y, 0, 0))
_of("slice_backward.default", lambda x, y: (x, [x.shape[0] + 2], 0, 1, x.shape[0] + 1, 1))
_of("slice_scatter.default", lambda x, y: (torch.cat([x, y]), y, 0, 0, x.shape[0]))
_of("diagonal_scatter.default", lambda x, y: (torch.stack([x] * x.shape[0]), y))
_of("diagonal_copy.default", lambda x, y: (torch.stack([x, y]),))
_of("sort.stable", *(lambda x, y, d=d: (x, {"stable": True, "descending": d}) for d in (False, True)))
_of("tril.default triu.default", lambda x, y: (torch.stack([x, y]),))
_of("take.default", lambda x, y: (x, _index(x)))
_of(
    "max_pool2d_with_indices.default",
    lambda x, y: (_plane(x).contiguous(), [2, 1]),
    lambda x, y: (_channels_last(x), [2, 1]),
)
_of("max_pool3d_with_indices.default", lambda x, y: (_block(x).contiguous(), [2, 2, 1]))
_of(
    "adaptive_max_pool2d.default",
    lambda x, y: (_plane(x).contiguous(), [1, 1]),
    lambda x, y: (_channels_last(x), [1, 1]),
)
_of("adaptive_max_pool3d.default", lambda x, y: (_block(x).contiguous(), [1, 1, 1]))
_of("reflection_pad1d.default replication_pad1d.default", lambda x, y: (_image(torch.cat([x, y])), [1, 1]))
_of(
    "reflection_pad2d.default replication_pad2d.default",
    lambda x, y: (_plane(torch.cat([x, y])), [1, 1, 1, 1]),
    lambda x, y: (_channels_last(torch.cat([x, y])), [1, 1, 1, 1]),
)
_of("reflection_pad3d.default replication_pad3d.default", lambda x, y: (_block(torch.cat([x, y])), [1, 1, 1, 1, 1, 1]))
_of("upsample_nearest1d.default _upsample_nearest_exact1d.default", lambda x, y: (_image(x), [2 * x.shape[0]]))
_of(
    "upsample_nearest2d.default _upsample_nearest_exact2d.default",
    lambda x, y: (_plane(x), [3, 2 * x.shape[0]]),
    lambda x, y: (_channels_last(x), [3, 2 * x.shape[0]]),
)
_of("upsample_nearest3d.default _upsample_nearest_exact3d.default", lambda x, y: (_block(x), [3, 3, 2 * x.shape[0]]))

TYPELESS = """
any.dim any.dims all.dim all.dims arange.default arange.start arange.start_step bitwise_and.Tensor bitwise_and.Scalar
bitwise_not.default bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar
bitwise_left_shift.Tensor bitwise_right_shift.Tensor bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor
bitwise_xor.Scalar_Tensor eye.default eye.m ones.default zeros.default repeat_interleave.Tensor bincount.default
one_hot.default tril_indices.default triu_indices.default _is_all_true.default _is_any_true.default
"""
"""Overloads of integers, or whose floats are constants."""


def expected() -> set[str]:
    """The overloads that there must be calls of."""
    kinds = (Kind.MOVE, Kind.SELECT, Kind.EXACT, Kind.CHAIN)
    return {key for key, rule in RULES.items() if rule.kind in kinds} - set(TYPELESS.split())


def _layouts(dtype: torch.dtype, sizes: tuple[int, ...]) -> Iterator[tuple[str, Tensor, Tensor]]:
    values = special(dtype)
    for size in sizes:
        x, y = values[:size].clone(), values.flip(0)[:size].clone()
        yield f"{size}", x, y
        yield f"{size}:2", torch.stack([x, y], 1).view(-1)[::2], torch.stack([y, x], 1).view(-1)[::2]


def _overloads(key: str) -> Iterator[Any]:
    name, _, overload = key.partition(".")
    for packet in (getattr(aten, name, None), getattr(aten, f"{name}_", None)):
        if packet is not None and overload in packet.overloads():
            yield getattr(packet, overload)


def _outcome(op: Any, operands: tuple[Any, ...]) -> list[bytes | str]:
    named = operands[-1] if isinstance(operands[-1], dict) else {}
    args = operands[: -1 if named else None]
    try:
        out = evaluate(op, args, named, Alone())
    except (RefusedOperationError, RuntimeError, NotImplementedError, IndexError, ValueError) as error:
        return [f"{type(error).__name__}"]
    results = out if isinstance(out, (tuple, list)) else [out]
    return [f"{r.dtype} ".encode() + bits(r).numpy().tobytes() for r in results if isinstance(r, Tensor)]


def outcomes(keys: list[str], sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, list[bytes | str]]]:
    """Every call of some overloads: which it is, and the bits of its results."""
    for key in keys:
        for dtype in FORMATS:
            for layout, x, y in _layouts(dtype, sizes):
                for op in _overloads(key):
                    for number, operands in enumerate(CALLS[key](x, y)):
                        changed = op._schema.name.endswith("_") and isinstance(operands[0], Tensor)
                        if changed:
                            first = x.clone() if operands[0] is x else operands[0].clone()
                            if operands[0] is x and not x.is_contiguous():
                                first = torch.stack([x, y], 1).view(-1)[::2]
                            operands = (first, *operands[1:])
                        yield f"{op} {dtype} {layout} {number}", _outcome(op, operands)


def main(keys: list[str]) -> None:
    """Prints which call gives which bits."""
    torch.set_num_threads(1)
    found = {}
    for call, given in outcomes(keys or sorted(CALLS)):
        state = hashlib.sha256()
        for each in given:
            state.update(each if isinstance(each, bytes) else each.encode())
        found[call] = state.hexdigest()[:16]
    json.dump({"capability": torch.backends.cpu.get_cpu_capability(), "found": found}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
