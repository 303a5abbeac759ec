"""The formats that results are rounded to: float32, bfloat16 and float16, out of PyTorch's operations on any device.

The CPU's loops and the Triton kernels do the same to the bit where they are at hand, and are tested against these.
"""

from __future__ import annotations

import torch

from weighbridge.numerics.rounding.cpu_kernels import CANONICAL_NAN, WEIGHT

NARROW = (torch.bfloat16, torch.float16)
"""Formats of 16 bits."""
NAN = {torch.float32: CANONICAL_NAN, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
"""The bit pattern of the only NaN that a result of each format holds."""


def to_format(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds wide values, to 16 bits by way of float32; zeros become +0, and NaN the canonical one."""
    out = x.to(torch.float32) + 0.0
    if dtype != torch.float32:
        out = out.to(dtype)
        out = torch.where(out == 0, torch.zeros((), dtype=dtype, device=x.device), out)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    nan = torch.tensor(NAN[dtype], dtype=bits, device=x.device).view(dtype)
    return torch.where(out != out, nan, out)


def checksum(out: torch.Tensor) -> int:
    """Returns the checksum of a flat result: the weighted integer sum of `cpu_kernels`."""
    wide = out.dtype == torch.float32
    bits = out.view(torch.int32 if wide else torch.int16).to(torch.int64) & (0xFFFFFFFF if wide else 0xFFFF)
    index = torch.arange(out.numel(), device=out.device, dtype=torch.int64)
    weights = ((index * WEIGHT) & 0xFFFFFFFF) | 1
    return int((bits * weights).sum().item()) & 0xFFFFFFFFFFFFFFFF
