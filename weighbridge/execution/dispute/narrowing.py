"""Which chunk of an operation's result is disputed, and what that depends on.

What the parties dispute is the content of the one storage that an operation writes, whose BLAKE3 tree has chunks of
1,024 bytes. They show the chaining values of all chunks; the first that differs is judged. Its elements follow from
parts of the operands (`numerics.slices`), which are chunks of storages that the agreed memory root binds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.digests import DIGEST_SIZE, bytes_digest
from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.core.memory_map import Held
from weighbridge.core.treehash import parts
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.dispute.reading import Picked, chunks_read, tensor_of
from weighbridge.execution.memory_roots import may_write
from weighbridge.numerics.arrays.physical import dense_strides
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.operand_types import RULED
from weighbridge.numerics.operations.prescribed_products import plan_of, way_of
from weighbridge.numerics.rounding import formats
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import argument_names, mutated
from weighbridge.numerics.slices.cutting import slice_of
from weighbridge.numerics.slices.parts import Slice, all_of, at_borders, enclosing
from weighbridge.program.invocation import Invocation, WithoutMemory, invocation
from weighbridge.program.operands import UNFIT, check_shapes, check_sizes
from weighbridge.transcript.steps import Scalar
from weighbridge.transcript.tape import DTYPES, RESIZE, Ref, Tape

Ints = npt.NDArray[np.int64]
_KINDS = (Kind.MOVE, Kind.SELECT, Kind.EXACT, Kind.CHAIN, Kind.ROUNDED)


@dataclass(frozen=True)
class Result:
    """A result of an operation, which fills the storage that it writes, in row-major order.

    Attributes:
        output: Its place among those that the operation returns.
        ref: Where it lies.
        size: Bytes of that storage.
        first: Number of its first chunk among those of all results.
    """

    output: int
    ref: Ref
    size: int
    first: int = 0

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return parts.chunks_of(self.size)

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        return DTYPES[self.ref[1]]

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.ref[2])

    def elements(self, chunk: int) -> tuple[int, int]:
        """Returns the first element of a chunk, by its number among those of all results, and the last + 1."""
        each, at = CHUNK // self.dtype.itemsize, chunk - self.first
        return each * at, min(each * (at + 1), self.numel)


@dataclass(frozen=True)
class Narrowed:
    """An operation that can be executed for a part of its results.

    Attributes:
        call: The operation; its tensors have shapes only.
        refs: Its tensors by the name of the operand.
        results: What it makes. Their chunks are numbered one result after the other.
    """

    call: Invocation
    refs: dict[str, Ref]
    results: tuple[Result, ...]

    @property
    def chunks(self) -> int:
        """How many chunks its results have."""
        return sum(each.chunks for each in self.results)

    def result(self, chunk: int) -> Result:
        """Returns the result that a chunk is of."""
        return next(each for each in self.results if each.first <= chunk < each.first + each.chunks)

    def shapes(self) -> list[tuple[int, ...] | None]:
        """Returns the shapes of all results; None for one that is not made."""
        made = {each.output: each.ref[2] for each in self.results}
        return [made.get(at) for at in range(max(made) + 1)]

    def slice(self, chunk: int) -> Slice:
        """Returns what makes the part of the results in which a chunk lies."""
        result = self.result(chunk)
        return self._slice(result, *result.elements(chunk))

    def pieces(self, chunk: int) -> list[tuple[int, int, Slice]]:
        """Returns the slices that make a chunk, each with the first of the elements that are its own, and the last + 1.

        A chunk may have the end of one row, or matrix, and the beginning of the next. Its box has all of both, and much
        more may be read for that than a party has room to show. So each side of the border is made for itself.
        """
        result = self.result(chunk)
        ranges = at_borders(result.ref[2], *result.elements(chunk))
        return [(*each, self._slice(result, *each)) for each in ranges]

    def _slice(self, result: Result, start: int, stop: int) -> Slice:
        box = enclosing(result.ref[2], start, stop)
        found = slice_of(self.call.op, self.call.bound, self.shapes(), result.output, box)
        if found is None:
            raise TapeError("a part of the operation cannot be executed, though all of it could")
        return found

    def noted(self, results: int) -> list[Result]:
        """Returns the results with a checksum, in order.

        Args:
            results: How many the part has: an operation with one result may note it several times.
        """
        if len(self.results) == 1:
            return [self.results[0]] * results
        if self.call.rule.kind is Kind.ROUNDED:
            return list(self.results)
        return [each for each in self.results if self.call.rule.kind is not Kind.MOVE and each.dtype in RULED]

    def named(self, chunk: int) -> tuple[int, set[int]] | None:
        """Returns the slot whose chunks name the rows that are read, and these chunks; None if none does."""
        slot, found = -1, set[int]()
        for *_, part in self.pieces(chunk):
            if part.rows is None:
                return None
            ref = self.refs[part.rows.index]
            slot = ref[0]
            found |= chunks_read(ref, part.boxes[part.rows.index])
        return slot, found

    def needed(
        self, chunk: int, names: Mapping[int, bytes] | None = None, worst: int | None = None
    ) -> dict[int, set[int]]:
        """Returns the chunks of storages that are shown for a chunk of the results, by slot.

        Args:
            chunk: Number of the chunk.
            names: If `named` gives any: the chunks that name rows, by number.
            worst: If the bound reads a worst row: its number.

        Raises:
            TapeError: A row is named that is not there.
        """
        found = dict[int, set[int]]()
        for *_, part in self.pieces(chunk):
            for name, box in part.boxes.items():
                ref = self.refs[name]
                picked = None
                if part.rows is not None and names is not None and name == part.rows.operand:
                    picked = self.picked(part, names)
                found.setdefault(ref[0], set()).update(chunks_read(ref, box, picked))
            if part.worst is not None and worst is not None:
                ref = self.refs[part.worst]
                found[ref[0]] |= chunks_read(ref, all_of(ref[2]), self.worst(part, worst))
        return found

    def picked(self, part: Slice, names: Mapping[int, bytes]) -> Picked:
        """Returns the rows that a part reads, ascending.

        Args:
            part: The part.
            names: The chunks that name them, by number.

        Raises:
            TapeError: A row is named that is not there.
        """
        assert part.rows is not None
        rows, ref = part.rows, self.refs[part.rows.index]
        named = tensor_of(ref, part.boxes[rows.index], names).numpy().astype(np.int64).reshape(-1)
        if named.size and not 0 <= named.min() <= named.max() < rows.count:
            raise TapeError(f"{self.call.op} has an index outside 0..{rows.count - 1}", code="tape.out_of_bounds")
        if rows.within is None:
            return Picked(rows.dim, 1, np.unique(named))
        return Picked(rows.dim, 1, np.flatnonzero((named >= rows.within[0]) & (named < rows.within[1])))

    def worst(self, part: Slice, row: int) -> Picked:
        """Returns the worst row, as it is read beside a part.

        Raises:
            TapeError: It is not there.
        """
        assert part.worst is not None
        span = len(self.refs[part.worst][2]) - len(self.call.bound["normalized_shape"])
        rows = math.prod(self.refs[part.worst][2][:span])
        if not 0 <= row < rows:
            raise TapeError(f"{self.call.op} has no row {row} among {rows}", code="tape.out_of_bounds")
        return Picked(0, span, np.array([row]))


def narrowed(tape: Tape, op: int, values: list[Scalar], policy: Policy, sizes: Mapping[int, int]) -> Narrowed | None:
    """Returns an operation that can be executed for a part of its result; None if it is executed whole.

    Args:
        tape: The program.
        op: Which operation.
        values: Plain values of the step.
        policy: Bounds of the run: only strict ones, or none, cover a kernel that runs in another shape. What a
            declared unit computes has the same bits in all shapes.
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
    made = [(at, tape.refs[out]) for at, out in enumerate(node.outputs) if out is not None]
    if node.op == RESIZE or not made or len(may_write(tape, op)) != len(made):
        return None
    call = invocation(node, op, tape, WithoutMemory(torch.device("meta"), tape, {}, values))
    names = argument_names(call.op)[0]
    encoded = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    refs = {
        name: tape.refs[value[1]] for name, value in encoded.items() if isinstance(value, tuple) and value[:1] == ("t",)
    }
    changed = mutated(call.op)
    if call.rule.kind not in _KINDS:
        return None
    born, results, first = dict(node.births), list[Result](), 0
    for output, ref in made:
        size = born.get(ref[0], sizes.get(ref[0], 0))
        results.append(Result(output, ref, size, first))
        first += results[-1].chunks
        whole = (ref[3], ref[4]) == (dense_strides(torch.Size(ref[2]), None), 0)
        if not whole or not size or size != results[-1].numel * results[-1].dtype.itemsize:
            return None
    which = Narrowed(call, refs, tuple(results))
    if first < 2 or {ref[0] for _, ref in made} != may_write(tape, op):
        return None
    # What is written in place is read by one operand only, or later elements would depend on earlier ones.
    in_place = len(made) == 1 and changed and refs[changed[0]] == made[0][1]
    if (not changed) != (len(born) == len(made)) or (changed and not in_place):
        return None
    if changed and sum(each[0] == made[0][1][0] for each in refs.values()) != 1:
        return None
    if not all(_sliced(which, each) for each in results):
        return None
    types = {*(each.dtype for each in results), *(DTYPES[each[1]] for each in refs.values())}
    wide = torch.float32 if types & set(formats.NARROW) else torch.float64
    claimed = policy.at(wide)
    way = way_of(call.op, policy, wide)
    if way.declared and policy.orders and plan_of(call.op) is None:
        return None  # the products that a convolution is made of have other signatures in a part of it
    prescribed = way.exact or way.declared
    if call.rule.kind is Kind.ROUNDED and not prescribed and (claimed.calibrated or claimed.probabilistic):
        return None
    check_shapes(call.op, call.args, call.kwargs, node, call.refs, call.rule.kind)
    check_sizes(call.op, call.bound)
    return which


