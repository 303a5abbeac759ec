"""Vendor and composite overloads, rewritten into overloads that have rules.

A decomposition is called with the operands of the original and dispatches the replacements itself, so each of them is
recorded, rounded and replayed on its own. What is decomposed never reaches a tape. Operands that need no decomposition
are told apart before it is called (`rewrite_table.UNLESS`), or by it: then it returns NotImplemented.
"""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.overload_cache import forget, per_op
from weighbridge.numerics.rewrites import (  # noqa: F401 (they enter the table)
    activations,
    alignment,
    arithmetic,
    bags,
    batch_norm,
    factorisations,
    forms,
    from_torch,
    grids,
    indexing,
    margin_losses,
    normalisations,
    optimizers,
    ordering,
    products,
    quantisation,
    recurrent_cells,
    reflections,
    samplers,
    single_precision,
    windows,
)
from weighbridge.numerics.rewrites.rewrite_table import TABLE, UNLESS, Condition, Decomposition
from weighbridge.numerics.rule_table import known
from weighbridge.numerics.schemas import Op, composite, writes_out

aten = torch.ops.aten
Tensor = torch.Tensor


CONDITIONAL = frozenset(
    {"add", "add_", "sub", "sub_", "rsub", "pow", "tanh_backward", "sigmoid_backward", "native_layer_norm",
     "native_layer_norm_backward", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
     "native_batch_norm_backward", "lerp", "lerp_", "addcmul", "addcmul_", "addcdiv", "addcdiv_"}
)  # fmt: skip  # fmt: skip
"""Decomposed for some operands only, and ruled for the others."""


@per_op
def find(op: Op) -> Decomposition | None:
    """Returns the decomposition of an overload, or None."""
    own = _own(op)
    if own is not None or not op._schema.name.startswith("aten::") or (known(op) and not writes_out(op)):
        return own
    other = forms.counterpart(op)
    # A functional form rests on an in-place one only if that has a line of its own; the two would wait for each other.
    if other is None or not (supported(other) if forms.is_variant(op) else _own(other) is not None or known(other)):
        return None
    return forms.by_counterpart(op, other)


@per_op
def unless(op: Op) -> Condition | None:
    """Returns what tells for which operands an overload is not decomposed although it has a decomposition, or None."""
    function = find(op)
    return None if function is None else UNLESS.get(function)


def add(key: str, function: Decomposition) -> None:
    """Enters a decomposition for `library::name.overload` at run time."""
    TABLE[key] = function
    forget()


def _own(op: Op) -> Decomposition | None:
    name = op._schema.name.removeprefix("aten::")
    exact = TABLE.get(f"{name}.{op._overloadname or 'default'}")
    if exact is None and name.startswith("_foreach_"):
        return _foreach(name, op._overloadname)
    return exact


def supported(op: Op) -> bool:
    """True for an overload that has a rule (if only to refuse it), a decomposition, or one by PyTorch itself."""
    return known(op) or find(op) is not None or composite(op)


_FOREACH_RENAMES = {"norm": "linalg_vector_norm", "zero": "zero", "copy": "copy", "lerp": "lerp"}


def _foreach(name: str, overload: str) -> Decomposition | None:
    """Turns `_foreach_op(lists, ...)` into one `op` per element."""
    base = name[len("_foreach_") :]
    inplace = base.endswith("_")
    base = base.rstrip("_")
    target = _FOREACH_RENAMES.get(base, base) + ("_" if inplace else "")
    if not hasattr(aten, target):
        target = base  # maximum and minimum have no in-place form of their own
    if not hasattr(aten, target):
        return None
    packet = getattr(aten, target)

    def run(*args: Any, **kwargs: Any) -> list[Any] | None:
        length = len(args[0])

        def at(value: Any, i: int) -> Any:
            return value[i] if isinstance(value, (list, tuple)) and len(value) == length else value

        results = []
        for i in range(length):
            own = [at(v, i) for v in args]
            extra = {k: at(v, i) for k, v in kwargs.items() if v is not None}
            if base == "copy":
                extra.pop("non_blocking", None)
            if base in ("addcmul", "addcdiv") and len(own) == 4:
                extra["value"] = own.pop()
                if isinstance(extra["value"], Tensor):
                    extra["value"] = extra["value"].item()
            result = packet(*own, **extra)
            if inplace and result is not own[0]:
                own[0].copy_(result)
            results.append(result)
        return None if inplace else results

    return run
