"""Rounding to bfloat16 and float16: the contested-element scheme of `contested` for results of 16 bits.

Results are computed in float32 (in float64 where an operation also has float32 results). A wide value is rounded to
float32 first if need be and then to the narrow type, ties to even; as a monotone function of the wide value that is all
the scheme needs. Bounds are evaluated in float32 too, so the slack for evaluating them is wider than in `contested`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.errors import LogError
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import cpu_kernels, device_passes, half_kernels
from weighbridge.numerics.rounding.bound import Bound, Ints, bound_at, dense_bound, exact_ties, sharpened
from weighbridge.numerics.rounding.contested import WHOLE, Choices, Rounded
from weighbridge.numerics.rounding.formats import NAN, to_format
from weighbridge.numerics.rounding.rounding_log import OpEntries

SLACK = 1.0 + 2.0**-8
"""Allowance for evaluating a bound in float32: norms of up to 65,536 elements."""
REACH = 2.0 * SLACK
SPAN = 2.0 * REACH * SLACK

Patterns = npt.NDArray[np.int64]


def _ordered(values: torch.Tensor) -> Patterns:
    """Maps flat 16-bit floats to integers in their order."""
    bits = values.view(torch.int16).cpu().numpy().astype(np.int64) & 0xFFFF
    return np.where(bits >= 0x8000, -(bits & 0x7FFF), bits)


def _unordered(integers: Patterns, dtype: torch.dtype) -> torch.Tensor:
    """Inverse of `_ordered`, 0 mapped to +0."""
    bits = np.where(integers < 0, 0x8000 | -integers, integers).astype(np.uint16)
    return torch.from_numpy(bits.view(np.int16)).view(dtype)


def _bits(values: torch.Tensor) -> npt.NDArray[np.uint64]:
    return (values.view(torch.int16).cpu().numpy().astype(np.int64) & 0xFFFF).astype(np.uint64)


def round_plain(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """Rounds a dense wide result without a log; returns (narrow result of the same layout, checksum)."""
    out = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=x.device)
    if x.device.type != "cpu" and x.numel():
        return out, device_passes.round_plain(x, out)
    if not x.numel():
        return out, 0
    double = x.dtype is torch.float64
    x = x if double else x.to(torch.float32)
    total = half_kernels.round_at(x.data_ptr(), out.data_ptr(), x.numel(), double, half_kernels.CODES[dtype])
    return out, int(total)


def record(x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
    """Rounds a wide result to 16 bits and finds the contested elements to log; see `contested.record`."""
    if bound.exact:
        return Rounded(*round_plain(x, dtype))
    y = flat(x)
    if x.device.type != "cpu" and x.numel():
        out = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=x.device)
        total, contested, found = device_passes.record(x, bound, out, REACH)
        ys, es = y[contested], found.to(y.dtype)
    else:
        out, total = round_plain(x, dtype)
        if x.numel() == 0:
            return Rounded(out, total)
        e = dense_bound(x, bound).to(y.dtype)
        low, high = to_format(y - REACH * e, dtype), to_format(y + REACH * e, dtype)
        odd = (low != high) | ~torch.isfinite(y) | ~torch.isfinite(e)
        contested = odd.nonzero().flatten()
        ys, es = y[contested], e[contested]
    if bound.products is not None and contested.numel():
        es = _sharpened(x, bound, contested, ys, es, REACH)
        odd = to_format(ys - REACH * es, dtype) != to_format(ys + REACH * es, dtype)
        odd |= ~torch.isfinite(ys) | ~torch.isfinite(es)
        if ys.dtype == torch.float32:
            dropped = 16 if dtype == torch.bfloat16 else 13
            ties = exact_ties(x, bound, contested.cpu().numpy(), ys.cpu().numpy(), dropped)
            odd &= torch.from_numpy(~ties).to(odd.device)
        contested, ys, es = contested[odd], ys[odd], es[odd]
    if contested.numel() == 0:
        return Rounded(out, total)
    own = flat(out)[contested]
    finite = (torch.isfinite(ys) & torch.isfinite(es)).cpu().numpy()
    ends = [np.where(finite, _ordered(to_format(ys + s * SPAN * es, dtype)), 0) for s in (-1, 1)]
    span = ends[1] - ends[0]
    widths = np.maximum(1, np.frexp(span.astype(np.float64))[1])
    chosen = _ordered(own) & ((np.int64(1) << widths) - 1)
    entries = OpEntries(
        op=op,
        output=output,
        positions=np.array(contested.cpu().numpy()),  # a copy: until the step ends, a chip would see the tensor
        widths=np.where(finite, widths, 0).astype(np.uint8),
        bits=np.where(finite, chosen.astype(np.uint64), _bits(own)),
    )
    return Rounded(out, total, entries)


def follow(x: torch.Tensor, bound: Bound, dtype: torch.dtype, entries: OpEntries | None) -> Rounded:
    """Rounds the replayer's wide result and follows the log where its entries are admissible; see `contested.follow`.

    Raises:
        LogError: If a position lies outside the result.
    """
    out, total = round_plain(x, dtype)
    if entries is None:
        return Rounded(out, total)
    if entries.positions.size and int(entries.positions[-1]) >= x.numel():
        raise LogError(f"a rounding-log entry points at element {int(entries.positions[-1])} of {x.numel()}")
    positions = torch.from_numpy(np.ascontiguousarray(entries.positions)).to(x.device)
    ys = flat(x)[positions]
    es = _sharpened(x, bound, positions, ys, bound_at(x, bound, positions).to(x.dtype))
    own = flat(out)[positions]
    values, admissible, several = _select(ys, es, entries, dtype)
    admissible &= not bound.exact
    values = torch.where(torch.from_numpy(admissible).to(x.device), values.to(x.device), own)
    before, after = _bits(own), _bits(values)
    changed = before != after
    if changed.any():
        delta = (after[changed] - before[changed]) * cpu_kernels.weights(entries.positions[changed])
        total = (total + int(delta.sum(dtype=np.uint64))) & 0xFFFFFFFFFFFFFFFF
        flat(out)[positions] = values
    return Rounded(
        out,
        total,
        followed=int(changed.sum()),
        inadmissible=int((~admissible).sum()),
        choices=Choices(_plain(ys), _plain(es), _plain(own), _plain(values), several),
    )


def _plain(values: torch.Tensor) -> npt.NDArray[np.float64]:
    plain: npt.NDArray[np.float64] = values.to(torch.float64).cpu().numpy()
    return plain


def _sharpened(
    x: torch.Tensor, bound: Bound, positions: torch.Tensor, ys: torch.Tensor, es: torch.Tensor, near: float = 5.0
) -> torch.Tensor:
    """See `bound.sharpened`."""
    if bound.products is None:
        return es
    at, values, bounds = (t.cpu().numpy() for t in (positions, ys, es))
    return torch.from_numpy(sharpened(x, bound, at, values, bounds, near)).to(es.device)


def _select(
    ys: torch.Tensor, es: torch.Tensor, entries: OpEntries, dtype: torch.dtype
) -> tuple[torch.Tensor, npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Returns the values that log entries select, which of them are admissible, and how many each could select."""
    finite = (torch.isfinite(ys) & torch.isfinite(es)).cpu().numpy()
    low, high = (np.where(finite, _ordered(to_format(ys + s * REACH * es, dtype)), 0) for s in (-1, 1))
    widths = np.minimum(entries.widths.astype(np.int64), 17)
    logged = (entries.bits & np.uint64(0xFFFFFFFF)).astype(np.int64)
    value = low + (logged - low) % (np.int64(1) << widths)
    fits = finite & (entries.widths > 0) & (entries.widths <= 17) & (value <= high)
    fits &= high - low < np.int64(1) << widths  # a shorter k is one that no recorder whose bound holds writes
    whole = _unordered(np.where(logged >= 0x8000, -(logged & 0x7FFF), logged & 0x7FFF), dtype)
    canonical = torch.where(whole != whole, whole.view(torch.int16) == NAN[dtype], logged_nonzero(logged))
    whole_ok = ~finite & (entries.widths == 0) & (entries.bits < np.uint64(0x10000)) & canonical.numpy()
    # As in `contested`: a whole value may only choose among what is not finite, or among neighbours.
    known = torch.isfinite(ys).cpu()
    own = _ordered(to_format(torch.where(known, ys.cpu(), torch.zeros((), dtype=ys.dtype)), dtype))
    near = np.abs(_ordered(whole) - own) <= 1
    whole_ok &= np.where(known.numpy(), near, ~torch.isfinite(whole).numpy())
    chosen = torch.where(torch.from_numpy(finite), _unordered(np.where(fits, value, 0), dtype), whole)
    return chosen, fits | whole_ok, np.where(finite, (high - low + 1).astype(np.float64), WHOLE)


