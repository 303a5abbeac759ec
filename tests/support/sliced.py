"""A call executed whole and in part: the part has the bound, the value and the roundings of the whole."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from support.bound_errors import copied
from support.operator_examples import Example

from weighbridge.core.treehash.parts import chunks_of
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.dispute.narrowing import Narrowed, places
from weighbridge.execution.dispute.part_execution import _of, _operands, _Sliced
from weighbridge.numerics import slices
from weighbridge.numerics.conformance.bound_policy import STRICT
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.rule_table import find
from weighbridge.numerics.schemas import bind
from weighbridge.program.invocation import Invocation
from weighbridge.transcript.tape import DTYPE_NAMES, Ref

Tensor = torch.Tensor


class _Writing(_Sliced):
    """Records the log of the whole."""

    logged: OpEntries | None = None

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        self.wide, self.bound = wide.contiguous(), bound
        made = contested.record(self.wide, bound, 0, 0)
        self.logged = made.entries
        return made.out


def ref_of(slot: int, tensor: Tensor) -> Ref:
    """Returns how a tape names a tensor."""
    return slot, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def memory_of(tensor: Tensor) -> dict[int, bytes]:
    """Returns the chunks of a tensor's storage."""
    data = bytes(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().data)
    return {at: data[CHUNK * at : CHUNK * (at + 1)] for at in range(chunks_of(len(data)))}


def narrowed(example: Example, whole: Tensor) -> tuple[Narrowed, dict[int, dict[int, bytes]]]:
    """Returns a call as it is executed in part, and what its operands' storages hold."""
    bound = bind(example.op, example.args, example.kwargs)
    tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
    refs = {name: ref_of(slot, tensor) for slot, (name, tensor) in enumerate(tensors.items())}
    memory = {refs[name][0]: memory_of(tensor) for name, tensor in tensors.items()}
    call = Invocation(example.op, list(example.args), example.kwargs, bound, find(example.op, bound), [])
    size = whole.numel() * whole.dtype.itemsize
    return Narrowed(call, refs, ref_of(len(refs), whole), size), memory


def check(example: Example, data: st.DataObject) -> bool:
    """Draws a part of a call's result and compares it with the whole; returns whether it has parts."""
    op = example.op
    writing = _Writing(STRICT, None)
    with torch.backends.mkldnn.flags(enabled=False):
        whole = evaluate(op, [copied(a) for a in example.args], copied(example.kwargs), writing).contiguous()
    which, memory = narrowed(example, whole)
    shape, count = tuple(whole.shape), whole.numel()
    if not count:
        return True
    start = data.draw(st.integers(0, count - 1))
    box = slices.enclosing(shape, start, data.draw(st.integers(start + 1, count)))
    box = slices.widened(op, which.call.bound, shape, box)
    part = slices.slice_of(op, which.call.bound, shape, box)
    if part is None:
        return False
    mine = places(shape, box)
    assert {start} <= {*mine.tolist()}
    needed = _needed(which, part, memory)
    shown = {slot: {at: memory[slot][at] for at in chunks} for slot, chunks in needed.items()}
    args, kwargs = part.operands(op, example.args, example.kwargs, _operands(which, part, shown))
    context = _Sliced(STRICT, _of(writing.logged, mine))
    with torch.backends.mkldnn.flags(enabled=False):
        found = evaluate(op, args, kwargs, context)
    there = tuple(slice(*each) for each in box)
    assert found.dtype == whole.dtype
    assert tuple(found.shape) == tuple(high - low for low, high in box)
    assert math.prod(found.shape) == len(mine)
    assert _raw(found) == _raw(whole[there])
    if context.roundings:
        e = dense_bound(writing.wide, writing.bound).view(shape)[there].reshape(-1)
        other = dense_bound(context.wide, context.bound)
        same = ((e - other).abs() <= 2.0**-21 * e) | (e == other) | (e.isnan() & other.isnan())
        assert bool(same.all())
        x, y = writing.wide[there].reshape(-1), context.wide.view(-1)
        assert bool((((x - y).abs() <= e + other) | (x == y) | ~torch.isfinite(x)).all())
    return True


def _needed(which: Narrowed, part: slices.Slice, memory: dict[int, dict[int, bytes]]) -> dict[int, set[int]]:
    """Returns the chunks that a part reads, by way of `Narrowed.needed`, of which it is the only one."""

    class _One(Narrowed):
        def slice(self, chunk: int) -> slices.Slice:
            return part

    one = _One(which.call, which.refs, which.ref, which.size)
    named = one.named(0)
    return one.needed(0, None if named is None else {at: memory[named[0]][at] for at in named[1]})


def _raw(values: Tensor) -> bytes:
    return bytes(values.contiguous().view(-1).view(torch.uint8).numpy().data)
