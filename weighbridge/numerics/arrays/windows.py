"""Which part of its operands a convolution reads for a part of its result, and with what settings it makes that part.

A part of an ordinary convolution is made from a window of the input with a halo. Where the window reaches over the
border, zeros are put there, as many as the whole would see, and the part is made without padding: a window may lie at
one border only, and padding is the same on both sides. A part of a transposed one is made from those places of the
input that reach it; its padding cuts off what else they reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Box = tuple[tuple[int, int], ...]
"""First index and last + 1, for each dimension."""
Shape = Sequence[int]
SETTINGS = ("stride", "padding", "dilation", "output_padding")


def widened(x: Shape, w: Shape, settings: dict[str, Any], shape: Shape, box: Box) -> Box:
    """Returns the part of the result that is computed for a box: whole groups of channels if it has several.

    A transposed convolution makes a dimension whole where what reaches the box lies at a border of the input.

    Args:
        x: Shape of the input.
        w: Shape of the weight.
        settings: Those of the convolution.
        shape: Of the result.
        box: Of the result.
    """
    each = shape[1] // settings["groups"]
    low, high = box[1]
    if low // each != (high - 1) // each:
        low, high = low // each * each, -(-high // each) * each
    spatial = list(box[2:])
    if settings["transposed"]:
        numbers = [setting(settings, name, len(spatial)) for name in SETTINGS]
        for d, (stride, padding, dilation, _) in enumerate(zip(*numbers, strict=True)):
            if _reaching(spatial[d], stride, padding, dilation * (w[2 + d] - 1), x[2 + d]) is None:
                spatial[d] = (0, shape[2 + d])
    return (box[0], (low, high), *spatial)


def part(
    x: Shape, w: Shape, settings: dict[str, Any], shape: Shape, box: Box
) -> tuple[Box, Box, Box, dict[str, Any]] | None:
    """Returns what makes a box of the result that was `widened`.

    Args:
        x: Shape of the input.
        w: Shape of the weight.
        settings: Those of the convolution.
        shape: Of the result.
        box: Of the result.

    Returns:
        The box of the input, zeros before and after it in each dimension, the box of the weight, and the settings;
        None if there is no such convolution, or if padding would make the part much larger than the input.
    """
    groups, transposed, count = settings["groups"], settings["transposed"], len(w) - 2
    if not len(x) == len(w) == len(shape) > 2 or not _sound(x, w, settings):
        return None
    each, (low, high) = shape[1] // groups, box[1]
    first, last = low // each, (high - 1) // each
    inner = x[1] // groups
    channels = (first * inner, (last + 1) * inner)
    taps = [(0, size) for size in w[2:]]
    if transposed:
        outer = (low - first * each, high - last * each)
        weight: Box = (channels, outer if first == last else (0, w[1]), *taps)
    else:
        weight = ((low, high), (0, w[1]), *taps)
    windows, zeros, paddings, more = [], [(0, 0), (0, 0)], [], []
    numbers = [setting(settings, name, count) for name in SETTINGS]
    for d, (stride, padding, dilation, output_padding) in enumerate(zip(*numbers, strict=True)):
        extent, length, where = dilation * (w[2 + d] - 1), x[2 + d], box[2 + d]
        if not transposed:
            start, stop = where[0] * stride - padding, (where[1] - 1) * stride - padding + extent + 1
            if stop - start > 4 * length + 64:
                return None
            there = min(max(start, 0), length), min(max(stop, 0), length)
            before = min(max(-start, 0), stop - start)
            windows.append(there)
            zeros.append((before, stop - start - before - (there[1] - there[0])))
            paddings.append(0)
            more.append(0)
            continue
        reached = _reaching(where, stride, padding, extent, length)
        zeros.append((0, 0))
        if reached is None:  # the whole dimension
            windows.append((0, length))
            paddings.append(padding)
            more.append(output_padding)
        else:
            window, cut, behind = reached
            windows.append(window)
            paddings.append(cut)
            more.append(behind)
    made = {"groups": last - first + 1, "padding": paddings, "output_padding": more}
    return (box[0], channels, *windows), tuple(zeros), weight, made


def _sound(x: Shape, w: Shape, settings: dict[str, Any]) -> bool:
    """Whether a convolution has such settings, and operands of such channels: kernels refuse others."""
    groups, transposed = settings["groups"], settings["transposed"]
    least = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
    if groups < 1 or w[0] % groups or x[1] != (w[0] if transposed else w[1] * groups):
        return False
    return all(len(settings[name]) in (1, len(w) - 2) and min(settings[name]) >= low for name, low in least.items())


def setting(settings: dict[str, Any], name: str, dimensions: int) -> list[int]:
    """Returns a setting for each dimension: one number alone is for all of them."""
    found = list(settings[name])
    return found if len(found) == dimensions else [found[0]] * dimensions


def _reaching(
    where: tuple[int, int], stride: int, padding: int, extent: int, length: int
) -> tuple[tuple[int, int], int, int] | None:
    """Returns which places of the input reach a part of a transposed convolution's result, in one dimension.

    Place i reaches i*stride - padding to i*stride - padding + extent.

    Returns:
        The places, how much of what they reach is cut off on both sides, and how much is added behind; None if the
        input has not all of these places.
    """
    first = (where[0] + padding - extent) // stride
    cut = where[0] + padding - first * stride
    rest = where[1] - where[0] - 1 + 2 * cut - extent
    count = rest // stride + 1
    if first < 0 or first + count > length:
        return None
    return (first, first + count), cut, rest % stride
