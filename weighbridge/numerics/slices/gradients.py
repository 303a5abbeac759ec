"""Parts of the gradients of a convolution.

Spatial dimensions are read whole. The gradient of the input is made for some of the batch and some channels, that of
the weight for some filters and some channels of theirs; within one group, or for whole groups.
"""

from __future__ import annotations

from typing import Any

from weighbridge.numerics.arrays.windows import Box
from weighbridge.numerics.slices.parts import Slice, all_of

_Range = tuple[int, int]


def convolution(bound: dict[str, Any], output: int, box: Box) -> Slice | None:
    """Returns what makes a part of one gradient.

    Args:
        bound: Operands of `convolution_backward` by name.
        output: 0 for the gradient of the input, 1 of the weight, 2 of the bias.
        box: Of that gradient.
    """
    grad, x, w, groups = bound["grad_output"].shape, bound["input"].shape, bound["weight"].shape, bound["groups"]
    if not len(grad) == len(x) == len(w) > 2 or groups < 1 or grad[1] % groups or x[1] % groups:
        return None
    into, outof = x[1] // groups, grad[1] // groups  # channels of a group
    if tuple(w[:2]) != ((x[1], outof) if bound["transposed"] else (grad[1], into)):
        return None
    everywhere, taps = all_of(grad[2:]), all_of(w[2:])
    batch: _Range = (0, int(x[0]))
    if output == 0:
        batch = box[0]
        these, channels, count = _grouped(box[1], into)
        inner: _Range = (these[0] * outof, these[1] * outof)
        made: Box = (batch, channels, *all_of(x[2:]))
        filters = _filters(bound["transposed"], channels, inner, these, into, outof)
    elif output == 1:
        first, second = box[0], box[1]
        each, rest = (into, outof) if bound["transposed"] else (outof, into)
        these, first, count = _grouped(first, each)
        other = (these[0] * rest + second[0], these[0] * rest + second[1])
        if count > 1:
            second, other = (0, int(w[1])), (these[0] * rest, these[1] * rest)
        channels, inner = (first, other) if bound["transposed"] else (other, first)
        made, filters = (first, second, *taps), (first, second)
    else:
        these, inner, count = _grouped(box[0], outof)
        made, channels = (inner,), (these[0] * into, these[1] * into)
        filters = _filters(bound["transposed"], channels, inner, these, into, outof)
    operands: dict[str, Box] = {
        "grad_output": (batch, inner, *everywhere), "input": (batch, channels, *all_of(x[2:])),
        "weight": (*filters, *taps),
    }  # fmt: skip
    read = (("grad_output", "weight"), ("grad_output", "input"), ("grad_output",))[output]
    settings = {
        "groups": count, "output_mask": [at == output for at in range(3)],
        "bias_sizes": [inner[1] - inner[0]] if output == 2 else None,
    }  # fmt: skip
    blank = {name: part for name, part in operands.items() if name not in read}
    return Slice({name: operands[name] for name in read}, {output: made}, settings=settings, blank=blank)


def _grouped(channels: _Range, each: int) -> tuple[_Range, _Range, int]:
    """Returns the groups of a range of channels, the range (whole groups if there are several), and how many."""
    low, high = channels
    these = (low // each, (high - 1) // each + 1)
    count = these[1] - these[0]
    return these, channels if count == 1 else (these[0] * each, these[1] * each), count


def _filters(transposed: bool, channels: _Range, inner: _Range, these: _Range, into: int, outof: int) -> Box:
    """Returns the filters, and the channels of theirs, that join channels of the input with those of the result."""
    one = these[1] - these[0] == 1
    if transposed:
        start = these[0] * outof
        return (channels, (inner[0] - start, inner[1] - start) if one else (0, outof))
    start = these[0] * into
    return (inner, (channels[0] - start, channels[1] - start) if one else (0, into))
