"""Parts of layer norms and of their gradients."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.arrays.windows import Box
from weighbridge.numerics.slices.parts import Slice, all_of

Tensor = torch.Tensor


def forward(bound: dict[str, Any], output: int, box: Box) -> Slice | None:
    """A row of the input makes a row of the result, its mean and its deviation; the bound reads the worst row too."""
    x, inner = bound["input"].shape, len(bound["normalized_shape"])
    outer = len(x) - inner
    if outer < 1 or inner < 1:
        return None
    rows, once = box[:outer], ((0, 1),) * inner
    read = (*rows, *all_of(x[outer:]))
    boxes = {"input": read} | {name: all_of(t.shape) for name in ("weight", "bias") if (t := bound[name]) is not None}
    return Slice(boxes, {0: read, 1: (*rows, *once), 2: (*rows, *once)}, worst="input")


def backward(bound: dict[str, Any], output: int, box: Box) -> Slice | None:
    """The gradient of the input is made by rows, those of weight and bias by columns of all rows."""
    x, inner = bound["input"].shape, len(bound["normalized_shape"])
    outer = len(x) - inner
    if outer < 1 or inner < 1:
        return None
    rows, columns = (box[:outer], all_of(x[outer:])) if output == 0 else (all_of(x[:outer]), box)
    boxes = dict.fromkeys(("grad_out", "input"), (*rows, *columns))
    boxes |= dict.fromkeys(("mean", "rstd"), (*rows, *((0, 1),) * inner))
    boxes |= {name: columns for name in ("weight", "bias") if bound[name] is not None}
    settings = {
        "normalized_shape": [high - low for low, high in columns],
        "output_mask": [wanted and at == output for at, wanted in enumerate(bound["output_mask"])],
    }
    return Slice(boxes, {output: box if output else (*rows, *columns)}, settings=settings)


def worst_row(bound: dict[str, Any]) -> int:
    """Returns the row of a layer norm's input of which its bound is made: that with the largest error of its deviation.

    Args:
        bound: The operands by name; `input` of any floating type.
    """
    x, shape, eps = bound["input"], bound["normalized_shape"], bound["eps"]
    inner = len(shape)
    wide = x.to(torch.float64 if x.dtype is torch.float32 else torch.float32)
    rstd = torch.ops.aten.native_layer_norm.default(wide, shape, None, None, eps)[2]
    squares = reductions.squares(x, list(range(x.dim() - inner, x.dim())))
    return int((rstd.double().square() * squares.view(rstd.shape).double()).reshape(-1).argmax())
