"""A call executed whole and in part: the part has the bound, the value and the roundings of the whole."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from support.bound_errors import copied
from support.operator_examples import Example

from weighbridge.core.treehash.parts import chunks_of
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.dispute.narrowing import Narrowed, Result
from weighbridge.execution.dispute.part_execution import _of, _Sliced, execute, made_of, operands
from weighbridge.execution.dispute.reading import places
from weighbridge.numerics.conformance.bound_policy import STRICT
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.rule_table import find
from weighbridge.numerics.schemas import bind
from weighbridge.numerics.slices.cutting import slice_of
from weighbridge.numerics.slices.norms import worst_row
from weighbridge.numerics.slices.parts import Slice, enclosing
from weighbridge.program.invocation import Invocation
from weighbridge.transcript.tape import DTYPE_NAMES, Ref

Tensor = torch.Tensor


class _Writing(_Sliced):
    """Records the log of the whole."""

    def __init__(self) -> None:
        super().__init__(STRICT, [])
        self.logged: list[OpEntries | None] = []

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        wide = wide.contiguous()
        self.rounds.append((wide, bound, None))
        made = contested.record(wide, bound, 0, len(self.logged))
        self.logged.append(made.entries)
        return made.out


def ref_of(slot: int, tensor: Tensor) -> Ref:
    """Returns how a tape names a tensor."""
    return slot, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def memory_of(tensor: Tensor) -> dict[int, bytes]:
    """Returns the chunks of a tensor's storage."""
    data = bytes(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().data)
    return {at: data[CHUNK * at : CHUNK * (at + 1)] for at in range(chunks_of(len(data)))}


def narrowed(example: Example, *wholes: Tensor | None) -> tuple[Narrowed, dict[int, dict[int, bytes]]]:
    """Returns a call as it is executed in part, and what its operands' storages hold."""
    bound = bind(example.op, example.args, example.kwargs)
    tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
    refs = {name: ref_of(slot, tensor) for slot, (name, tensor) in enumerate(tensors.items())}
    memory = {refs[name][0]: memory_of(tensor) for name, tensor in tensors.items()}
    call = Invocation(example.op, list(example.args), example.kwargs, bound, find(example.op, bound), [])
    results, first = list[Result](), 0
    for at, whole in enumerate(wholes):
        if whole is not None:
            size = whole.numel() * whole.dtype.itemsize
            results.append(Result(at, ref_of(len(refs) + at, whole), size, first))
            first += results[-1].chunks
    return Narrowed(call, refs, tuple(results)), memory


