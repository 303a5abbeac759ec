"""Names dtypes that follow `torch.set_default_dtype` on the tape: in a replay the default is float32."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.schemas import Op

Tensor = torch.Tensor


def explicit(op: Op, args: Any, kwargs: dict[str, Any], default: torch.dtype) -> dict[str, Any]:
    """Names the type of a result that follows `torch.set_default_dtype`, which no tape says.

    Args:
        op: An overload.
        args: Its positional operands.
        kwargs: Its keyword operands.
        default: The default type, which is not float32.

    Returns:
        The keyword operands, with the type if it follows the default.

    Raises:
        RefusedOperationError: It does, and cannot be named.
    """
    flat = [v for value in (*args, *kwargs.values()) for v in (value if isinstance(value, (list, tuple)) else [value])]
    if kwargs.get("dtype") is not None or any(isinstance(v, Tensor) and v.is_floating_point() for v in flat):
        return kwargs
    with_default = _type_of_result(op, args, kwargs)
    torch.set_default_dtype(torch.float32)
    try:
        if with_default == _type_of_result(op, args, kwargs):
            return kwargs
    finally:
        torch.set_default_dtype(default)
    if any(a.name == "dtype" for a in op._schema.arguments):
        return {**kwargs, "dtype": with_default}
    raise RefusedOperationError(
        f"{op}: the type of its result follows torch.set_default_dtype(); convert its operand to a type first",
        operation=str(op),
    )


def _type_of_result(op: Op, args: Any, kwargs: dict[str, Any]) -> torch.dtype | None:
    """The type of what an operation returns, found without computing it; None where that says nothing."""
    skeleton = [v.to("meta") if isinstance(v, Tensor) else v for v in args]
    options = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in kwargs.items() if k != "generator"}
    names = {a.name for a in op._schema.arguments}
    if "device" in names:
        options["device"] = torch.device("meta")
    if "generator" in names:
        options["generator"] = None
    try:
        out = op(*skeleton, **options)
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # its result depends on content, as that of `nonzero`, and has a type of its own
    return out.dtype if isinstance(out, Tensor) else None
