"""Functional collectives, which name their group: what each one exchanges, and the new tensor that it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prover.ranks.collective_recorder import CollectiveRecorder, group_of, pieces, reduction_of, split

Tensor = torch.Tensor
Operands = dict[str, Any]


def _all_reduce(c: CollectiveRecorder, b: Operands) -> Tensor:
    out = c.fresh(b["input"], b["input"].shape)
    c.record("all_reduce", group_of(b["group_name"]), [out], [b["input"]], reduction_of(b["reduce_op"]))
    return out


def _all_reduce_(c: CollectiveRecorder, b: Operands) -> Tensor:
    t: Tensor = b["input"]
    c.record("all_reduce", group_of(b["group_name"]), [t], [t], reduction_of(b["reduce_op"]))
    return t


def _all_gather(c: CollectiveRecorder, b: Operands) -> Tensor:
    t, group = b["input"], group_of(b["group_name"])
    out = b.get("out")
    if out is None:
        out = c.fresh(t, (t.shape[0] * group.size(), *t.shape[1:]) if t.dim() else (group.size(),))
    c.record("all_gather", group, split(out, group.size()), [t])
    return out


def _reduce_scatter(c: CollectiveRecorder, b: Operands) -> Tensor:
    t, group = b["input"], group_of(b["group_name"])
    out = b.get("out")
    if out is None:
        out = c.fresh(t, (t.shape[0] // group.size(), *t.shape[1:]))
    c.record("reduce_scatter", group, [out], split(t, group.size()), reduction_of(b["reduce_op"]))
    return out


def _all_to_all(c: CollectiveRecorder, b: Operands) -> Tensor:
    t, group = b["input"], group_of(b["group_name"])
    out = c.fresh(t, (sum(b["output_split_sizes"]), *t.shape[1:]))
    outs = pieces(out, b["output_split_sizes"], group.size())
    c.record("all_to_all", group, outs, pieces(t, b["input_split_sizes"], group.size()))
    return out


def _broadcast_(c: CollectiveRecorder, b: Operands) -> Tensor:
    t, group = b["input"], group_of(b["group_name"])
    c.record("broadcast", group, [t], [t] if group.rank() == b["src"] else [], root=b["src"])
    return t  # type: ignore[no-any-return]


def _broadcast(c: CollectiveRecorder, b: Operands) -> Tensor:
    t, group = b["input"], group_of(b["group_name"])
    out = c.fresh(t, t.shape)
    c.record("broadcast", group, [out], [t] if group.rank() == b["src"] else [], root=b["src"])
    return out


def _each(
    one: Callable[[CollectiveRecorder, Operands], Tensor],
) -> Callable[[CollectiveRecorder, Operands], list[Tensor]]:
    def many(c: CollectiveRecorder, b: Operands) -> list[Tensor]:
        return [one(c, {**b, "input": t}) for t in b["inputs"]]

    return many


CALLS: dict[str, Callable[[CollectiveRecorder, Operands], Any]] = {
    "all_reduce": _all_reduce, "all_reduce_": _all_reduce_, "all_reduce_coalesced": _each(_all_reduce),
    "all_reduce_coalesced_": _each(_all_reduce_), "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather, "all_gather_into_tensor_coalesced": _each(_all_gather),
    "reduce_scatter_tensor": _reduce_scatter, "reduce_scatter_tensor_out": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _each(_reduce_scatter), "all_to_all_single": _all_to_all,
    "broadcast": _broadcast, "broadcast_": _broadcast_, "wait_tensor": lambda c, b: b["tensor"],
}  # fmt: skip
