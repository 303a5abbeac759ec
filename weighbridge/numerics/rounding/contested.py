"""Contested roundings to float32: finding them while recording, following them while replaying.

The scheme (design, "Contested elements"): a rule gives for each element a bound e on the distance between a conforming
wide result and the exact one. With the recorder's wide value x, the element is contested iff round(x-2e) differs from
round(x+2e). Its log entry is the physical index and the low k bits of the rounded value as an *ordered integer* (floats
mapped to integers in their order, both zeros at 0, infinities next to the largest values), k >= 1 being the least
number that tells the ordered integers from round(x-4e) to round(x+4e) apart modulo 2^k. A replayer with its own y takes
the only value between round(y-2e) and round(y+2e) with those bits. If there is none, the entry is inadmissible; and so
it is if k bits do not tell the values of that range apart, because no recorder whose bound holds writes such a k. Where
x or e is not finite the whole value is logged (width 0), admitted only if the replayer's is not finite either; and then
only if the value is not finite like the replayer's y, or next to round(y) where only e is not finite.

Either side may evaluate e itself with a relative error of 2^-21: the reach of 2e carries a slack of 2^-20, and the
recorder's 4e one more, so that no replayer's range holds two values with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.errors import LogError
from weighbridge.core.host_memory import array_of
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import cpu_kernels, cpu_passes, device_passes
from weighbridge.numerics.rounding.bound import Bound, Ints, bound_at, dense_bound, exact_ties, sharpened
from weighbridge.numerics.rounding.rounding_log import OpEntries

_REACH = cpu_kernels.REACH
_SPAN = 2 * _REACH * cpu_kernels.SLACK
"""How many bounds a replayer's range can extend to either side of the recorder's value: the reach of both."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What log entries chose; float64 arrays with one element for each entry.

    Attributes:
        wide: The replayer's wide values.
        bounds: Their bounds.
        own: How the replayer rounds them itself.
        logged: How the log says they were rounded; where that is inadmissible, as `own`.
        admissible: How many values an entry could have chosen there, the replayer's own included; at least 1.
    """

    wide: npt.NDArray[np.float64]
    bounds: npt.NDArray[np.float64]
    own: npt.NDArray[np.float64]
    logged: npt.NDArray[np.float64]
    admissible: npt.NDArray[np.float64]


WHOLE = 3.0
"""Values that an entry of width 0 may choose among: those that are not finite, or a value and its two neighbours."""


@dataclass(slots=True)
class Rounded:
    """What a rounding pass produced.

    Attributes:
        out: The narrow result, laid out as asked.
        checksum: Weighted integer sum over the physical elements of `out`.
        entries: Log entries (recording), or None.
        followed: Roundings that the log changed (replaying).
        inadmissible: Entries that no conforming device could have made; they were not followed (replaying).
        choices: What the entries chose, or None without any (replaying).
    """

    out: torch.Tensor
    checksum: int
    entries: OpEntries | None = None
    followed: int = 0
    inadmissible: int = 0
    choices: Choices | None = None


def ordered(values: npt.NDArray[np.float32]) -> Ints:
    """Maps float32 values to integers in their order; both zeros to 0, infinities next to the largest values."""
    bits = values.view(np.uint32).astype(np.int64)
    return np.where(bits >= 0x80000000, -(bits & 0x7FFFFFFF), bits)


def unordered(integers: Ints) -> npt.NDArray[np.float32]:
    """Inverse of `ordered`, with 0 mapped to +0."""
    bits = np.where(integers < 0, 0x80000000 | -integers, integers)
    return bits.astype(np.uint32).view(np.float32)


def _round(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32) + np.float32(0)


def encode_entries(
    x: npt.NDArray[np.float64], e: npt.NDArray[np.float64], positions: Ints
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Returns (widths, bits) of the log entries for contested elements.

    Args:
        x: The recorder's wide values at `positions`, float64.
        e: Their bounds, float64.
        positions: Physical indices (only their number matters here).
    """
    assert x.shape == e.shape == positions.shape
    widths, bits = np.empty(x.size, dtype=np.uint8), np.empty(x.size, dtype=np.uint64)
    cpu_kernels.encode(x, e, _SPAN, widths, bits)
    return widths, bits


