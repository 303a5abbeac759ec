"""What the schema of an overload says: its operands by name, which of them it changes, and of what it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weighbridge.numerics.overload_cache import per_op

Op = torch._ops.OpOverload


@per_op
def argument_names(op: Op) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the names of an overload's operands, and what they are where a call leaves them out."""
    arguments = op._schema.arguments
    return tuple(a.name for a in arguments), {a.name: a.default_value for a in arguments}


def bind(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the operands of a call by schema name, defaults filled in."""
    names, defaults = argument_names(op)
    bound = defaults.copy()
    bound.update(zip(names, args, strict=False))
    if kwargs:
        bound.update(kwargs)
    return bound


@per_op
def needed(op: Op) -> tuple[str, ...]:
    """Returns the names of the operands that no call may leave out."""
    return tuple(a.name for a in op._schema.arguments if not a.has_default_value())


@per_op
def mutated(op: Op) -> tuple[str, ...]:
    """Returns the names of the operands that an overload changes."""
    return tuple(a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


@per_op
def writes_out(op: Op) -> bool:
    """True for an `out=` form: recorded as its functional form and a copy, because kernels trust `out` too far."""
    return any(a.is_out for a in op._schema.arguments)


@per_op
def composite(op: Op) -> bool:
    """True for an operation that PyTorch defines by others, for every device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeImplicitAutograd")
