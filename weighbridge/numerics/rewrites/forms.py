"""The other forms of an overload: writing into `out=`, in place, or functionally where the in-place form came first.

Most forms share the rule of the functional overload by name (`rules.base_name`). What is here covers the rest by the
schema: a form is computed by its counterpart, whose rule or decomposition is then recorded, and the result is copied to
where the form puts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites.rewrite_table import Decomposition
from weighbridge.numerics.schemas import Op

aten = torch.ops.aten
Tensor = torch.Tensor
Signature = list[tuple[str, str]]


def _overloads(name: str) -> list[Op]:
    packet = getattr(aten, name, None)
    return [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []


def _signature(op: Op) -> Signature:
    """What an overload is called with, apart from where it writes."""
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


def _outs(op: Op) -> list[str]:
    return [a.name for a in op._schema.arguments if a.is_out]


_OPTIONS = ("dtype", "layout", "device", "pin_memory", "memory_format")
"""What a functional form that makes a tensor is told, and an `out=` form knows from its tensor."""


def _bare(signature: Signature) -> Signature:
    return [argument for argument in signature if argument[0] not in _OPTIONS]


def _written(op: Op) -> list[str]:
    """Operands, apart from `out=` ones, that an overload writes to."""
    return [a.name for a in op._schema.arguments if not a.is_out and a.alias_info is not None and a.alias_info.is_write]


def counterpart(op: Op) -> Op | None:
    """Returns the overload that computes the same under another form, or None.

    Args:
        op: An ATen overload with `out=` operands, or one in place whose name ends with an underscore, or a functional
            one that has only an in-place form beside it.

    Returns:
        The functional overload; for the last kind, the in-place one.
    """
    name, signature = op._schema.name.partition("::")[2], _signature(op)
    if _outs(op):
        others = _overloads(name)
        exact = next((o for o in others if _signature(o) == signature and not _outs(o)), None)
        return exact or next((o for o in others if not _outs(o) and _bare(_signature(o)) == _bare(signature)), None)
    elif name.endswith("_"):
        others = _overloads(name.rstrip("_"))
    else:
        return next((o for o in _overloads(f"{name}_") if _signature(o) == signature and not _outs(o)), None)
    return next((o for o in others if _signature(o) == signature and not _outs(o)), None)


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in _flat(v)] if isinstance(value, (list, tuple)) else []


def _put(op: Op, targets: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    for target, result in zip(targets, results, strict=True):
        if target.shape != result.shape:
            raise RefusedOperationError(
                f"{op} would resize its out= tensor from {tuple(target.shape)} to {tuple(result.shape)}; allocate it "
                "with the shape of the result",
                operation=str(op),
            )
        target.copy_(result)


def _into(op: Op, compute: Op) -> Decomposition:
    """The `out=` form: computes, then copies."""
    names, by_position = _outs(op), [a.name for a in op._schema.arguments]
    # What the computation does not write by itself (the fused optimizers' `out=` forms) it returns after the outputs.
    written = [] if _written(compute) else _written(op)
    asked = {a.name for a in compute._schema.arguments} - set(by_position)

    def run(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        bound = {**dict(zip(by_position, args, strict=False)), **kwargs}
        target = outs[0] if outs and isinstance(outs[0], Tensor) else None
        like = {name: getattr(target, name) for name in ("dtype", "device") if target is not None and name in asked}
        _put(op, _flat([*outs, *(bound[name] for name in written)]), _flat(compute(*args, **kwargs, **like)))
        if not op._schema.returns:
            return None
        return outs[0] if len(outs) == 1 else tuple(outs)

    return run


def _in_place(compute: Op) -> Decomposition:
    """The in-place form: computes, then copies over the first operand."""

    def run(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(compute(x, *args, **kwargs))

    return run


def _functional(op: Op, compute: Op) -> Decomposition:
    """The functional form of what is defined in place: works on copies and returns them."""
    names, written = [a.name for a in op._schema.arguments], _written(compute)

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in written:
            value = bound[name]
            bound[name] = value.clone() if isinstance(value, Tensor) else [t.clone() for t in value]
        compute(**bound)
        copies = [bound[name] for name in written]
        return copies[0] if len(copies) == 1 else tuple(copies)

    return run


def is_variant(op: Op) -> bool:
    """True for an overload that writes its result into an operand: an `out=` or in-place form."""
    return bool(_outs(op)) or op._schema.name.endswith("_")


def by_counterpart(op: Op, compute: Op) -> Decomposition:
    """Returns what computes an overload by its counterpart (see `counterpart`)."""
    if _outs(op):
        return _into(op, compute)
    return _in_place(compute) if is_variant(op) else _functional(op, compute)
