"""Collectives of process groups: what each `c10d` operation exchanges, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prover.ranks.collective_recorder import CollectiveRecorder, group_of, pieces, reduction_of, split
from weighbridge.core.errors import RefusedOperationError

Tensor = torch.Tensor
Operands = dict[str, Any]


def _allreduce(c: CollectiveRecorder, b: Operands) -> Any:
    group, reduction = group_of(b["process_group"]), reduction_of(b["reduce_op"])
    if b.get("sparse_indices") is not None:
        raise RefusedOperationError("an all-reduce of sparse tensors has no rule; use dense gradients")
    for t in b["tensors"]:
        c.record("all_reduce", group, [t], [t], reduction)
    return b["tensors"], c.done(b["tensors"][0])


def _allreduce_coalesced(c: CollectiveRecorder, b: Operands) -> Any:
    return _allreduce(c, b)[1]


def _reduce(c: CollectiveRecorder, b: Operands) -> Any:
    group, root = group_of(b["process_group"]), b["root_rank"]
    for t in b["tensors"]:
        c.record("reduce", group, [t] if group.rank() == root else [], [t], reduction_of(b["reduce_op"]), root)
    return c.done()


def _broadcast(c: CollectiveRecorder, b: Operands) -> Any:
    group, root = group_of(b["process_group"]), b["root_rank"]
    for t in b["tensors"]:
        c.record("broadcast", group, [t], [t] if group.rank() == root else [], root=root)
    return b["tensors"], c.done()


def _allgather(c: CollectiveRecorder, b: Operands) -> Any:
    group = group_of(b["process_group"])
    for outs, t in zip(b["output_tensors"], b["input_tensors"], strict=True):
        c.record("all_gather", group, outs, [t])
    return b["output_tensors"], c.done()


def _allgather_base(c: CollectiveRecorder, b: Operands) -> Any:
    group, out = group_of(b["process_group"]), b["output_tensor"]
    c.record("all_gather", group, split(out, group.size()), [b["input_tensor"]])
    return out, c.done()


def _allgather_many(c: CollectiveRecorder, b: Operands) -> Any:
    group = group_of(b["process_group"])
    for out, t in zip(b["outputs"], b["inputs"], strict=True):
        c.record("all_gather", group, split(out, group.size()), [t])
    return c.done()


def _reduce_scatter(c: CollectiveRecorder, b: Operands) -> Any:
    group, reduction = group_of(b["process_group"]), reduction_of(b["reduce_op"])
    for out, ins in zip(b["output_tensors"], b["input_tensors"], strict=True):
        c.record("reduce_scatter", group, [out], ins, reduction)
    return b["output_tensors"], c.done()


def _reduce_scatter_base(c: CollectiveRecorder, b: Operands) -> Any:
    group, out = group_of(b["process_group"]), b["output_tensor"]
    c.record("reduce_scatter", group, [out], split(b["input_tensor"], group.size()), reduction_of(b["reduce_op"]))
    return out, c.done()


def _reduce_scatter_many(c: CollectiveRecorder, b: Operands) -> Any:
    group, reduction = group_of(b["process_group"]), reduction_of(b["reduce_op"])
    for out, t in zip(b["outputs"], b["inputs"], strict=True):
        c.record("reduce_scatter", group, [out], split(t, group.size()), reduction)
    return c.done()


def _gather(c: CollectiveRecorder, b: Operands) -> Any:
    group, root = group_of(b["process_group"]), b["root_rank"]
    outs = b["output_tensors"][0] if group.rank() == root else []
    c.record("gather", group, outs, b["input_tensors"], root=root)
    return c.done()


def _scatter(c: CollectiveRecorder, b: Operands) -> Any:
    group, root = group_of(b["process_group"]), b["root_rank"]
    ins = b["input_tensors"][0] if group.rank() == root else []
    c.record("scatter", group, b["output_tensors"], ins, root=root)
    return b["output_tensors"], c.done()


def _alltoall(c: CollectiveRecorder, b: Operands) -> Any:
    group = group_of(b["process_group"])
    c.record("all_to_all", group, b["output_tensors"], b["input_tensors"])
    return b["output_tensors"], c.done()


def _alltoall_base(c: CollectiveRecorder, b: Operands) -> Any:
    group, out = group_of(b["process_group"]), b["output"]
    members = group.size()
    outs = pieces(out, b["output_split_sizes"], members)
    c.record("all_to_all", group, outs, pieces(b["input"], b["input_split_sizes"], members))
    return c.done()


def _send(c: CollectiveRecorder, b: Operands) -> Any:
    return c.send(b["tensors"][0], group_of(b["process_group"]), b["dst"], b["tag"])


def _recv(c: CollectiveRecorder, b: Operands) -> Any:
    return c.receive(b["tensors"][0], group_of(b["process_group"]), b["src"], b["tag"])


CALLS: dict[str, Callable[[CollectiveRecorder, Operands], Any]] = {
    "allreduce_": _allreduce, "allreduce_coalesced_": _allreduce_coalesced, "reduce_": _reduce,
    "broadcast_": _broadcast, "allgather_": _allgather, "_allgather_base_": _allgather_base,
    "allgather_into_tensor_coalesced_": _allgather_many, "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base, "reduce_scatter_tensor_coalesced_": _reduce_scatter_many,
    "gather_": _gather, "scatter_": _scatter, "alltoall_": _alltoall, "alltoall_base_": _alltoall_base,
    "send": _send, "recv_": _recv,
}  # fmt: skip
