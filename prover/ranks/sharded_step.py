"""Records what a rank's step does beside ordinary operations.

Collectives, random filling of `DTensor`s, storages that FSDP2 resizes without going through the dispatcher, its own
operators, and small tensors that PyTorch's C++ code fills by itself (docs/sharding.md, "Rules").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import _disable_current_modes

from prover.capture.group_uses import GroupUse
from prover.capture.step_capture import Capture
from prover.capture.without_modes import storage_bytes
from prover.ranks import collective_calls
from prover.ranks.collective_recorder import CollectiveRecorder
from prover.ranks.exchange import Exchange
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rule_table import Kind, find, known
from weighbridge.numerics.schemas import Op
from weighbridge.transcript.tape import RESIZE, Node

Tensor = torch.Tensor
aten = torch.ops.aten

_BLANK_ELEMENTS = 4096
"""Longest tensor whose hidden content becomes numbers of the program."""


class ShardedStep:
    """One step of a rank: takes from the capture what only programs on several ranks do."""

    def __init__(self, exchange: Exchange, capture: Capture) -> None:
        self._capture = capture
        self._collectives = CollectiveRecorder(exchange, capture)
        self._blank: dict[int, torch.dtype] = {}
        self._distributes = False

    @property
    def uses(self) -> list[GroupUse]:
        """See `prover.capture.step_capture.Ranks`."""
        return self._collectives.uses

    @property
    def hindrance(self) -> str | None:
        """See `prover.capture.step_capture.Ranks`."""
        if self._collectives.waits:
            return "it waits at a barrier, which no tape has and other ranks would wait for; wait outside of it"
        if self._distributes:
            return (
                "it computes with DTensors, as FSDP2 and tensor parallelism do, of which nothing tells where they lie"
            )
        return None

    def take(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records an operation and returns its result, or `NotImplemented`."""
        if any(issubclass(t, DTensor) for t in types):
            self._distributes = True
            return self._fill(func, args, kwargs)
        if any(issubclass(t, FakeTensor) for t in types):
            return NotImplemented
        if self._blank:
            self._reveal((args, kwargs))
        if func.namespace in collective_calls.NAMESPACES:
            return collective_calls.run(self._collectives, func, args, kwargs)
        if func is aten.empty.memory_format and _countable(out := self._capture.record(func, args, kwargs)):
            self._blank[out.untyped_storage()._cdata] = out.dtype
            return out
        return out if func is aten.empty.memory_format else NotImplemented

    # -- DTensor -------------------------------------------------------------------------------------------------------

    def _fill(self, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        """Fills a `DTensor` at random as the unsharded tensor would be filled, and keeps the own part."""
        target = args[0] if args else None
        if not known(func) or not isinstance(target, DTensor) or find(func, {}).kind is not Kind.RANDOM:
            return NotImplemented
        if not func._schema.name.endswith("_") or any(isinstance(v, DTensor) for v in (*args[1:], *kwargs.values())):
            raise RefusedOperationError(
                f"{func} of a DTensor has no rule; fill an empty one in place (normal_, uniform_, bernoulli_)",
                operation=str(func),
            )
        if any(placement.is_partial() for placement in target.placements):
            raise RefusedOperationError(f"{func} of a DTensor with partial sums has no rule", operation=str(func))
        sizes, offsets = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
        local = target._local_tensor
        with self._capture:
            whole = torch.empty(tuple(target.shape), dtype=local.dtype, device=local.device)
            func(whole, *args[1:], **kwargs)
            for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
                whole = whole.narrow(dim, offset if size else 0, size)
            local.copy_(whole)
        return target

    # -- memory --------------------------------------------------------------------------------------------------------

    def _reveal(self, operands: Any) -> None:
        """Records what C++ code wrote to a new tensor without an operation, before something reads it."""
        for t in _tensors(operands):
            storage = t.untyped_storage()
            dtype = self._blank.pop(storage._cdata, None)
            if dtype is None or not storage_bytes(storage).any():
                continue
            whole = torch.empty(0, dtype=dtype).set_(storage)
            for index, value in enumerate(whole.tolist()):
                element = torch.empty(0, dtype=dtype).set_(storage, index, (), ())
                self._capture.record(aten.fill_.Scalar, (element, value), {})

    @contextmanager
    def resizes(self) -> Iterator[None]:
        """Records resizing of storages in place, which reaches no dispatcher."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            before = storage.nbytes()
            if before != size:
                with _disable_current_modes():
                    self._resize(storage, int(size), original)
            return storage

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]

    def _resize(self, storage: torch.UntypedStorage, size: int, original: Any) -> None:
        capture, before = self._capture, storage.nbytes()
        nothing = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (0,), (1,))
        encoded = capture.encode(nothing, False)
        capture.context.begin(len(capture.tape.nodes))
        original(storage, size)
        if size > before:
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[before:].zero_()
        capture.tape.nodes.append(Node(RESIZE, (encoded, size), {}, (), (), None, capture.module_path()))
        capture.written.add(capture.slots[storage._cdata])
        capture.owner.resized(storage._cdata, size)


def _countable(t: Tensor) -> bool:
    """Whether a tensor is one that C++ code may fill element by element: small, of integers, in host memory."""
    whole = not t.dtype.is_floating_point and not t.dtype.is_complex and t.dtype is not torch.bool
    return whole and t.device.type == "cpu" and 0 < t.numel() <= _BLANK_ELEMENTS


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


# -- FSDP2's own operators, by ordinary ones ---------------------------------------------------------------------------


def _copy_in(
    inputs: Sequence[Tensor], output: Tensor, sizes: Sequence[int], numel: int, rank: int
) -> tuple[Tensor, Tensor]:
    own = output.narrow(0, numel * rank, numel)
    for target, source in zip(torch.split(own, list(sizes)), inputs, strict=True):
        target.copy_(source)
    return own, output


def _split_copy(source: Tensor, sizes: Sequence[int], dim: int = 0, *, out: Sequence[Tensor]) -> None:
    for target, part in zip(out, torch.split(source, list(sizes), dim), strict=True):
        target.copy_(part)


def _chunk_cat(tensors: Sequence[Tensor], dim: int, chunks: int, *, out: Tensor) -> None:
    if dim != 0 or out.dim() != 2 or out.shape[0] != chunks:
        raise RefusedOperationError("chunk_cat has a rule for rows only; shard along dimension 0")
    at = 0
    for t in tensors:
        rows, inner = -(-t.shape[0] // chunks), t[0].numel() if t.shape[0] else 0
        flat, width = t.reshape(-1), rows * inner
        for i in range(chunks):
            part = flat[i * width : (i + 1) * width]
            out[i, at : at + part.numel()].copy_(part)
            out[i, at + part.numel() : at + width].zero_()
        at += width


def _copy(target: Tensor, data: Tensor) -> None:
    target.copy_(data)


for _name, _function in (
    ("all_gather_copy_in", _copy_in), ("split_with_sizes_copy", _split_copy), ("chunk_cat", _chunk_cat),
    ("copy_", _copy),
):  # fmt: skip
    decompositions.add(f"fsdp::{_name}.default", _function)
