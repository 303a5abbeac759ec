"""Judging a part of an operation: which chunk of its result is disputed, what that depends on, and how it comes out.

What the parties dispute is the content of the one storage that an operation writes, whose BLAKE3 tree has chunks of
1,024 bytes. They show the chaining values of all chunks; the first that differs is judged. Its elements follow from
parts of the operands (`numerics.slices`), which are chunks of storages that the agreed memory root binds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weighbridge.core.errors import LogError, RefusedOperationError, TapeError, WeighbridgeError
from weighbridge.core.memory_map import Held
from weighbridge.core.treehash import parts
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.memory_roots import may_write
from weighbridge.numerics.arrays.physical import dense_strides
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import argument_names, mutated
from weighbridge.numerics.slices import Box, enclosing, operand_boxes, widened
from weighbridge.program.invocation import Invocation, WithoutMemory, invocation
from weighbridge.program.operands import UNFIT, check_shapes, check_sizes, unfit
from weighbridge.transcript.steps import Scalar
from weighbridge.transcript.tape import DTYPES, RESIZE, Ref, Tape

Ints = npt.NDArray[np.int64]
_KINDS = (Kind.MOVE, Kind.SELECT, Kind.EXACT, Kind.CHAIN, Kind.ROUNDED)


@dataclass(frozen=True)
class Narrowed:
    """An operation that can be executed for a part of its result.

    Attributes:
        call: The operation; its tensors have shapes only.
        refs: Its tensors by the name of the operand.
        ref: Its result, which fills the storage that it writes, in row-major order.
        size: Bytes of that storage.
    """

    call: Invocation
    refs: dict[str, Ref]
    ref: Ref
    size: int

    @property
    def slot(self) -> int:
        """The storage that it writes."""
        return self.ref[0]

    @property
    def chunks(self) -> int:
        """How many chunks that has."""
        return parts.chunks_of(self.size)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the result."""
        return DTYPES[self.ref[1]]

    def elements(self, chunk: int) -> tuple[int, int]:
        """Returns the first element of a chunk of the result, and the last + 1."""
        each = CHUNK // self.dtype.itemsize
        return each * chunk, min(each * (chunk + 1), math.prod(self.ref[2]))

    def box(self, chunk: int) -> Box:
        """Returns the part of the result that is executed for a chunk."""
        return widened(self.call.op, self.call.bound, self.ref[2], enclosing(self.ref[2], *self.elements(chunk)))

    def boxes(self, chunk: int) -> dict[str, Box]:
        """Returns the parts of the operands that it takes, by name."""
        return operand_boxes(self.call.op, self.call.bound, self.ref[2], self.box(chunk)) or {}

    def needed(self, chunk: int) -> dict[int, set[int]]:
        """Returns the chunks of storages that are shown for a chunk of the result, by slot."""
        found: dict[int, set[int]] = {}
        for name, box in self.boxes(chunk).items():
            ref = self.refs[name]
            found.setdefault(ref[0], set()).update(np.unique(_bytes(ref, box) // CHUNK).tolist())
        return found


def narrowed(tape: Tape, op: int, values: list[Scalar], policy: Policy, sizes: Mapping[int, int]) -> Narrowed | None:
    """Returns an operation that can be executed for a part of its result; None if it is executed whole.

    Args:
        tape: The program.
        op: Which operation.
        values: Plain values of the step.
        policy: Bounds of the run: only strict ones cover a kernel that runs in another shape.
        sizes: Bytes of the storages before the operation, by slot.
    """
    try:
        return _narrowed(tape, op, values, policy, sizes)
    except (WeighbridgeError, *UNFIT):  # what is wrong with it, or with its operands, is found by executing it whole
        return None


def _narrowed(
    tape: Tape, op: int, values: list[Scalar], policy: Policy, sizes: Mapping[int, int]
) -> Narrowed | None:  # fmt: skip
    node = tape.nodes[op]
    if node.op == RESIZE or len(may_write(tape, op)) != 1 or len(node.outputs) != 1 or node.outputs[0] is None:
        return None
    call = invocation(node, op, tape, WithoutMemory(torch.device("meta"), tape, {}, values))
    names = argument_names(call.op)[0]
    encoded = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    refs = {
        name: tape.refs[value[1]] for name, value in encoded.items() if isinstance(value, tuple) and value[:1] == ("t",)
    }
    ref, changed = tape.refs[node.outputs[0]], mutated(call.op)
    if call.rule.kind not in _KINDS or operand_boxes(call.op, call.bound, ref[2], _all(ref[2])) is None:
        return None
    size = dict(node.births).get(ref[0], sizes.get(ref[0], 0))
    numbers = DTYPES[ref[1]]
    whole = (ref[3], ref[4]) == (dense_strides(torch.Size(ref[2]), None), 0)
    if not whole or size != math.prod(ref[2]) * numbers.itemsize or parts.chunks_of(size) < 2:
        return None
    if ref[0] not in may_write(tape, op) or (not changed) != bool(node.births):
        return None
    # What is written in place is read by one operand only, or later elements would depend on earlier ones.
    if changed and (refs[changed[0]] != ref or sum(each[0] == ref[0] for each in refs.values()) != 1):
        return None
    types = {numbers, *(DTYPES[each[1]] for each in refs.values())}
    wide = torch.float32 if types & set(formats.NARROW) else torch.float64
    if call.rule.kind is Kind.ROUNDED and (policy.at(wide).calibrated or policy.at(wide).probabilistic):
        return None
    check_shapes(call.op, call.args, call.kwargs, node, call.refs, call.rule.kind)
    check_sizes(call.op, call.bound)
    return Narrowed(call, refs, ref, size)


class _Sliced(Context):
    """The context of a part: follows those log entries that are of it."""

    def __init__(self, policy: Policy, entries: OpEntries | None) -> None:
        self.policy = policy
        self.results = self.roundings = 0
        self._entries = entries

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        self.results += 1
        self.roundings += 1
        wide, small = wide.contiguous(), dtype in formats.NARROW
        self.wide, self.bound, self.entries = wide, bound, self._entries
        follow = (
            narrow.follow(wide, bound, dtype, self._entries) if small else contested.follow(wide, bound, self._entries)
        )
        if follow.inadmissible:
            raise LogError(
                "the log asks for outcomes that no conforming device could have rounded to",
                code="replay.rounding.inadmissible",
            )
        return follow.out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        self.results += 1
        if checksum is None:
            (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        raise TapeError("an operation that draws has no parts")

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        raise TapeError("an operation that is read has no parts")


@dataclass(frozen=True)
class Part:
    """A chunk of a result, as it comes out.

    Attributes:
        data: Its bytes.
        results: How many results with a checksum the operation makes.
        roundings: How many of these it rounds.
        others: Its bytes where few elements next to a rounding boundary are rounded otherwise.
    """

    data: bytes
    results: int
    roundings: int
    others: list[bytes]


def execute(
    which: Narrowed, chunk: int, shown: Mapping[int, Mapping[int, bytes]], entries: OpEntries | None, policy: Policy,
    device: torch.device,
) -> Part:  # fmt: skip
    """Executes the part of an operation that makes a chunk of its result.

    Args:
        which: The operation.
        chunk: Number of the chunk.
        shown: The chunks of storages that it takes, by slot and number.
        entries: The log's entries about the whole result.
        policy: Bounds of the run.
        device: Where to execute it.
    """
    box, boxes = which.box(chunk), which.boxes(chunk)
    given = {name: _tensor(which.refs[name], boxes[name], shown[which.refs[name][0]]).to(device) for name in boxes}
    names = argument_names(which.call.op)[0]
    args = [given.get(name, value) for name, value in zip(names, which.call.args, strict=False)]
    kwargs = {name: given.get(name, value) for name, value in which.call.kwargs.items()}
    kwargs = {name: device if isinstance(value, torch.device) else value for name, value in kwargs.items()}
    mine = _flat(which.ref[2], box)
    context = _Sliced(policy, _of(entries, mine))
    try:
        out: Tensor = evaluate(which.call.op, args, kwargs, context)
    except RefusedOperationError as error:
        raise TapeError(error.message, code="tape.forbidden", operation=str(which.call.op)) from None
    except UNFIT as error:
        raise unfit(str(which.call.op), error) from None
    if tuple(out.shape) != tuple(b - a for a, b in box) or out.dtype != which.dtype:
        raise TapeError("a part of the operation's result has another shape than its operands say")
    start, stop = which.elements(chunk)
    inside = torch.from_numpy((mine >= start) & (mine < stop))
    values = out.contiguous().view(-1)[inside.to(device)].cpu()
    return Part(_raw(values), context.results, context.roundings, _others(context, inside, values))


_NEAR = 8
"""Elements next to a boundary, at most, that may be rounded otherwise: they give 256 chunks to look at."""


def _others(context: _Sliced, inside: Tensor, values: Tensor) -> list[bytes]:
    """Returns the chunk with unlogged elements within 8e of a boundary rounded otherwise, in any combination."""
    if not context.roundings:
        return []
    y = context.wide.view(-1).cpu()
    e = dense_bound(context.wide, context.bound).cpu().to(y.dtype)
    sides = [(y + s * 8 * e).to(values.dtype) + 0 for s in (-1, 1)]
    free = sides[0] != sides[1]
    if context.entries is not None:
        free[torch.from_numpy(context.entries.positions)] = False
    at = (free[inside] & torch.isfinite(values)).nonzero().flatten()[:_NEAR]
    found = [values]
    for i in at.tolist():
        low, high = (side[inside][i] for side in sides)
        changed = []
        for each in found:
            other = each.clone()
            other[i] = high if values[i] == low else low
            changed.append(other)
        found += changed
    return [_raw(each) for each in found[1:]]


def _of(entries: OpEntries | None, mine: Ints) -> OpEntries | None:
    """Returns the entries about the elements of a part, by their places in it."""
    if entries is None:
        return None
    kept = np.isin(entries.positions, mine, assume_unique=True)
    if not kept.any():
        return None
    places = np.searchsorted(mine, entries.positions[kept]).astype(np.int64)
    return OpEntries(entries.op, entries.output, places, entries.widths[kept], entries.bits[kept])


def _all(shape: tuple[int, ...]) -> Box:
    return tuple((0, size) for size in shape)


def _offsets(box: Box, stride: tuple[int, ...], offset: int) -> Ints:
    """Returns where the elements of a box lie, in elements, in row-major order."""
    found = np.full((1,), offset, dtype=np.int64)
    for (low, high), step in zip(box, stride, strict=True):
        found = (found[:, None] + np.arange(low, high, dtype=np.int64) * step).reshape(-1)
    return found


def _flat(shape: tuple[int, ...], box: Box) -> Ints:
    return _offsets(box, dense_strides(torch.Size(shape), None), 0)


def _bytes(ref: Ref, box: Box) -> Ints:
    return _offsets(box, ref[3], ref[4]) * DTYPES[ref[1]].itemsize


def _tensor(ref: Ref, box: Box, chunks: Mapping[int, bytes]) -> Tensor:
    dtype, known = DTYPES[ref[1]], sorted(chunks)
    data = b"".join(chunks[at].ljust(CHUNK, b"\x00") for at in known)
    at = _bytes(ref, box)
    place = np.searchsorted(np.array(known), at // CHUNK) * CHUNK + at % CHUNK
    flat = torch.frombuffer(bytearray(data), dtype=dtype)[torch.from_numpy(place // dtype.itemsize)]
    return flat.view([high - low for low, high in box])


def _raw(values: Tensor) -> bytes:
    return bytes(values.contiguous().view(torch.uint8).numpy().data)


def written(which: Narrowed, values: bytes) -> Held:
    """Returns what the storage holds whose chunks have these chaining values.

    Raises:
        ProofError: They are not so many.
    """
    return Held(which.size, parts.digest_of(values, which.size))