def explainable(
    x: torch.Tensor, bound: Bound, entries: OpEntries | None, out: torch.Tensor, wanted: int, got: int
) -> bool:
    """See `contested.explainable`."""
    return explanation(x, bound, entries, out, wanted, got) is not None


def explanation(
    x: torch.Tensor, bound: Bound, entries: OpEntries | None, out: torch.Tensor, wanted: int, got: int
) -> torch.Tensor | None:
    """See `contested.explanation`: at most 16 changes of unlogged elements within 8e of a boundary."""
    y, dtype = flat(x), out.dtype
    e = dense_bound(x, bound).to(y.dtype)
    low, high = (_ordered(to_format(y + s * 8 * e, dtype)) for s in (-1, 1))
    free = low != high
    if entries is not None:
        free[entries.positions] = False
    index = np.flatnonzero(free)
    if bound.products is not None:
        place = torch.from_numpy(index).to(x.device)
        e[place] = _sharpened(x, bound, place, y[place], e[place])
        low, high = (_ordered(to_format(y + s * 8 * e, dtype)) for s in (-1, 1))
        index = index[low[index] != high[index]]
    if index.size == 0:
        return None
    own = _ordered(flat(out))[index]
    place = torch.from_numpy(index).to(x.device)
    ys, es = y[place].cpu().numpy().astype(np.float64), e[place].cpu().numpy().astype(np.float64)
    value = _unordered(own, dtype).to(torch.float64).numpy()
    up = (own == low[index]) | ((own != high[index]) & (ys > value))
    other = np.where(up, own + 1, own - 1)
    neighbour = _unordered(other, dtype)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(ys - (value + neighbour.to(torch.float64).numpy()) / 2) / es
    nearest = np.argsort(distance, kind="stable")[:16]
    change = (_bits(neighbour) - _bits(_unordered(own, dtype))) * cpu_kernels.weights(index)
    sums = np.zeros(1, dtype=np.uint64)
    for delta in change[nearest]:
        sums = np.concatenate([sums, sums + delta])
    taken = np.flatnonzero(sums == np.uint64((wanted - got) & 0xFFFFFFFFFFFFFFFF))
    if not taken.size:
        return None
    changed = nearest[(int(taken[0]) >> np.arange(nearest.size)) & 1 == 1]
    result = out.clone()
    flat(result)[place[torch.from_numpy(changed).to(x.device)]] = neighbour[torch.from_numpy(changed)].to(out.device)
    return result


def logged_nonzero(logged: Ints) -> torch.Tensor:
    """True where a whole logged pattern is not minus zero, which no canonical result is."""
    return torch.from_numpy(logged != 0x8000)


def canonicalise(bits: torch.Tensor) -> int:
    """Makes every NaN of a flat 16-bit tensor the canonical one, in place; returns the checksum."""
    if bits.device.type != "cpu":
        return device_passes.canonicalise(bits)
    return int(half_kernels.canonicalise_at(bits.data_ptr(), bits.numel(), half_kernels.CODES[bits.dtype]))
