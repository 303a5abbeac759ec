"""Training computed wide operation by operation, and next to nothing else: the least that an eager recorder pays.

Each operation with a rounded rule gets its operands in float64 and its result cast back to float32, under a dispatch
mode as the Recorder has one, with the Recorder's decompositions and randomness. There is no bound, no search for
contested roundings, no checksum, no log, no tape, no state. `Noted` adds what no transcript can do without: which
operation ran on what memory, and a checksum of its results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.core.host_memory import array_of
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rounding import cpu_kernels
from weighbridge.numerics.rule_table import Kind, find, known
from weighbridge.numerics.schemas import Op, bind, composite, mutated

Tensor = torch.Tensor


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.float64) if value.dtype == torch.float32 else value
    if isinstance(value, (list, tuple)):
        return [_wide(v) for v in value]
    return torch.float64 if value is torch.float32 else value


def _narrow(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.float32) if value.dtype == torch.float64 else value
    return type(value)(_narrow(v) for v in value) if isinstance(value, (list, tuple)) else value


class Bare(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, float32 operations that a Recorder would round are computed in float64 and cast back."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._context = Recording(seed, Generators())

    def __torch_dispatch__(self, func: Op, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":
            return func(*args, **kwargs)
        replacement, unless = decompositions.find(func), decompositions.unless(func)
        if replacement is not None and not (unless is not None and unless(*args, **kwargs)):
            with self:
                replaced = replacement(*args, **kwargs)
            if replaced is not NotImplemented:
                return replaced
        elif not known(func) and composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        return self._compute(func, args, kwargs)

    def _compute(self, func: Op, args: Any, kwargs: Any) -> Any:
        bound = bind(func, args, kwargs)
        kind = find(func, bound).kind
        if kind is Kind.RANDOM:
            return evaluate(func, args, kwargs, self._context)
        if kind not in (Kind.ROUNDED, Kind.COMPOSED):
            return func(*args, **kwargs)
        wide = _wide(args), {k: _wide(v) for k, v in kwargs.items()}
        out = func(*wide[0], **wide[1])
        named = {**bind(func, wide[0], {}), **wide[1]}
        for name in mutated(func):
            if isinstance(bound[name], Tensor) and bound[name].dtype == torch.float32:
                bound[name].copy_(named[name])
                out = bound[name] if isinstance(out, Tensor) else out
        return _narrow(out)


class Noted(Bare):
    """The same, with the name of each operation, where its operands and results lie, and checksums of the results."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.notes: list[tuple[str, list[Any], list[Any]]] = []
        self.checksums: list[int] = []

    def _compute(self, func: Op, args: Any, kwargs: Any) -> Any:
        operands = [_place(v) for v in (*args, *kwargs.values())]
        out = super()._compute(func, args, kwargs)
        results = list(out) if isinstance(out, (list, tuple)) else [out]
        self.notes.append((func._name, operands, [_place(t) for t in results]))
        if find(func, bind(func, args, kwargs)).kind not in (Kind.VIEW, Kind.MOVE):
            self.checksums += [_checksum(t) for t in results if isinstance(t, Tensor) and t.dtype == torch.float32]
        return out


def _checksum(t: Tensor) -> int:
    dense = t if t.is_contiguous() else t.contiguous()
    return int(cpu_kernels.pass_exact(array_of(dense).view(np.uint32)))


def _place(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.untyped_storage()._cdata, value.dtype, value.shape, value.stride(), value.storage_offset()
    return [_place(v) for v in value] if isinstance(value, (list, tuple)) else value
