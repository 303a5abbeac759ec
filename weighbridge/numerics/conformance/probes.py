"""Tests at the start of recording and replay that this device computes the way the bounds assume.

Bounds hold for any order of summation, with or without fused multiply-add, rounding to nearest. Products and sums of
integers whose partial sums all fit into the significand have one result under every such algorithm, the exact one; so
a device conforms only if it gives that. The integers here use all bits that the type has: fewer bits (TF32, split
bfloat16, a narrower accumulator) lose some, and Winograd's and Fourier's transforms need more than there are. Sums and
products of two that do not fit have one right rounding, which truncation misses. Nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from weighbridge.core.errors import DeviceArithmeticError, UsageError
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.units import (
    Order,
    chunked_products,
    fused_products,
    identification,
    injection,
    named,
    truncated_products,
)

Tensor = torch.Tensor
Integers = np.ndarray[Any, np.dtype[np.int64]]
aten = torch.ops.aten

_DIGITS = {torch.float64: 53, torch.float32: 24}
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}


def _odd(shape: tuple[int, ...], below: int, seed: int) -> Integers:
    """Odd integers of either sign and less than `below` in size; the same ones everywhere."""
    count = int(np.prod(shape))
    raw = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 0xD1B54A33)
    raw ^= raw >> np.uint64(29)
    size = (raw % np.uint64(max(below // 2, 1))).astype(np.int64) * 2 + 1
    return np.where((raw >> np.uint64(60)) % np.uint64(2) == 1, size, -size).reshape(shape)


def _tensor(integers: Integers, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Integers rounded to nearest; NumPy converts, because PyTorch's arithmetic is what is on trial."""
    rounded = integers.astype(np.float64).astype(np.float64 if dtype is torch.float64 else np.float32)
    return torch.from_numpy(rounded).to(device)


def _magnitudes(digits: int, terms: int) -> list[tuple[int, int]]:
    """Limits of two factors so that any partial sum of `terms` products has at most `digits` bits."""
    room = (1 << digits) // terms
    half = 1 << (room.bit_length() - 1) // 2
    return [(room, 2), (2, room), (half, half)]


