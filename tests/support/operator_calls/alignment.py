"""Calls of what `weighbridge.numerics.rewrites.alignment` decomposes."""

from __future__ import annotations

from typing import Any

import torch
from support.operator_calls.draw import Call, Draw, call, of

from weighbridge.numerics.rewrites import alignment  # noqa: F401 (enters the table)
from weighbridge.numerics.rewrites.rewrite_table import TABLE


def _alignment(draw: Draw, tensors: bool) -> tuple[Any, ...]:
    times, n, c = draw.size(1, 6), draw.size(1, 3), draw.size(2, 4)
    longest = draw.size(1, 3)
    inputs, lengths = [draw.size(1, times) for _ in range(n)], [draw.size(0, longest) for _ in range(n)]
    targets = draw.whole(c - 1, n, longest) + 1
    settings = (torch.tensor(inputs), torch.tensor(lengths)) if tensors else (inputs, lengths)
    return draw.real(times, n, c).contiguous().log_softmax(-1), targets, *settings, 0


@of("_ctc_loss.default", "_ctc_loss.Tensor")
def _(draw: Draw, key: str) -> Call:
    return call(*_alignment(draw, key.endswith("Tensor")), True)


@of("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor")
def _(draw: Draw, key: str) -> Call:
    operands = _alignment(draw, key.endswith("Tensor"))
    loss, alpha = TABLE["_ctc_loss.default"](*operands, True)  # the kernel leaves parts of alpha as they were
    return call(draw.real(*loss.shape), *operands[:4], loss, alpha, 0, True)
