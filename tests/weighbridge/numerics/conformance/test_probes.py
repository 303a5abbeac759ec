"""Probes pass on this device and fail for every algorithm that the bounds do not cover."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from weighbridge.core.errors import DeviceArithmeticError
from weighbridge.numerics.conformance import bound_policy, probes
from weighbridge.numerics.conformance.switches import conforming

Tensor = torch.Tensor
CPU = torch.device("cpu")
DTYPES = [torch.float64, torch.float32]


def convolve(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1)


def gradients(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    of_input = torch.nn.grad.conv2d_input(list(x.shape), w, g, padding=1)
    return of_input, torch.nn.grad.conv2d_weight(x, list(w.shape), g, padding=1)


@pytest.fixture(autouse=True)
def _switched() -> Iterator[None]:
    with conforming():
        yield


@pytest.mark.parametrize("declared", [bound_policy.STRICT, bound_policy.calibrated()])
def test_this_device_conforms(declared: bound_policy.Policy) -> None:
    probes.require("cpu", declared)


# --- conforming ways of computing pass ------------------------------------------------------------------------------


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        out = out + a[:, k : k + 1] * b[k]
    return out


def split(a: Tensor, b: Tensor) -> Tensor:
    parts = [a[:, i::5] @ b[i::5] for i in range(5)]
    return parts[3] + (parts[0] + parts[4]) + (parts[1] + parts[2])


def fused(a: Tensor, b: Tensor) -> Tensor:
    """Fused multiply-adds in float32: float64 holds a product exactly, and rounding it twice hits no tie here."""
    out = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32)
    for k in range(a.shape[1]):
        out = (out.double() + a[:, k : k + 1].double() * b[k].double()).float()
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multiply", [one_by_one, split, lambda a, b: (b.T @ a.T).T])
def test_other_orders_conform(multiply: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    assert probes.products_conform(multiply, dtype, CPU)


def test_fused_multiply_add_conforms() -> None:
    assert probes.products_conform(fused, torch.float32, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolution_through_columns_conforms(dtype: torch.dtype) -> None:
    def columns(x: Tensor, w: Tensor) -> Tensor:
        out = split(w.flatten(1), F.unfold(x, 3, padding=1).transpose(0, 1).flatten(1))
        return out.view(w.shape[0], x.shape[0], *x.shape[2:]).transpose(0, 1)

    assert probes.convolutions_conform(columns, dtype, CPU)
    assert probes.gradients_conform(gradients, dtype, CPU)


# --- others do not --------------------------------------------------------------------------------------------------


def kept(x: Tensor, bits: int) -> Tensor:
    """Numbers cut down to so many significant bits."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2.0**bits).trunc() * 2.0**-bits, exponent)


def tf32(a: Tensor, b: Tensor) -> Tensor:
    return kept(a, 11) @ kept(b, 11)


def split_bfloat16(a: Tensor, b: Tensor) -> Tensor:
    """Three products of bfloat16 halves, as `torch.set_float32_matmul_precision("high")` allows."""
    high_a, high_b = a.bfloat16().to(a.dtype), b.bfloat16().to(b.dtype)
    low_a, low_b = (a - high_a).bfloat16().to(a.dtype), (b - high_b).bfloat16().to(b.dtype)
    return high_a @ high_b + (high_a @ low_b + low_a @ high_b)


def in_single_precision(a: Tensor, b: Tensor) -> Tensor:
    return (a.float() @ b.float()).to(a.dtype)


def truncated(x: Tensor, digits: int) -> Tensor:
    mantissa, exponent = np.frexp(x.double().numpy().astype(np.longdouble))
    cut = np.ldexp(np.trunc(np.ldexp(mantissa, digits)), exponent - digits)
    return torch.from_numpy(cut.astype(np.float64)).to(x.dtype)


def truncating(a: Tensor, b: Tensor) -> Tensor:
    """Float32 with an accumulator that cuts off instead of rounding to nearest, as tensor cores do."""
    out = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for k in range(a.shape[1]):
        out = truncated(out + a[:, k : k + 1].double() * b[k].double(), 24)
    return out.float()