def _sliced(which: Narrowed, result: Result) -> bool:
    part = slice_of(which.call.op, which.call.bound, which.shapes(), result.output, all_of(result.ref[2]))
    if part is None:
        return False
    rows = part.rows
    # One proof shows the chunks of a storage, and which rows are read is not known before.
    return rows is None or which.refs[rows.operand][0] != which.refs[rows.index][0]


def written(which: Narrowed, values: bytes) -> dict[int, Held]:
    """Returns what the storages hold whose chunks have these chaining values, by slot.

    Raises:
        ProofError: They are not so many.
    """
    ends = [DIGEST_SIZE * each.first for each in which.results[1:]] + [max(len(values), 0)]
    found, at = dict[int, Held](), 0
    for each, end in zip(which.results, ends, strict=True):
        found[each.ref[0]] = Held(each.size, parts.digest_of(values[at:end], each.size))
        at = end
    return found


def chaining_value(result: Result, chunk: int, data: bytes) -> bytes:
    """Returns the chaining value of a chunk of a result; the digest, if it is the only one.

    Args:
        result: The result.
        chunk: Number of the chunk among those of all results.
        data: Its bytes.
    """
    return bytes_digest(data) if result.chunks == 1 else parts.chaining_value(data, chunk - result.first, result.size)


def any_has(value: bytes, result: Result, chunk: int, contents: Iterable[bytes]) -> bool:
    """Says whether one of many contents of a chunk has a chaining value; other operands as of `chaining_value`."""
    if result.chunks == 1:
        return any(bytes_digest(data) == value for data in contents)
    return parts.any_has(value, contents, chunk - result.first, result.size)