def check(example: Example, data: st.DataObject) -> bool:
    """Draws a part of a call's results and compares it with the whole; returns whether it has parts."""
    op, writing = example.op, _Writing()
    with torch.backends.mkldnn.flags(enabled=False):
        out = evaluate(op, [copied(a) for a in example.args], copied(example.kwargs), writing)
    wholes = [
        each if each is None else each.contiguous() for each in (out if isinstance(out, (tuple, list)) else [out])
    ]
    which, memory = narrowed(example, *wholes)
    made = [at for at, each in enumerate(wholes) if each is not None]
    output = data.draw(st.sampled_from(made))
    whole = _there(wholes, output)
    if not whole.numel():
        return True
    start = data.draw(st.integers(0, whole.numel() - 1))
    row = whole.shape[-1] if whole.dim() else 1
    last = (start // row + 2) * row if data.draw(st.booleans()) else whole.numel()  # two rows, or any number of them
    stop = data.draw(st.integers(start + 1, min(last, whole.numel())))
    box = enclosing(tuple(whole.shape), start, stop)
    part = slice_of(op, which.call.bound, which.shapes(), output, box)
    if part is None:
        return False
    assert all(a <= c <= d <= b for (a, b), (c, d) in zip(part.makes[output], box, strict=True))
    worst = None if part.worst is None else worst_row(which.call.bound)
    needed = _needed(which, part, memory, worst)
    shown = {slot: {at: memory[slot][at] for at in chunks} for slot, chunks in needed.items()}
    given = operands(which, part, shown, worst)
    args, kwargs = part.operands(op, example.args, example.kwargs, given)
    several = len(writing.rounds) > 1
    ranks = [made.index(at) if several else 0 for at in part.makes] if writing.rounds else []
    of = [
        _of(writing.logged[rank], places(tuple(_there(wholes, at).shape), box))
        for rank, (at, box) in zip(ranks, part.makes.items(), strict=False)
    ]
    context = _Sliced(STRICT, of, part.growth(given))
    with torch.backends.mkldnn.flags(enabled=False):
        out = evaluate(op, args, kwargs, context)
    for number, (at, box) in enumerate(part.makes.items()):
        whole, there = _there(wholes, at), tuple(slice(*each) for each in box)
        found = made_of(part, at, out)
        assert found is not None
        assert found.dtype == whole.dtype
        assert tuple(found.shape) == tuple(high - low for low, high in box)
        assert _raw(found) == _raw(whole[there])
        if ranks and (several or number == 0):
            wide, bound, _ = context.rounds[number]
            same_bounds(writing.rounds[ranks[number]][:2], (wide, bound), there, tuple(whole.shape))
    logged = {at: writing.logged[rank] for rank, at in zip(ranks, part.makes, strict=False)}
    expected = _raw(_there(wholes, output).view(-1)[start:stop])
    assert _range(which, output, start, stop, memory, logged, worst) == expected
    return True


def _range(
    which: Narrowed, output: int, start: int, stop: int, memory: dict[int, dict[int, bytes]],
    logged: dict[int, OpEntries | None], worst: int | None,
) -> bytes:  # fmt: skip
    """Returns elements of a result as a referee makes them, were they a chunk, from what it asks for."""

    class _Chunk(Result):
        def elements(self, chunk: int) -> tuple[int, int]:
            return start, stop

    class _OfOne(Narrowed):
        def result(self, chunk: int) -> Result:
            found = next(each for each in which.results if each.output == output)
            return _Chunk(found.output, found.ref, found.size, found.first)

    one = _OfOne(which.call, which.refs, which.results)
    named = one.named(0)
    names = None if named is None else {at: memory[named[0]][at] for at in named[1]}
    shown = {slot: {at: memory[slot][at] for at in chunks} for slot, chunks in one.needed(0, names, worst).items()}
    with torch.backends.mkldnn.flags(enabled=False):
        return execute(one, 0, shown, logged, STRICT, torch.device("cpu"), worst).data


def _there(wholes: list[Tensor | None], at: int) -> Tensor:
    found = wholes[at]
    assert found is not None
    return found


def same_bounds(
    whole: tuple[Tensor, Bound], part: tuple[Tensor, Bound], there: tuple[slice, ...], shape: tuple[int, ...]
) -> None:
    """Compares wide values and bounds of a part with those of the whole; the worst row stands behind a part."""
    x = whole[0].view(shape)[there].reshape(-1)
    e = dense_bound(*whole).view(shape)[there].reshape(-1)
    y, other = part[0].reshape(-1)[: x.numel()], dense_bound(*part)[: x.numel()]
    same = ((e - other).abs() <= 2.0**-21 * e) | (e == other) | (e.isnan() & other.isnan())
    assert bool(same.all())
    assert bool((((x - y).abs() <= e + other) | (x == y) | ~torch.isfinite(x)).all())


def _needed(
    which: Narrowed, part: Slice, memory: dict[int, dict[int, bytes]], worst: int | None
) -> dict[int, set[int]]:
    """Returns the chunks that a part reads, by way of `Narrowed.needed`, of which it is the only one."""

    class _One(Narrowed):
        def pieces(self, chunk: int) -> list[tuple[int, int, Slice]]:
            return [(0, 0, part)]

    one = _One(which.call, which.refs, which.results)
    named = one.named(0)
    names = None if named is None else {at: memory[named[0]][at] for at in named[1]}
    return one.needed(0, names, worst)


def _raw(values: Tensor) -> bytes:
    return bytes(values.contiguous().view(-1).view(torch.uint8).numpy().data)
