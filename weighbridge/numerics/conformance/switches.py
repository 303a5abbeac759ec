"""Switches off the algorithms that no bound covers, on both sides, and puts the user's settings back.

Off are: oneDNN, cuDNN and NNPACK kernels (Winograd and FFT convolutions among them), float32 products in TF32 or
split bfloat16 (`torch.set_float32_matmul_precision`), and reductions of 16-bit products in 16 bits. What these switches
do not reach is found by `probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Restore = Callable[[], None]

_MATMULS: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
_REDUCED = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


def _attribute(owner: Any, name: str, off: Any) -> Restore:
    before = getattr(owner, name)
    setattr(owner, name, off)
    return lambda: setattr(owner, name, before)


def _kernels(read: Callable[[], bool], write: Callable[[bool], None]) -> Restore:
    before = read()
    write(False)
    return lambda: write(before)


def _float32_products() -> Restore:
    """Full float32 products under PyTorch's two interfaces, whichever the user has used before."""
    newer = [owner for owner in reversed(_MATMULS) if hasattr(owner, "fp32_precision")]
    restores = [_attribute(owner, "fp32_precision", "ieee") for owner in newer]
    try:
        before: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:
        before = None  # set through the attributes only; the older interface then refuses to answer

    def restore() -> None:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for each in restores:
            each()

    if before is not None:
        torch.set_float32_matmul_precision("highest")
    return restore


def switch_off() -> Restore:
    """Switches off every algorithm that no bound covers and returns what undoes it."""
    matmul = torch.backends.cuda.matmul
    restores = [
        _kernels(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
        _kernels(torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
        _kernels(torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled),
        *(_attribute(matmul, name, False) for name in _REDUCED if hasattr(matmul, name)),
        _float32_products(),
    ]

    def restore() -> None:
        for each in restores:
            each()

    return restore


@contextmanager
def conforming() -> Iterator[None]:
    """Within it, only algorithms that the bounds cover run, as far as PyTorch has a switch for the others."""
    restore = switch_off()
    try:
        yield
    finally:
        restore()
