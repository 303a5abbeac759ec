"""The rounding pass where memory is not the CPU's: one Triton kernel if Triton is there and works, else PyTorch.

Both do the same to the bit. Before the kernels are used on a device they are compiled and compared with PyTorch's
operations on values at the edges of all types; a device, driver or compiler that fails this gets the slower path.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType

import torch
from torch.utils._python_dispatch import _disable_current_modes

from weighbridge.numerics.arrays.physical import extent, flat, in_physical_order, merge
from weighbridge.numerics.rounding import cpu_kernels
from weighbridge.numerics.rounding.bound import Bound, bound_at, dense_bound
from weighbridge.numerics.rounding.formats import checksum, to_format

Tensor = torch.Tensor


@cache
def fused(device: torch.device) -> ModuleType | None:
    """Returns the module of Triton kernels if they can be used on a device, else None."""
    if device.type != "cuda":
        return None
    try:
        from weighbridge.numerics.rounding import triton_kernels  # noqa: PLC0415 (Triton is there on some machines only)
    except ImportError:
        return None
    with _disable_current_modes(), torch.no_grad():
        try:
            conforms = _conforms(triton_kernels, device)
        except Exception:  # whatever a compiler that is not needed dies of
            return None
    return triton_kernels if conforms else None


def record(x: Tensor, bound: Bound, out: Tensor, reach: float) -> tuple[int, Tensor, Tensor]:
    """Rounds a wide result and finds its contested elements.

    Args:
        x: Dense wide result, float64 or float32.
        bound: Bound on its error.
        out: The result, laid out like `x`: float32, bfloat16 or float16; written.
        reach: How many bounds away from a conforming result another one may lie.

    Returns:
        The checksum, the physical indices of contested elements (ascending int64, on the device), and their bounds.
    """
    module = fused(x.device)
    if module is None:
        return _record(x, bound, out, reach)
    return _with_kernels(module, x, bound, out, reach)


def round_plain(x: Tensor, out: Tensor) -> int:
    """Rounds a dense wide result into `out`, which is laid out like it; returns the checksum."""
    module = fused(x.device)
    if module is None:
        flat(out).copy_(to_format(flat(x), out.dtype))
        return checksum(flat(out))
    return int(module.round_plain(flat(x), flat(out)))


def canonicalise(bits: Tensor) -> int:
    """Makes every NaN of a flat float32, bfloat16 or float16 tensor the canonical one; returns the checksum."""
    module = fused(bits.device) if bits.numel() else None
    if module is None:
        torch.where(bits != bits, to_format(bits.new_full((), math.nan), bits.dtype), bits, out=bits)
        return checksum(bits)
    return int(module.canonicalise(bits))


def _record(x: Tensor, bound: Bound, out: Tensor, reach: float) -> tuple[int, Tensor, Tensor]:
    """As `record`, out of PyTorch operations; the bound is evaluated in the wide type."""
    y = flat(x)
    flat(out).copy_(to_format(y, out.dtype))
    d = reach * dense_bound(x, bound).to(y.dtype)
    low, high = to_format(y - d, out.dtype), to_format(y + d, out.dtype)
    found = ((low != high) | ~torch.isfinite(y) | ~torch.isfinite(d)).nonzero().flatten()
    return checksum(flat(out)), found, bound_at(x, bound, found)


def _with_kernels(module: ModuleType, x: Tensor, bound: Bound, out: Tensor, reach: float) -> tuple[int, Tensor, Tensor]:
    factors = None
    if bound.factors:
        parts = [in_physical_order(x, f) for f in bound.factors]
        if len(parts) == 1:
            parts.append(torch.ones((), dtype=parts[0].dtype, device=x.device).expand(parts[0].shape))
        shape, (ls, rs) = merge(list(parts[0].shape), [list(f.stride()) for f in parts])
        if len(shape) > 3:  # no three nested loops walk both
            parts = [(parts[0].double() * parts[1]).contiguous(), parts[1].new_ones(())]
            shape, ls, rs = [1, 1, x.numel()], [0, 0, 1], [0, 0, 0]
        factors = module.Factors(shape[1], shape[2], parts[0], ls, parts[1], rs, max(extent(f) for f in parts))
    found: tuple[int, Tensor, Tensor] = module.round_recording(
        flat(x), flat(out), bound.rel, bound.absolute, factors, reach
    )
    return found


def edges(dtype: torch.dtype) -> list[float]:
    """Values around everything that is special in a narrow type: zeros, subnormals, ties, overflow, not finite."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    points = [0.0, least, info.smallest_normal, 1.0, info.max, info.max * (1 + info.eps / 4), math.inf, math.nan]
    steps = [0.0, least / 2, least * 0.75, info.eps / 2, info.eps * 0.75, -info.eps / 4]
    return [sign * (p + s * max(1.0, p if p < math.inf else 1.0)) for p in points for s in steps for sign in (1, -1)]


def _conforms(module: ModuleType, device: torch.device) -> bool:
    """True if the kernels give what PyTorch's operations give in float64; compiles them in all their forms."""
    for dtype, wides in module.WIDE_TYPES.items():
        values = torch.tensor(edges(dtype), dtype=torch.float64)
        narrow_values = to_format(values, dtype)
        mixed = torch.cat([narrow_values, -narrow_values])
        for wide in wides:
            x = values.to(wide).view(6, -1)
            rows, columns = x.abs().nan_to_num(posinf=1.0).amax(1, keepdim=True), torch.ones(x.shape[1], dtype=wide)
            for bound in (Bound(2.0**-30, 2.0**-149), Bound(2.0**-30, 0.0, (rows * 2.0**-12, columns))):
                expected, got = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=dtype, device=device)
                exact = Bound(bound.rel, bound.absolute, tuple(f.double() for f in bound.factors))
                placed = Bound(bound.rel, bound.absolute, tuple(f.to(device) for f in bound.factors))
                wanted = _record(x.double(), exact, expected, cpu_kernels.REACH)
                found = _with_kernels(module, x.to(device), placed, got, cpu_kernels.REACH)
                plain = torch.empty_like(got)
                same = wanted[0] == found[0] == module.round_plain(flat(x.to(device)), flat(plain))
                same &= all(_same(a, b.cpu()) for a, b in zip(wanted[1:], found[1:], strict=True))
                if not same or not _equal_bits(expected, got) or not _equal_bits(expected, plain):
                    return False
        strange = mixed.to(device)
        if module.canonicalise(strange) != canonicalise(mixed) or not _equal_bits(mixed, strange):
            return False
    return True


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    kind = torch.int32 if a.itemsize == 4 else torch.int16
    return bool(torch.equal(a.view(kind), b.cpu().view(kind)))