def decode_entries(
    y: npt.NDArray[np.float64], e: npt.NDArray[np.float64], widths: npt.NDArray[np.uint8], bits: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Returns what log entries select for a replayer with its own wide values.

    Args:
        y: The replayer's wide values, float64.
        e: The replayer's bounds for them.
        widths: Number of low bits logged; 0 for a whole value.
        bits: The low bits, or the whole float32 bit pattern.

    Returns:
        The values, which of the entries are admissible, and how many values each could have chosen.
    """
    finite = np.isfinite(y) & np.isfinite(e)
    ys, es = np.where(finite, y, 0.0), np.where(finite, e, 0.0)
    reach = _REACH * es
    low, high = ordered(_round(ys - reach)), ordered(_round(ys + reach))
    k = np.minimum(widths.astype(np.int64), 40)
    modulus = np.int64(1) << k
    value = low + ((bits & np.uint64(0xFFFFFFFFFF)).astype(np.int64) - low) % modulus
    fits = finite & (widths > 0) & (widths <= 33) & (value <= high) & (high - low < modulus)
    pattern = bits & np.uint64(0xFFFFFFFF)
    nan = ((pattern & np.uint64(0x7FFFFFFF)) > 0x7F800000) & (pattern != cpu_kernels.CANONICAL_NAN)
    whole_ok = ~finite & (widths == 0) & (bits <= np.uint64(0xFFFFFFFF)) & ~nan & (pattern != 0x80000000)
    whole = pattern.astype(np.uint32).view(np.float32)
    # A whole value could be anything, so it may only say which of the values that are not finite; or, where the value
    # is finite and its bound is not, which of the neighbours. Or else a log could put any number into a result.
    near = np.abs(ordered(whole) - ordered(_round(np.where(np.isfinite(y), y, 0.0)))) <= 1
    whole_ok &= np.where(np.isfinite(y), near, ~np.isfinite(whole))
    chosen = np.where(finite, unordered(np.where(fits, value, 0)), whole)
    return chosen.astype(np.float32), fits | whole_ok, np.where(finite, (high - low + 1).astype(np.float64), WHOLE)


def record(x: torch.Tensor, bound: Bound, op: int, output: int) -> Rounded:
    """Rounds a wide result and finds the contested elements to log.

    Args:
        x: Wide result, dense float64.
        bound: Bound on its error. (Rounding x-2e and x+2e to float64 loses nothing: values and boundaries lie on the
            same grid.)
        op: Index of the operation in its step, for the log entry.
        output: Index of the rounded result within the operation.
    """
    out = torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return Rounded(out, 0)
    if x.device.type == "cpu":
        checksum, positions, xs, es = cpu_passes.record(x, bound, out)
    else:
        checksum, contested, found = device_passes.record(x, bound, out, _REACH)
        # Copies: until the step ends, a chip would see tensors that the log holds on to.
        positions, xs, es = (np.array(t.cpu().numpy()) for t in (contested, flat(x)[contested], found))
    if positions.size and bound.products is not None:
        es = sharpened(x, bound, positions, xs, es, _REACH)
        finite = np.isfinite(xs) & np.isfinite(es)
        reach = np.where(finite, _REACH * es, 0.0)  # an infinity and an infinite bound have no sum
        odd = ~((_round(xs - reach) == _round(xs + reach)) & finite)
        odd &= ~exact_ties(x, bound, positions, xs, 29)
        positions, xs, es = positions[odd], xs[odd], es[odd]
    if positions.size == 0:
        return Rounded(out, checksum)
    widths, bits = encode_entries(xs, es, positions)
    return Rounded(out, checksum, OpEntries(op=op, output=output, positions=positions, widths=widths, bits=bits))


def round_plain(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Rounds a dense wide result without a log; returns (narrow result, checksum)."""
    out = torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return out, 0
    if x.device.type == "cpu":
        outs = array_of(out)
        return out, int(cpu_kernels.pass_plain(array_of(x), outs, outs.view(np.uint32)))
    return out, device_passes.round_plain(x, out)


def canonicalise(bits: torch.Tensor) -> int:
    """Makes every NaN of a flat float32 tensor the canonical one, in place; returns the checksum."""
    if bits.is_cpu:
        return int(cpu_kernels.pass_exact(array_of(bits).view(np.uint32)))
    return device_passes.canonicalise(bits)


def follow(x: torch.Tensor, bound: Bound, entries: OpEntries | None) -> Rounded:
    """Rounds the replayer's wide result and follows the log where its entries are admissible.

    Raises:
        LogError: If a position lies outside the result.
    """
    out, checksum = round_plain(x)
    if entries is None:
        return Rounded(out, checksum)
    if entries.positions.size and int(entries.positions[-1]) >= x.numel():
        raise LogError(f"a rounding-log entry points at element {int(entries.positions[-1])} of {x.numel()}")
    positions = torch.from_numpy(np.ascontiguousarray(entries.positions)).to(x.device)
    ys = flat(x)[positions].cpu().numpy()
    es = sharpened(x, bound, entries.positions, ys, bound_at(x, bound, positions).cpu().numpy())
    values, admissible, several = decode_entries(ys, es, entries.widths, entries.bits)
    own = flat(out)[positions].cpu().numpy()
    values = np.where(admissible, values, own)
    changed = own.view(np.uint32) != values.view(np.uint32)
    if changed.any():
        w = cpu_kernels.weights(entries.positions[changed])
        delta = (values.view(np.uint32)[changed].astype(np.uint64) - own.view(np.uint32)[changed].astype(np.uint64)) * w
        checksum = (checksum + int(delta.sum(dtype=np.uint64))) & 0xFFFFFFFFFFFFFFFF
        flat(out)[positions] = torch.from_numpy(values).to(x.device)
    return Rounded(
        out,
        checksum,
        followed=int(changed.sum()),
        inadmissible=int((~admissible).sum()),
        choices=Choices(ys, es, own.astype(np.float64), values.astype(np.float64), several),
    )


def explainable(
    x: torch.Tensor, bound: Bound, entries: OpEntries | None, out: torch.Tensor, wanted: int, got: int
) -> bool:
    """True if `explanation` finds one."""
    return explanation(x, bound, entries, out, wanted, got) is not None


def explanation(
    x: torch.Tensor, bound: Bound, entries: OpEntries | None, out: torch.Tensor, wanted: int, got: int
) -> torch.Tensor | None:
    """Returns the result with at most 16 unlogged elements within 8e of a boundary changed, so that it has a checksum.

    If there is one, the bound was too small for this device and the replay is inconclusive rather than a mismatch
    (design, "Verdicts").

    Args:
        x: The replayer's wide result.
        bound: Its bound.
        entries: What the log said about this result.
        out: The replayer's rounded result, log followed.
        wanted: The recorder's checksum.
        got: The replayer's checksum.

    Returns:
        A tensor as `out`, or None if no such changes give the checksum.
    """
    e = dense_bound(x, bound).cpu().numpy()
    y = flat(x).cpu().numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = ordered(_round(y - 8 * e)), ordered(_round(y + 8 * e))
    free = low != high
    if entries is not None:
        free[entries.positions] = False
    index = np.flatnonzero(free)
    if bound.products is not None:
        e[index] = sharpened(x, bound, index, y[index], e[index])
        with np.errstate(invalid="ignore", over="ignore"):
            low, high = ordered(_round(y - 8 * e)), ordered(_round(y + 8 * e))
        index = index[low[index] != high[index]]
    if index.size == 0:
        return None
    own = ordered(flat(out).cpu().numpy())[index]
    # The nearest other value of each candidate, closest to the boundary (in units of e) first; 16 of them give 65,536
    # sums to look through.
    value = unordered(own).astype(np.float64)
    up = (own == low[index]) | ((own != high[index]) & (y[index] > value))
    other = np.where(up, own + 1, own - 1)
    middle = (value + unordered(other).astype(np.float64)) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(y[index] - middle) / e[index]
    nearest = np.argsort(distance, kind="stable")[:16]
    bits = unordered(own).view(np.uint32).astype(np.uint64), unordered(other).view(np.uint32).astype(np.uint64)
    deltas = ((bits[1] - bits[0]) * cpu_kernels.weights(index))[nearest]
    sums = np.zeros(1, dtype=np.uint64)
    for delta in deltas:
        sums = np.concatenate([sums, sums + delta])
    taken = np.flatnonzero(sums == np.uint64((wanted - got) & 0xFFFFFFFFFFFFFFFF))
    if not taken.size:
        return None
    changed = nearest[(int(taken[0]) >> np.arange(nearest.size)) & 1 == 1]
    result = out.clone()
    flat(result)[torch.from_numpy(index[changed]).to(out.device)] = torch.from_numpy(unordered(other[changed])).to(
        out.device
    )
    return result
