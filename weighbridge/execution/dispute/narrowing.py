"""Which chunk of an operation's result is disputed, and what that depends on.

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

from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.core.memory_map import Held
from weighbridge.core.treehash import parts
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.memory_roots import may_write
from weighbridge.numerics.arrays.physical import dense_strides
from weighbridge.numerics.arrays.windows import Box
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.rounding import formats
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import argument_names, mutated
from weighbridge.numerics.slices import Slice, enclosing, slice_of, widened
from weighbridge.program.invocation import Invocation, WithoutMemory, invocation
from weighbridge.program.operands import UNFIT, check_shapes, check_sizes
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

    def slice(self, chunk: int) -> Slice:
        """Returns what makes that part."""
        found = slice_of(self.call.op, self.call.bound, self.ref[2], self.box(chunk))
        if found is None:
            raise TapeError("a part of the operation cannot be executed, though all of it could")
        return found

    def named(self, chunk: int) -> tuple[int, set[int]] | None:
        """Returns the slot whose chunks name the rows that are read, and these chunks; None if none does."""
        found = self.slice(chunk)
        if found.rows is None:
            return None
        ref = self.refs[found.rows[2]]
        return ref[0], _chunks(ref, found.boxes[found.rows[2]])

    def needed(self, chunk: int, names: Mapping[int, bytes] | None = None) -> dict[int, set[int]]:
        """Returns the chunks of storages that are shown for a chunk of the result, by slot.

        Args:
            chunk: Number of the chunk.
            names: If `named` gives any: the chunks that name rows, by number.

        Raises:
            TapeError: A row is named that is not there.
        """
        part, found = self.slice(chunk), dict[int, set[int]]()
        rows = None if part.rows is None or names is None else self.rows(part, names)
        for name, box in part.boxes.items():
            ref = self.refs[name]
            picked = rows if part.rows is not None and name == part.rows[0] else None
            found.setdefault(ref[0], set()).update(_chunks(ref, box, part.rows[1] if part.rows else 0, picked))
        return found

    def rows(self, part: Slice, names: Mapping[int, bytes]) -> Ints:
        """Returns the rows that a part reads, ascending.

        Args:
            part: The part.
            names: The chunks that name them, by number.

        Raises:
            TapeError: A row is named that is not there.
        """
        assert part.rows is not None
        table, dim, index = part.rows
        ref, size = self.refs[index], self.refs[table][2][dim]
        found = np.unique(tensor_of(ref, part.boxes[index], names).numpy().astype(np.int64))
        if found.size and not 0 <= found[0] <= found[-1] < size:
            raise TapeError(f"{self.call.op} has an index outside 0..{size - 1}", code="tape.out_of_bounds")
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
    if call.rule.kind not in _KINDS:
        return None
    everything = slice_of(call.op, call.bound, ref[2], widened(call.op, call.bound, ref[2], all_of(ref[2])))
    if everything is None:
        return None
    rows = everything.rows
    if rows is not None and refs[rows[0]][0] == refs[rows[2]][0]:
        return None  # one proof shows the chunks of a storage, and which rows are read is not known before
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


def all_of(shape: tuple[int, ...]) -> Box:
    """Returns the box that is the whole of a shape."""
    return tuple((0, size) for size in shape)


def places(shape: tuple[int, ...], box: Box) -> Ints:
    """Returns the numbers of a box's elements in a row-major tensor, ascending."""
    return _offsets([np.arange(*part) for part in box], dense_strides(torch.Size(shape), None), 0)


def tensor_of(ref: Ref, box: Box, chunks: Mapping[int, bytes], dim: int = 0, rows: Ints | None = None) -> Tensor:
    """Returns what a box of a tensor holds.

    Args:
        ref: The tensor.
        box: The box.
        chunks: Chunks of its storage by number; those of the box are among them.
        dim: The dimension of `rows`.
        rows: The rows that are taken instead of those of the box.
    """
    dtype, known = DTYPES[ref[1]], sorted(chunks)
    data = b"".join(chunks[at].ljust(CHUNK, b"\x00") for at in known)
    axes = _axes(box, dim, rows)
    at = _offsets(axes, ref[3], ref[4]) * dtype.itemsize
    shape = [len(axis) for axis in axes]
    if not at.size:
        return torch.zeros(shape, dtype=dtype)
    place = np.searchsorted(np.array(known), at // CHUNK) * CHUNK + at % CHUNK
    return torch.frombuffer(bytearray(data), dtype=dtype)[torch.from_numpy(place // dtype.itemsize)].view(shape)


def _chunks(ref: Ref, box: Box, dim: int = 0, rows: Ints | None = None) -> set[int]:
    at = _offsets(_axes(box, dim, rows), ref[3], ref[4]) * DTYPES[ref[1]].itemsize
    return set(np.unique(at // CHUNK).tolist())


def _axes(box: Box, dim: int, rows: Ints | None) -> list[Ints]:
    return [rows if rows is not None and d == dim else np.arange(*part) for d, part in enumerate(box)]


def _offsets(axes: list[Ints], stride: tuple[int, ...], offset: int) -> Ints:
    """Returns where elements lie, in elements, in row-major order of their indices."""
    found = np.full((1,), offset, dtype=np.int64)
    for axis, step in zip(axes, stride, strict=True):
        found = (found[:, None] + axis.astype(np.int64) * step).reshape(-1)
    return found


def written(which: Narrowed, values: bytes) -> Held:
    """Returns what the storage holds whose chunks have these chaining values.

    Raises:
        ProofError: They are not so many.
    """
    return Held(which.size, parts.digest_of(values, which.size))
