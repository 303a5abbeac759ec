"""Which boxes of its operands a class of operations reads for a part of a result, one result at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weighbridge.numerics.arrays import windows
from weighbridge.numerics.arrays.windows import Box, Shape
from weighbridge.numerics.bounds import reduced
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op
from weighbridge.numerics.slices import gradients, norms
from weighbridge.numerics.slices.parts import Rows, Slice, all_of
from weighbridge.numerics.slices.table import Class, class_of

Tensor = torch.Tensor
Shapes = Sequence[Shape | None]
"""Shapes of the results, in the order in which they are returned; None for one that is not made."""

_PRODUCT = {
    "mm.default": ("self", "mat2"), "bmm.default": ("self", "mat2"), "addmm.default": ("mat1", "mat2"),
    "baddbmm.default": ("batch1", "batch2"),
}  # fmt: skip
_INDEXED = {
    "embedding.default": ("weight", "indices"), "index_select.default": ("self", "index"),
    "gather.default": ("self", "index"),
}  # fmt: skip


def slice_of(op: Op, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    """Returns what makes a part of the results in which a box of one of them lies.

    Args:
        op: The overload.
        bound: Its operands by name; of tensors only the shape matters.
        shapes: Of all results.
        output: Which result.
        box: Of that result.

    Returns:
        None if the operation has to be executed whole.
    """
    key = ".".join(base_name(op))
    name, shape = class_of(key), shapes[output]
    lists = any(isinstance(v, (list, tuple)) and any(isinstance(t, Tensor) for t in v) for v in bound.values())
    tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
    if name is None or not shape or lists or not tensors:
        return None
    found = _CUT[name](key, bound, shapes, output, box)
    if found is None:
        return None
    parts = found.boxes | found.blank
    if parts.keys() != tensors.keys() or any(not _within(bound[n].shape, part) for n, part in parts.items()):
        return None  # operands that do not fit each other are found out by executing the whole
    if any(shapes[at] is None or not _within(shapes[at] or (), part) for at, part in found.makes.items()):
        return None
    if found.rows is not None and bound[found.rows.index].dtype not in (torch.int32, torch.int64):
        return None
    return found


def _within(shape: Shape, box: Box) -> bool:
    return len(shape) == len(box) and all(0 <= a <= b <= size for (a, b), size in zip(box, shape, strict=True))


def _tensors(bound: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in bound.items() if isinstance(value, Tensor)}


def _element(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice:
    return Slice({name: _broadcast(tuple(t.shape), box) for name, t in _tensors(bound).items()}, {output: box})


def _row(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    """All results are made of the same rows, and shaped alike."""
    shape = shapes[output] or ()
    rows = _whole_along(shape, bound["dim"], box)
    tensors = _tensors(bound)
    alike = [tuple(each) for each in (*(t.shape for t in tensors.values()), *(s for s in shapes if s is not None))]
    if any(each != tuple(shape) for each in alike):
        return None
    return Slice(dict.fromkeys(tensors, rows), {at: rows for at, s in enumerate(shapes) if s is not None})


def _column(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    """What is written lies anywhere along `dim`, and in the other dimensions at its own place."""
    index, shape = bound["index"], shapes[output] or ()
    if len(index.shape) != len(shape):
        return None
    columns = _whole_along(shape, bound["dim"], box)
    dim = bound["dim"] % len(shape)
    named = tuple(
        (0, int(n)) if d == dim else (min(low, n), min(high, n))
        for d, ((low, high), n) in enumerate(zip(columns, index.shape, strict=True))
    )
    boxes = {name: columns if name == "self" else named for name in _tensors(bound)}
    counted = ("src", bound["src"].numel()) if key == "scatter_add.default" else None
    return Slice(boxes, {output: columns}, counted=counted)


def _product(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice:
    left, right = _PRODUCT[key]
    *outer, row, column = box
    inner = (0, int(bound[left].shape[-1]))
    boxes: dict[str, Box] = {left: (*outer, row, inner), right: (*outer, inner, column)}
    added = {n: _broadcast(tuple(t.shape), box) for n, t in _tensors(bound).items() if n not in boxes}
    return Slice(boxes | added, {output: box})


def _reduction(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    """A reduction reads whole what it reduces; without `keepdim`, the result lacks these dimensions."""
    shape = bound["self"].shape
    if len(_tensors(bound)) != 1 or not shape or bound["dim"] is None:
        return None
    over = {d % len(shape) for d in reduced(torch.empty(shape, device="meta"), bound["dim"])}
    rest = list(box)
    if bound["keepdim"]:
        rest = [part for d, part in enumerate(box) if d not in over]
    kept = iter(rest)
    read = tuple((0, int(size)) if d in over else next(kept) for d, size in enumerate(shape))
    return Slice({"self": read}, {at: box for at, each in enumerate(shapes) if each is not None})


def _index(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    table, index = _INDEXED[key]
    shape, named = bound[table].shape, bound[index].shape
    if not shape or not named:
        return None
    if key == "embedding.default":
        rows = Rows(table, 0, index, int(shape[0]))
        return Slice({table: ((0, int(shape[0])), box[-1]), index: box[:-1]}, {output: box}, rows=rows)
    if len(shape) != len(box):
        return None
    dim = bound["dim"] % len(shape)
    read = tuple((0, int(size)) if d == dim else part for d, (size, part) in enumerate(zip(shape, box, strict=True)))
    where = (box[dim],) if key == "index_select.default" else box
    return Slice({table: read, index: where}, {output: box}, rows=Rows(table, dim, index, int(shape[dim])))


def _place(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    """Rows are added up where an index says: all of the index is read, and those rows that it puts into the box."""
    source, shape = bound["source"], shapes[output] or ()
    dim = bound["dim"] % len(shape)
    if len(bound["index"].shape) != 1 or len(source.shape) != len(shape):
        return None
    read = tuple((0, int(source.shape[d])) if d == dim else part for d, part in enumerate(box))
    rows = Rows("source", dim, "index", int(shape[dim]), box[dim])
    boxes: dict[str, Box] = {"self": box, "index": all_of(bound["index"].shape), "source": read}
    return Slice(boxes, {output: box}, rows=rows, counted=("source", source.numel()))


def _window(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    if key == "convolution_backward.default":
        return gradients.convolution(bound, output, box)
    x, w, shape = bound["input"].shape, bound["weight"].shape, shapes[output] or ()
    box = windows.widened(x, w, bound, shape, box)
    found = windows.part(x, w, bound, shape, box)
    if found is None:
        return None
    there, zeros, filters, settings = found
    boxes: dict[str, Box] = {"input": there, "weight": filters}
    if isinstance(bound["bias"], Tensor):
        boxes["bias"] = (box[1],)
    return Slice(boxes, {output: box}, {"input": zeros}, settings)


def _plane(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    """Planes of a batch and of channels do not mix; a plane is read whole, and made whole."""
    spatial = _dimensions(key)
    outer = len(shapes[output] or ()) - spatial
    if outer < 1:
        return None
    tensors = _tensors(bound)
    if any(len(t.shape) != outer + spatial for t in tensors.values()):
        return None
    boxes = {name: (*box[:outer], *all_of(t.shape[outer:])) for name, t in tensors.items()}
    makes = {at: (*box[:outer], *all_of(s[outer:])) for at, s in enumerate(shapes) if s is not None}
    settings = {}
    if bound.get("input_size") is not None:
        settings["input_size"] = [high - low for low, high in box[:outer]] + list(bound["input_size"][outer:])
    return Slice(boxes, makes, settings=settings)


def _dimensions(key: str) -> int:
    return next(number for number in (1, 2, 3) if f"{number}d" in key)


def _norm(key: str, bound: dict[str, Any], shapes: Shapes, output: int, box: Box) -> Slice | None:
    cut = norms.forward if key == "native_layer_norm.default" else norms.backward
    return cut(bound, output, box)


def _whole_along(shape: Shape, dim: int, box: Box) -> Box:
    return tuple(
        (0, int(n)) if d == dim % len(shape) else part for d, (n, part) in enumerate(zip(shape, box, strict=True))
    )


def _broadcast(shape: tuple[int, ...], box: Box) -> Box:
    last = box[len(box) - len(shape) :]
    return tuple((0, 1) if size == 1 else part for size, part in zip(shape, last, strict=True))


_Cut = Callable[[str, dict[str, Any], Shapes, int, Box], Slice | None]
_CUT: dict[Class, _Cut] = {
    "element": _element, "row": _row, "column": _column, "product": _product, "reduction": _reduction, "index": _index,
    "place": _place, "window": _window, "plane": _plane, "norm": _norm,
}  # fmt: skip
