"""Collectives as the Recorder meets them: `c10d` operations on process groups, and functional ones by group name.

Whatever the form, it is recorded as one operation of the closed set of `weighbridge.numerics.exchanges`, and performed
by the Recorder's own exchange (`prover.job`), so that the result has one right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

from prover.job import Job
from weighbridge import collectives
from weighbridge.errors import RefusedOperationError
from weighbridge.numerics import exchanges
from weighbridge.numerics.evaluate import bind
from weighbridge.numerics.rules import Op
from weighbridge.tape import Node

if TYPE_CHECKING:
    from prover.capture import Capture

Tensor = torch.Tensor
Operands = dict[str, Any]

_BY_NAME: Callable[[Any], Any] = _resolve_process_group

NAMESPACES = ("c10d", "_c10d_functional")

# The numbers of c10d's enumeration of reductions, in the names that functional collectives use.
_BY_NUMBER = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


class Collectives:
    """Records the collectives of one step."""

    def __init__(self, job: Job, capture: Capture) -> None:
        self._job, self._capture = job, capture

    def run(self, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records and performs a collective, and returns what PyTorch's would return.

        Raises:
            RefusedOperationError: It is of a kind that the design has no rule for.
        """
        name = func._schema.name.partition("::")[2]
        if name in _PASSED:
            return func(*args, **kwargs)
        if name in ("barrier", "monitored_barrier_"):
            work = func(*args, **kwargs)
            if work is not None:
                work.wait()
            return work
        handler = (_C10D if func.namespace == "c10d" else _FUNCTIONAL).get(name)
        if handler is None:
            raise RefusedOperationError(
                f"{func} has no rule; use all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send or recv",
                operation=str(func),
            )
        return handler(self, bind(func, args, kwargs))

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(
        self, name: str, group: Any, outs: Sequence[Tensor], ins: Sequence[Tensor], reduction: str = "", root: int = 0
    ) -> None:
        """Puts a collective on the tape and performs it."""
        ranks = tuple(dist.get_process_group_ranks(group))

        def perform() -> None:
            self._job.exchange(group, name, outs, ins, reduction, root, 0)

        self._node(name, outs, ins, reduction, ranks, root, 0, perform)

    def _node(
        self, name: str, outs: Sequence[Tensor], ins: Sequence[Tensor], reduction: str, ranks: tuple[int, ...],
        root: int, tag: int, perform: Callable[[], None],
    ) -> None:  # fmt: skip
        capture, context = self._capture, self._capture.context
        encoded_ins, encoded_outs = capture._encode(list(ins), False), capture._encode(list(outs), False)
        op = len(capture.tape.nodes)
        context.begin(op)
        contributed = collectives.commit(ins)  # before the exchange, which may write to the same tensors
        capture._running = 1
        try:
            perform()
        finally:
            capture._running = 0
        if reduction:
            for out in outs:
                settle_result(out, context.exact)
        context.collectives.append((op, contributed, collectives.commit(outs)))
        args = (encoded_outs, encoded_ins, ("s", reduction), ("l", ranks), root, tag)
        capture.tape.nodes.append(Node(f"{collectives.PREFIX}{name}.default", args, {}, (), (), None, capture._path()))
        capture.owner.after_operation(capture)

    def send(self, tensor: Tensor, group: Any, place: int, tag: int) -> Any:
        """Records and sends a message; returns its `Work`."""
        ranks, work = dist.get_process_group_ranks(group), []
        pair = dist.get_rank(), ranks[place]
        self._node("send", [], [tensor], "", pair, 0, tag,
                   lambda: work.append(self._job.send(group, tensor, place, tag)))  # fmt: skip
        return work[0]

    def receive(self, tensor: Tensor, group: Any, place: int, tag: int) -> Any:
        """Receives a message and records it; returns a completed `Work`."""
        pair = dist.get_process_group_ranks(group)[place], dist.get_rank()
        self._node("recv", [tensor], [], "", pair, 0, tag,
                   lambda: self._job.exchange(group, "recv", [tensor], [], "", place, tag))  # fmt: skip
        return self.done()

    def done(self, reduced: Tensor | None = None) -> Any:
        """Returns a completed `Work`, with the tensor that DDP expects of an all-reduce."""
        return self._job.done(None if reduced is None else reduced.detach())

    def fresh(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Returns a new tensor for a functional collective, made by a recorded operation."""
        with self._capture:
            return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def settle_result(out: Tensor, exact: Callable[[Tensor], None]) -> None:
    """Accounts for the checksum of a reduced result, in row-major order."""
    if out.dtype in exchanges.CANONICAL and out.numel():
        flat = out.detach().contiguous().reshape(-1)
        exact(flat)


def _group(value: Any) -> Any:
    """The process group that an operation names: itself, as TorchScript object, or by name."""
    if isinstance(value, str):
        return _BY_NAME(value)
    return dist.ProcessGroup.unbox(value) if isinstance(value, torch.ScriptObject) else value


def _reduction(value: Any) -> str:
    """The name of a reduction that an operation names."""
    if isinstance(value, str):
        found = value.lower()
    else:
        try:
            number = int(value.op())
        except AttributeError:  # PyTorch 2.6
            raise RefusedOperationError(
                f"PyTorch {torch.__version__} does not tell which reduction a collective makes; record jobs on several "
                "ranks with a newer one (2.13 is tested)"
            ) from None
        found = _BY_NUMBER[number] if number < len(_BY_NUMBER) else f"number {number}"
    if found not in exchanges.REDUCTIONS:
        raise RefusedOperationError(f"the reduction {found} has no rule; use one of {', '.join(exchanges.REDUCTIONS)}")
    return found


def _split(t: Tensor, members: int) -> list[Tensor]:
    """The parts of a tensor, one for each member of a group."""
    t = t.detach()
    if t.is_contiguous() and t.numel() % members == 0:
        return list(torch.split(t.view(-1), t.numel() // members)) if t.numel() else [t.view(-1)] * members
    if not t.dim() or t.shape[0] % members:
        raise RefusedOperationError(f"a collective over {members} ranks cannot split a tensor of {tuple(t.shape)}")
    return list(torch.split(t, t.shape[0] // members))


def _pieces(t: Tensor, sizes: Sequence[int], members: int) -> list[Tensor]:
    """The parts of a tensor by sizes of its first dimension; equal parts without sizes."""
    return list(torch.split(t.detach(), list(sizes))) if len(sizes) else _split(t, members)


# -- c10d --------------------------------------------------------------------------------------------------------------


def _allreduce(c: Collectives, b: Operands) -> Any:
    group, reduction = _group(b["process_group"]), _reduction(b["reduce_op"])
    if b.get("sparse_indices") is not None:
        raise RefusedOperationError("an all-reduce of sparse tensors has no rule; use dense gradients")
    for t in b["tensors"]:
        c.record("all_reduce", group, [t], [t], reduction)
    return b["tensors"], c.done(b["tensors"][0])


def _allreduce_coalesced(c: Collectives, b: Operands) -> Any:
    return _allreduce(c, b)[1]


def _reduce(c: Collectives, b: Operands) -> Any:
    group, root = _group(b["process_group"]), b["root_rank"]
    for t in b["tensors"]:
        c.record("reduce", group, [t] if group.rank() == root else [], [t], _reduction(b["reduce_op"]), root)
    return c.done()


def _broadcast(c: Collectives, b: Operands) -> Any:
    group, root = _group(b["process_group"]), b["root_rank"]
    for t in b["tensors"]:
        c.record("broadcast", group, [t], [t] if group.rank() == root else [], root=root)
    return b["tensors"], c.done()


def _allgather(c: Collectives, b: Operands) -> Any:
    group = _group(b["process_group"])
    for outs, t in zip(b["output_tensors"], b["input_tensors"], strict=True):
        c.record("all_gather", group, outs, [t])
    return b["output_tensors"], c.done()


def _allgather_base(c: Collectives, b: Operands) -> Any:
    group, out = _group(b["process_group"]), b["output_tensor"]
    c.record("all_gather", group, _split(out, group.size()), [b["input_tensor"]])
    return out, c.done()


def _allgather_many(c: Collectives, b: Operands) -> Any:
    group = _group(b["process_group"])
    for out, t in zip(b["outputs"], b["inputs"], strict=True):
        c.record("all_gather", group, _split(out, group.size()), [t])
    return c.done()


def _reduce_scatter(c: Collectives, b: Operands) -> Any:
    group, reduction = _group(b["process_group"]), _reduction(b["reduce_op"])
    for out, ins in zip(b["output_tensors"], b["input_tensors"], strict=True):
        c.record("reduce_scatter", group, [out], ins, reduction)
    return b["output_tensors"], c.done()


def _reduce_scatter_base(c: Collectives, b: Operands) -> Any:
    group, out = _group(b["process_group"]), b["output_tensor"]
    c.record("reduce_scatter", group, [out], _split(b["input_tensor"], group.size()), _reduction(b["reduce_op"]))
    return out, c.done()


def _reduce_scatter_many(c: Collectives, b: Operands) -> Any:
    group, reduction = _group(b["process_group"]), _reduction(b["reduce_op"])
    for out, t in zip(b["outputs"], b["inputs"], strict=True):
        c.record("reduce_scatter", group, [out], _split(t, group.size()), reduction)
    return c.done()


def _gather(c: Collectives, b: Operands) -> Any:
    group, root = _group(b["process_group"]), b["root_rank"]
    outs = b["output_tensors"][0] if group.rank() == root else []
    c.record("gather", group, outs, b["input_tensors"], root=root)
    return c.done()


def _scatter(c: Collectives, b: Operands) -> Any:
    group, root = _group(b["process_group"]), b["root_rank"]
    ins = b["input_tensors"][0] if group.rank() == root else []
    c.record("scatter", group, b["output_tensors"], ins, root=root)
    return b["output_tensors"], c.done()


def _alltoall(c: Collectives, b: Operands) -> Any:
    group = _group(b["process_group"])
    c.record("all_to_all", group, b["output_tensors"], b["input_tensors"])
    return b["output_tensors"], c.done()


def _alltoall_base(c: Collectives, b: Operands) -> Any:
    group, out = _group(b["process_group"]), b["output"]
    members = group.size()
    outs = _pieces(out, b["output_split_sizes"], members)
    c.record("all_to_all", group, outs, _pieces(b["input"], b["input_split_sizes"], members))
    return c.done()


def _send(c: Collectives, b: Operands) -> Any:
    return c.send(b["tensors"][0], _group(b["process_group"]), b["dst"], b["tag"])


def _recv(c: Collectives, b: Operands) -> Any:
    return c.receive(b["tensors"][0], _group(b["process_group"]), b["src"], b["tag"])


_C10D: dict[str, Callable[[Collectives, Operands], Any]] = {
    "allreduce_": _allreduce, "allreduce_coalesced_": _allreduce_coalesced, "reduce_": _reduce,
    "broadcast_": _broadcast, "allgather_": _allgather, "_allgather_base_": _allgather_base,
    "allgather_into_tensor_coalesced_": _allgather_many, "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base, "reduce_scatter_tensor_coalesced_": _reduce_scatter_many,
    "gather_": _gather, "scatter_": _scatter, "alltoall_": _alltoall, "alltoall_base_": _alltoall_base,
    "send": _send, "recv_": _recv,
}  # fmt: skip


# -- functional --------------------------------------------------------------------------------------------------------


def _f_all_reduce(c: Collectives, b: Operands) -> Tensor:
    out = c.fresh(b["input"], b["input"].shape)
    c.record("all_reduce", _group(b["group_name"]), [out], [b["input"]], _reduction(b["reduce_op"]))
    return out


def _f_all_reduce_(c: Collectives, b: Operands) -> Tensor:
    t: Tensor = b["input"]
    c.record("all_reduce", _group(b["group_name"]), [t], [t], _reduction(b["reduce_op"]))
    return t


def _f_all_gather(c: Collectives, b: Operands) -> Tensor:
    t, group = b["input"], _group(b["group_name"])
    out = b.get("out")
    if out is None:
        out = c.fresh(t, (t.shape[0] * group.size(), *t.shape[1:]) if t.dim() else (group.size(),))
    c.record("all_gather", group, _split(out, group.size()), [t])
    return out


def _f_reduce_scatter(c: Collectives, b: Operands) -> Tensor:
    t, group = b["input"], _group(b["group_name"])
    out = b.get("out")
    if out is None:
        out = c.fresh(t, (t.shape[0] // group.size(), *t.shape[1:]))
    c.record("reduce_scatter", group, [out], _split(t, group.size()), _reduction(b["reduce_op"]))
    return out


def _f_all_to_all(c: Collectives, b: Operands) -> Tensor:
    t, group = b["input"], _group(b["group_name"])
    out = c.fresh(t, (sum(b["output_split_sizes"]), *t.shape[1:]))
    outs = _pieces(out, b["output_split_sizes"], group.size())
    c.record("all_to_all", group, outs, _pieces(t, b["input_split_sizes"], group.size()))
    return out


def _f_broadcast_(c: Collectives, b: Operands) -> Tensor:
    t, group = b["input"], _group(b["group_name"])
    c.record("broadcast", group, [t], [t] if group.rank() == b["src"] else [], root=b["src"])
    return t  # type: ignore[no-any-return]


def _f_broadcast(c: Collectives, b: Operands) -> Tensor:
    t, group = b["input"], _group(b["group_name"])
    out = c.fresh(t, t.shape)
    c.record("broadcast", group, [out], [t] if group.rank() == b["src"] else [], root=b["src"])
    return out


def _each(one: Callable[[Collectives, Operands], Tensor]) -> Callable[[Collectives, Operands], list[Tensor]]:
    def many(c: Collectives, b: Operands) -> list[Tensor]:
        return [one(c, {**b, "input": t}) for t in b["inputs"]]

    return many


_FUNCTIONAL: dict[str, Callable[[Collectives, Operands], Any]] = {
    "all_reduce": _f_all_reduce, "all_reduce_": _f_all_reduce_, "all_reduce_coalesced": _each(_f_all_reduce),
    "all_reduce_coalesced_": _each(_f_all_reduce_), "all_gather_into_tensor": _f_all_gather,
    "all_gather_into_tensor_out": _f_all_gather, "all_gather_into_tensor_coalesced": _each(_f_all_gather),
    "reduce_scatter_tensor": _f_reduce_scatter, "reduce_scatter_tensor_out": _f_reduce_scatter,
    "reduce_scatter_tensor_coalesced": _each(_f_reduce_scatter), "all_to_all_single": _f_all_to_all,
    "broadcast": _f_broadcast, "broadcast_": _f_broadcast_, "wait_tensor": lambda c, b: b["tensor"],
}  # fmt: skip

_PASSED = frozenset({"_wrap_tensor_autograd", "check_for_nan"})
"""What moves no data."""
