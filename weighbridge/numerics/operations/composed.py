"""Operations that are a fixed sequence of others, each under its own rule, and stand on a tape as one.

What such an operation means is its function in `batch_norm`, whose sums are rounded and may be logged, while all else
is exact. Loops evaluate it on the CPU. Elsewhere, PyTorch's operations do so one after the other, which gives the same
bits. Only sums and results have a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.arrays.physical import flat, is_dense, lay_out
from weighbridge.numerics.operations import batch_norm_loops
from weighbridge.numerics.operations.batch_norm_loops import Exact, Sum
from weighbridge.numerics.rewrites import batch_norm
from weighbridge.numerics.rule_table import known
from weighbridge.numerics.schemas import Op, composite

Tensor = torch.Tensor
Evaluate = Callable[[Op, Sequence[Any], dict[str, Any]], Any]


class _Steps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, operations are evaluated by a function."""

    def __init__(self, evaluate: Evaluate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._evaluate = evaluate

    def __torch_dispatch__(self, func: Op, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not known(func) and composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return self._evaluate(func, args, kwargs or {})


def _fits(bound: dict[str, Any], training: bool) -> bool:
    """True if all operands that count are there, are float32 and have one number a channel of the input."""
    x, grad = bound["input"], bound.get("grad_out")
    running = [bound.get("running_mean"), bound.get("running_var")]
    needed = running if not training else [] if grad is None else [bound["save_mean"], bound["save_invstd"]]
    perhaps = [bound["weight"], bound.get("bias"), *(running if training and grad is None else ())]
    if x.dim() < 2 or any(v is None for v in needed):
        return False
    whole, vectors = [v for v in (x, grad) if v is not None], [v for v in (*needed, *perhaps) if v is not None]
    return all(v.dtype == torch.float32 for v in (*whole, *vectors)) and (
        all(v.shape == x.shape for v in whole) and all(v.shape == x.shape[1:2] for v in vectors)
    )


def _account(exact: Exact, result: Tensor) -> Tensor:
    """Makes the NaN of a result canonical and accounts for its checksum; returns it."""
    temporary = result if is_dense(result) else result.contiguous()
    if result.numel():
        exact(flat(temporary))
    return result if temporary is result else result.copy_(temporary)


def _by_steps(bound: dict[str, Any], training: bool, step: Evaluate, exact: Exact) -> tuple[Any, ...]:
    """The same out of PyTorch operations, for any device and operands."""
    x = bound["input"]
    like = torch.empty_like(x.contiguous(memory_format=suggest_memory_format(x)), device="meta")
    if "grad_out" in bound:
        with _Steps(step):
            grad_x, along, total = batch_norm.backward(*bound.values())
        grad_x = None if grad_x is None else _account(exact, lay_out(grad_x, like.stride()))
        return grad_x, None if along is None else _account(exact, along), total  # which is a sum as it was rounded
    running = bound.get("running_mean"), bound.get("running_var")
    with _Steps(step):
        out, *saved = batch_norm.forward(
            x, bound["weight"], bound["bias"], *running, training, bound["momentum"], bound["eps"]
        )
    out = _account(exact, lay_out(out, like.stride()))
    for result in (*saved, *(running if training else ())):
        if result is not None:
            _account(exact, result)
    return out, *saved


def evaluate(
    op: Op, bound: dict[str, Any], *, step: Evaluate, summed: Sum, exact: Exact, loop: bool = True
) -> tuple[Any, ...]:
    """Evaluates batch normalisation or its gradient on float32 operands.

    Args:
        op: An overload whose rule is `composed`.
        bound: Operands by schema name, all of them.
        step: Evaluates an operation under its rule, without accounting for exact results.
        summed: Rounds sums.
        exact: Gets results, and their checksums if they are canonical already (`Context.exact`).
        loop: Whether the loops may be used; without them, PyTorch's operations are.

    Returns:
        What the operation returns.

    Raises:
        RefusedOperationError: If an operand is not float32 or has another shape.
    """
    training = bound.get("training", bound.get("train", False))
    if not _fits(bound, training):
        raise RefusedOperationError(
            f"{op} on these operands has no rule: they differ in type or size, or one is missing", operation=str(op)
        )
    if not loop or not batch_norm_loops.walks(bound):
        return _by_steps(bound, training, step, exact)
    if "grad_out" in bound:
        return batch_norm_loops.backward(bound, summed, exact)
    return batch_norm_loops.forward(bound, training, summed, exact)