def products_conform(multiply: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> bool:
    """True if a matrix product of exact operands is exact, and one that must be rounded is rounded to nearest.

    Args:
        multiply: The kernel on trial, of an (M, K) and a (K, N) matrix.
        dtype: float64 or float32, the type of operands and result.
        device: Where the operands are.
    """
    digits, k = _DIGITS[dtype], 64
    cases = [(_odd((32, k), a, 1), _odd((k, 32), b, 2)) for a, b in _magnitudes(digits, k)]
    high, half = 1 << digits, 1 << (digits + 1) // 2
    rounded = np.zeros((8, k), dtype=np.int64)
    rounded[:, :2] = [[s * high, s * d] for d in (1, 3, 5, 7) for s in (1, -1)]
    cases.append((rounded, np.ones((k, 32), dtype=np.int64)))
    single, other = np.zeros((8, k), dtype=np.int64), np.zeros((k, 8), dtype=np.int64)
    np.fill_diagonal(single, half + 1)
    np.fill_diagonal(other, half + 3)
    cases.append((single, other))
    for a, b in cases:
        found = multiply(_tensor(a, dtype, device), _tensor(b, dtype, device))
        if not np.array_equal(found.cpu().numpy(), _tensor(a @ b, dtype, torch.device("cpu")).numpy()):
            return False
    return True


def sums_conform(total: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> bool:
    """True if a sum of 2,048 integers that is exact in every order is exact."""
    x = _odd((2048,), (1 << _DIGITS[dtype]) // 2048, 3)
    return float(total(_tensor(x, dtype, device))) == float(x.sum())


_N, _C, _O, _SIDE = 2, 4, 6, 8
_TAPS = [(i, j) for i in range(3) for j in range(3)]


def _windows(x: Integers) -> Integers:
    """The nine shifts of zero-padded planes: (9, N, C, H, W)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.stack([padded[:, :, i : i + _SIDE, j : j + _SIDE] for i, j in _TAPS])


def _sparse(shape: tuple[int, ...], *places: tuple[int, ...]) -> Integers:
    """Zeros with ones at the given places."""
    out = np.zeros(shape, dtype=np.int64)
    for place in places:
        out[place] = 1
    return out


_X, _W, _G = (_N, _C, _SIDE, _SIDE), (_O, _C, 3, 3), (_N, _O, _SIDE, _SIDE)


def convolutions_conform(
    convolve: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, device: torch.device
) -> bool:
    """True if a 3x3 convolution with stride 1 and padding 1 of exact operands is exact.

    Where one operand is zeros but for single ones, every result is one element of the other, which then has all digits.

    Args:
        convolve: The kernel on trial, of an (N, C, 8, 8) input and an (O, C, 3, 3) weight.
        dtype: float64 or float32.
        device: Where the operands are.
    """
    whole = 1 << _DIGITS[dtype]
    cases = [(_odd(_X, x, 4), _odd(_W, w, 5)) for x, w in _magnitudes(_DIGITS[dtype], 9 * _C)]
    cases.append((_odd(_X, whole, 4), _sparse(_W, *((o, o % _C, o // 3, o % 3) for o in range(_O)))))
    cases.append((_sparse(_X, *((n, n, 3 + n, 4) for n in range(_N))), _odd(_W, whole, 5)))
    for x, w in cases:
        exact = np.einsum("tncyx,oct->noyx", _windows(x), w.reshape(_O, _C, 9))
        found = convolve(_tensor(x, dtype, device), _tensor(w, dtype, device))
        if not np.array_equal(found.cpu().numpy(), exact.astype(np.float64)):
            return False
    return True


def gradients_conform(
    backward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], dtype: torch.dtype, device: torch.device
) -> bool:
    """True if both gradients of that convolution are exact for exact operands.

    Args:
        backward: The kernel on trial, of (output gradient, input, weight); returns gradients of input and weight.
        dtype: float64 or float32.
        device: Where the operands are.
    """
    whole = 1 << _DIGITS[dtype]
    cases = [
        (_odd(_G, g, 6), _odd(_X, other, 7), _odd(_W, other, 8))
        for g, other in _magnitudes(_DIGITS[dtype], _N * _SIDE * _SIDE)
    ]
    taps, impulses = [(c, c, c // 3, c % 3) for c in range(_C)], [(0, c, 2 + c, 3) for c in range(_C)]
    cases.append((_odd(_G, whole, 6), _sparse(_X, *impulses), _sparse(_W, *taps)))
    cases.append((_sparse(_G, (0, 0, 3, 4)), _odd(_X, whole, 7), _odd(_W, whole, 8)))
    for g, x, w in cases:
        of_weight = np.einsum("noyx,tncyx->oct", g, _windows(x)).reshape(_W)
        of_input = np.einsum("tnoyx,oct->ncyx", _windows(g), w[:, :, ::-1, ::-1].reshape(_O, _C, 9))
        found = backward(*(_tensor(v, dtype, device) for v in (g, x, w)))
        for got, exact in zip(found, (of_input, of_weight), strict=True):
            if not np.array_equal(got.cpu().numpy(), exact.astype(np.float64)):
                return False
    return True


def keeps_subnormals(dtype: torch.dtype, device: torch.device) -> bool:
    """True if products, sums and conversions give subnormal numbers instead of zeros, in every worker thread.

    Compared as integers, because a device that takes subnormal numbers for zeros would do so in comparisons too.
    """
    fraction = _DIGITS[dtype] - 1
    least = torch.full((1 << 16,), 1 << fraction, dtype=_BITS[dtype], device=device).view(dtype)
    half = least * 0.5
    wanted = [(half, 1 << (fraction - 1)), (half + half, 1 << fraction), (least - half, 1 << (fraction - 1))]
    if dtype is torch.float32:
        wide = torch.full((1 << 16,), (1023 - 127) << 52, dtype=torch.int64, device=device).view(torch.float64)
        wanted.append((wide.to(torch.float32), 1 << (fraction - 1)))
    return all(bool((found.view(_BITS[dtype]) == bits).all()) for found, bits in wanted)


def _convolve(x: Tensor, w: Tensor) -> Tensor:
    out: Tensor = aten.convolution.default(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return out


def _convolve_backward(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    of_input, of_weight, _ = aten.convolution_backward.default(g, x, w, *rest)
    return of_input, of_weight


def fused_conform(multiply: Callable[[Tensor, Tensor, int], Tensor], unit: str) -> bool:
    """True if products of 16-bit matrices are those of a unit's model: ordinary ones, and ones about 2^-126.

    Args:
        multiply: The compiled code on trial, of an (M, K) and a (K, N) matrix and how many products a chain has.
        unit: For `units.named`.
    """
    order, device = Order(chain=16, bias_first=False), torch.device("cpu")
    for least in (0, -60, -63, -70):
        a, b = (_tensor(_odd(shape, 256, seed), torch.float32, device).bfloat16() for shape, seed in _FUSED)
        a, b = a * 2.0**least, b * 2.0 ** (least - 7)
        expected = named(unit).product(a, b, order=order)
        if not torch.equal(multiply(a, b, 16).view(torch.int32), expected.view(torch.int32)):
            return False
    return True


_FUSED = (((5, 39), 9), ((39, 17), 10))


def truncated_conform(multiply: Callable[[Tensor, Tensor, str, int], Tensor], unit: str) -> bool:
    """True if products of 16-bit matrices are those of a truncating unit's model: ordinary, very small and large ones.

    Args:
        multiply: The compiled code on trial: of two matrices, the unit, and how many products a chain has.
        unit: For `units.named`.
    """
    order, device = Order(chain=32, bias_first=False), torch.device("cpu")
    cases = [identification.operands(identification.SHORT)]  # nothing but rounding errors
    for least in (-60, -70, 59):
        a, b = (_tensor(_odd(shape, 256, seed), torch.float32, device).bfloat16() for shape, seed in _FUSED)
        cases.append((a * 2.0**least, b * 2.0 ** (least - 7)))
    for a, b in cases:
        expected = named(unit).product(a, b, order=order)
        if not torch.equal(multiply(a, b, unit, 32).view(torch.int32), expected.view(torch.int32)):
            return False
    return True


def chunks_conform() -> bool:
    """True if partial sums in float64 of 16-bit products, which are exact, come out as integers do."""
    a, b = (_odd(shape, 256, seed) for shape, seed in (((5, 300), 9), ((300, 11), 10)))
    x, y = (_tensor(v, torch.float32, torch.device("cpu")).bfloat16() for v in (a, b))
    a, b = (np.rint(v.double().numpy()).astype(np.int64) for v in (x, y))
    found = chunked_products.chunked(x, y)
    first, whole = (np.abs(a[:, :end] @ b[:end]).astype(np.float64) for end in (256, 300))
    parts = [(a[:, :256], b[:256]), (a[:, 256:], b[256:])]
    shares = [np.sqrt((p * p).sum(1).astype(float))[:, None] * np.sqrt((q * q).sum(0).astype(float)) for p, q in parts]
    sizes = (first + shares[0] / 16) + (np.maximum(first, whole) + shares[1] / 16)
    return np.array_equal(found.sums.numpy(), (a @ b).astype(np.float64)) and np.array_equal(found.sizes.numpy(), sizes)


def require_unit(policy: Policy) -> Mapping[str, int]:
    """Tests before anything is recorded that this process has the unit of a policy, if that truncates.

    Returns:
        The orders of its products, for the draft.

    Raises:
        UsageError: Nothing here computes products as such a unit.
        DeviceArithmeticError: What computes them is another unit.
    """
    if not policy.truncating:
        return {}
    device = injection.current()
    if device is None:
        raise UsageError(
            f"nothing here computes products as {policy.unit} does, so nothing can be recorded under {policy.name}: "
            "PyTorch gives rounded products, and a log needs the accumulators of the unit. Put the unit's model into "
            "the device's place (record --unit-model, or weighbridge.numerics.units.injection), or take "
            "unit-vdpbf16ps, which every machine computes"
        )
    a, b = identification.operands(identification.SHORT)
    with _disable_current_modes(), torch.no_grad():
        same = torch.equal(device.product(a, b), named(policy.unit).product(a, b))
    if not same:
        raise DeviceArithmeticError(
            f"{policy.name} cannot be promised: products of 16 bits are not those of {policy.unit} here; declare the "
            "unit that the device has",
            device=device.unit, policy=policy.name,
        )  # fmt: skip
    return device.orders


def _fault(device: torch.device, policy: Policy) -> str | None:
    """What is wrong with the arithmetic of a device, and what to do about it."""
    if policy.unit:
        same = (
            truncated_conform(truncated_products.product, policy.unit) and chunks_conform() if policy.truncating
            else fused_conform(fused_products.product, policy.unit)
        )  # fmt: skip
        if not same:
            return f"compiled code does not add products as {policy.unit} does; delete the cache of compiled loops"
    for dtype in (torch.float64, torch.float32):
        if not keeps_subnormals(dtype, device):
            return f"{dtype} results below the normal range become zero; call torch.set_flush_denormal(False)"
    fault = _algorithm_fault(device, torch.float64)
    if fault is not None:
        return fault if policy.calibrated else f"{fault}, or declare calibrated with a table measured on this device"
    fault = _algorithm_fault(device, torch.float32) if policy.narrow else None
    return fault if fault is None or policy.calibrated else f"{fault}, or declare strict, which has no 16-bit types"


def _algorithm_fault(device: torch.device, dtype: torch.dtype) -> str | None:
    if not products_conform(torch.mm, dtype, device):
        return (
            f"matrix products in {dtype} lose bits or are not rounded to nearest; switch off TF32, emulation and "
            "vendor overrides such as NVIDIA_TF32_OVERRIDE"
        )
    if not sums_conform(torch.sum, dtype, device):
        return f"sums in {dtype} lose bits; use a build of PyTorch without fast-math"
    if not (convolutions_conform(_convolve, dtype, device) and gradients_conform(_convolve_backward, dtype, device)):
        return f"convolutions in {dtype} are not sums of products (Winograd or Fourier kernels); switch them off"
    return None


def require(device: str | torch.device, policy: Policy) -> None:
    """Tests a device before anything is recorded or replayed on it, in some ten milliseconds.

    Args:
        device: The device.
        policy: Which bounds will be used: `strict` ones are for float64, the others for float32 too.

    Raises:
        DeviceArithmeticError: The bounds would not hold here; the message says what to switch off.
    """
    where = torch.device(device)
    with _disable_current_modes(), torch.no_grad(), conforming():
        fault = _fault(where, policy)
    if fault is not None:
        raise DeviceArithmeticError(
            f"{policy.name} cannot be promised on {where}: {fault}", device=str(where), policy=policy.name
        )
