"""Collectives as a program calls them: `c10d` operations on process groups, and functional ones by group name."""

from __future__ import annotations

from typing import Any

from prover.ranks import functional_calls, process_group_calls
from prover.ranks.collective_recorder import CollectiveRecorder
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.schemas import Op, bind

NAMESPACES = ("c10d", "_c10d_functional")

_PASSED = frozenset({"_wrap_tensor_autograd", "check_for_nan"})
"""What moves no data."""


def run(recorder: CollectiveRecorder, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
    """Records and performs a collective, and returns what PyTorch's would return.

    Raises:
        RefusedOperationError: It is of a kind that the design has no rule for.
    """
    name = func._schema.name.partition("::")[2]
    if name in _PASSED:
        return func(*args, **kwargs)
    if name in ("barrier", "monitored_barrier_"):
        recorder.waits = True
        work = func(*args, **kwargs)
        if work is not None:
            work.wait()
        return work
    handler = (process_group_calls if func.namespace == "c10d" else functional_calls).CALLS.get(name)
    if handler is None:
        raise RefusedOperationError(
            f"{func} has no rule; use all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send or recv",
            operation=str(func),
        )
    return handler(recorder, bind(func, args, kwargs))