def narrow_accumulator(a: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    digits = 50 if a.dtype is torch.float64 else 22
    for k in range(a.shape[1]):
        out = kept(out + a[:, k : k + 1] * b[k], digits)
    return out


WRONG = [
    *itertools.product([tf32, split_bfloat16, narrow_accumulator], DTYPES),
    (in_single_precision, torch.float64),
    (truncating, torch.float32),
    (lambda a, b: (a.bfloat16() @ b.bfloat16()).to(a.dtype), torch.float32),
    (lambda a, b: (a.half() @ b.half()).to(a.dtype), torch.float32),
]


@pytest.mark.parametrize(("multiply", "dtype"), WRONG)
def test_a_product_with_fewer_bits_is_caught(multiply: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    assert not probes.products_conform(multiply, dtype, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
def test_truncation_alone_is_caught_by_what_does_not_fit(dtype: torch.dtype) -> None:
    """Everything is exact except the last rounding, which goes towards zero."""

    def towards_zero(a: Tensor, b: Tensor) -> Tensor:
        exact = whole(a.numpy()) @ whole(b.numpy())
        digits = 53 if dtype is torch.float64 else 24
        out = np.vectorize(lambda v: float(cut(int(v), digits)), otypes=[np.float64])(exact)
        return torch.from_numpy(out).to(dtype)

    whole = np.vectorize(int, otypes=[object])

    def cut(v: int, digits: int) -> int:
        drop = max(abs(v).bit_length() - digits, 0)
        return (abs(v) >> drop << drop) * (1 if v >= 0 else -1)

    assert not probes.products_conform(towards_zero, dtype, CPU)


def interpolation(points: list[float], out: int, taps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Toom-Cook matrices (output, filter, input) of F(out, taps) at given points and infinity, in float64."""
    n = out + taps - 1
    vandermonde = [[p**j for j in range(n)] for p in points] + [[0.0] * (n - 1) + [1.0]]
    inverse = torch.linalg.inv(torch.tensor(vandermonde, dtype=torch.float64))
    tail_out = [[float(p) ** j for p in points] + [1.0 if j == out - 1 else 0.0] for j in range(out)]
    tail_taps = [[p**j for j in range(taps)] for p in points] + [[0.0] * (taps - 1) + [1.0]]
    return (
        torch.tensor(tail_out, dtype=torch.float64),
        torch.tensor(tail_taps, dtype=torch.float64),
        inverse.T.contiguous(),
    )


def winograd(points: list[float], out: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A real Winograd convolution F(out x out, 3x3)."""
    at, g, bt = interpolation(points, out, 3)

    def run(x: Tensor, w: Tensor) -> Tensor:
        a, k, b = at.to(x.dtype), g.to(x.dtype), bt.to(x.dtype)
        n = out + 2
        tiles = F.pad(x, (1, 1, 1, 1)).unfold(2, n, out).unfold(3, n, out)
        u = torch.einsum("ij,ocjk,lk->ocil", k, w, k)
        v = torch.einsum("ij,nchwjk,lk->nchwil", b, tiles, b)
        m = torch.einsum("ocil,nchwil->nohwil", u, v)
        y = torch.einsum("ij,nohwjk,lk->nohwil", a, m, a)
        return y.permute(0, 1, 2, 4, 3, 5).reshape(x.shape[0], w.shape[0], *x.shape[2:])

    return run


def fourier(x: Tensor, w: Tensor) -> Tensor:
    """A real convolution by fast Fourier transforms."""
    size = x.shape[-1] + 2
    spectrum = torch.fft.rfft2(F.pad(x, (1, 1, 1, 1)), s=(size, size))
    filters = torch.fft.rfft2(w.flip(-1, -2), s=(size, size))
    full = torch.fft.irfft2(torch.einsum("nchw,ochw->nohw", spectrum, filters), s=(size, size))
    return full[:, :, 2:, 2:]


TRANSFORMS = {
    "F(2x2, 3x3)": winograd([0.0, 1.0, -1.0], 2),
    "F(4x4, 3x3)": winograd([0.0, 1.0, -1.0, 2.0, -2.0], 4),
    "Fourier": fourier,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_wrong_convolutions_are_convolutions(name: str) -> None:
    """So that what the probe catches is how they round and not that they are something else."""
    x, w = torch.randn(2, 4, 8, 8, dtype=torch.float64), torch.randn(6, 4, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(TRANSFORMS[name](x, w), convolve(x, w))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_convolution_by_transforms_is_caught(name: str, dtype: torch.dtype) -> None:
    assert probes.convolutions_conform(convolve, dtype, CPU)
    assert not probes.convolutions_conform(TRANSFORMS[name], dtype, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_by_transforms_are_caught(dtype: torch.dtype) -> None:
    def backward(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return fourier(g, w.flip(-1, -2).transpose(0, 1)), gradients(g, x, w)[1]

    def of_weight(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        good, right = gradients(g, x, w)
        return good, kept(right, 50 if dtype is torch.float64 else 21)

    assert not probes.gradients_conform(backward, dtype, CPU)
    assert not probes.gradients_conform(of_weight, dtype, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_in_a_narrower_type_is_caught(dtype: torch.dtype) -> None:
    narrow = torch.float32 if dtype is torch.float64 else torch.bfloat16
    assert probes.sums_conform(lambda x: x.cumsum(0)[-1], dtype, CPU)
    assert not probes.sums_conform(lambda x: x.to(narrow).sum().to(dtype), dtype, CPU)


# --- the switches ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormal numbers")
@pytest.mark.parametrize("declared", [bound_policy.STRICT, bound_policy.calibrated()])
def test_flushing_subnormal_numbers_is_caught(declared: bound_policy.Policy) -> None:
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(DeviceArithmeticError, match=r"set_flush_denormal\(False\)") as caught:
            probes.require("cpu", declared)
        assert caught.value.reason == "device.arithmetic"
    finally:
        torch.set_flush_denormal(False)
    probes.require("cpu", declared)


def test_a_device_with_a_wrong_product_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: original(kept(a, 11), kept(b, 11)))
    with pytest.raises(DeviceArithmeticError, match=r"strict cannot be promised on cpu.*TF32.*declare calibrated"):
        probes.require("cpu", bound_policy.STRICT)
    with pytest.raises(DeviceArithmeticError, match="calibrated cannot be promised"):
        probes.require("cpu", bound_policy.calibrated())


def test_a_device_that_is_wrong_in_float32_only_can_still_be_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: original(a, b) if a.dtype is torch.float64 else kept(a, 11) @ b)
    with pytest.raises(DeviceArithmeticError, match=r"mixed cannot be promised on cpu.*declare strict"):
        probes.require("cpu", bound_policy.named("mixed"))
    probes.require("cpu", bound_policy.STRICT)


NEWER = hasattr(torch.backends.cuda.matmul, "fp32_precision")
"""Whether this PyTorch has the second of its two interfaces to the precision of products."""


def products() -> str:
    """How float32 products are computed on a GPU."""
    matmul = torch.backends.cuda.matmul
    return str(matmul.fp32_precision) if NEWER else "tf32" if matmul.allow_tf32 else "ieee"


def settings() -> tuple[object, ...]:
    return (
        torch._C._get_mkldnn_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_nnpack_enabled(),
        products(),
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    )


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_what_the_user_chose_is_off_inside_and_back_afterwards(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    torch._C._set_mkldnn_enabled(True)
    try:
        outside = settings()
        with conforming():
            assert settings() == (False, False, False, "ieee", False, False)
            assert torch.get_float32_matmul_precision() == "highest"
        assert settings() == outside
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not NEWER, reason="this PyTorch has the older interface only")
def test_the_newer_interface_is_put_back_too() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with conforming():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
