"""Executes a step while its tree is made: results are noted, not compared.

What a party claims about a step is what its own execution gives. Whether that is what a step record says is noted too:
a party that disputes another's record claims nothing about the operation at which the two part.

Products of a declared unit that truncates are what the unit makes of them, whatever the log says: its model computes
every element whose rounding the bound leaves open. A log that says otherwise ends the tree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import LogError, UsageError, WeighbridgeError
from weighbridge.core.memory_map import Held
from weighbridge.core.treehash import parts as trees
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.dispute.leaves import ENTER, FINISH, Counters, Leaf, encoded, values_of
from weighbridge.execution.dispute.narrowing import Narrowed, narrowed
from weighbridge.execution.dispute.openings import Contents, Opening, opened_slots
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import Following
from weighbridge.execution.memory_roots import MemoryRoots, held
from weighbridge.execution.unit_openings import contradicted, of_unit
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.numerics.slices.norms import worst_row
from weighbridge.program.flops import flops
from weighbridge.program.operands import whole
from weighbridge.transcript.steps import Scalar, StepRecord, same_scalar
from weighbridge.transcript.tape import DTYPES, Tape

WHOLE_VALUE = {torch.float32: 32, torch.bfloat16: 16, torch.float16: 16}
"""Bits that an entry of width 0 states."""


class Tracing(Following):
    """The context of a step whose tree is made: takes results as they come out, and notes them.

    Attributes:
        noted: (digest, checksum) of the results since the last leaf.
        hashed: These results, dense and of one dimension, their versions when they were hashed, and their digests.
        read: Values that were read back since then.
        entries: Log entries that were followed.
        chosen: Bits that they state.
        explainable: Whether a result may differ from its checksum for want of a wider bound on this device.
        explaining: Whether such a result is taken as its checksum has it.
        misled: What is wrong with the log of the operation since the last leaf, if it has other results than the
            declared unit; the unit's were taken.
    """

    misled: LogError | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what `Following` takes."""
        super().__init__(*args, **kwargs)
        self.noted: list[tuple[bytes, int]] = []
        self.hashed: list[tuple[Tensor, int, bytes]] = []
        self.read: list[Scalar] = []
        self.entries, self.chosen = 0, 0
        self.explainable = self.explaining = False
        self.misled = None

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        entries = self._entries(wide.numel())
        self.rounded_elements += wide.numel()
        small = dtype in formats.NARROW
        result = narrow.follow(wide, bound, dtype, entries) if small else contested.follow(wide, bound, entries)
        self.followed += result.followed
        at, self._output = self._output, self._output + 1
        if entries is not None:
            self.entries += len(entries.positions)
            widths = entries.widths.astype("int64")
            self.chosen += int(widths.sum()) + int((widths == 0).sum()) * WHOLE_VALUE[dtype]
        if result.inadmissible:
            raise LogError(
                f"step {self.record.step}, operation {self.op} ({self.operation}): the log asks for "
                f"{result.inadmissible} outcomes that no conforming device could have rounded to",
                code="replay.rounding.inadmissible", step=self.record.step, op=self.op, operation=self.operation,
            )  # fmt: skip
        if bound.judge is not None:
            out, checksum = of_unit(wide, bound, result, entries)
            where = f"step {self.record.step}, operation {self.op} ({self.operation})"
            self.misled = self.misled or contradicted(result, out, entries, where)
            return self._rounded(out, checksum, at)
        wanted = self._wanted[self.checked : self.checked + 1]
        if wanted and wanted[0] != result.checksum:
            explain = narrow.explanation if small else contested.explanation
            other = explain(wide, bound, entries, result.out, wanted[0], result.checksum)
            self.explainable |= other is not None
            if other is not None and self.explaining:
                return self._rounded(other, wanted[0], at)
        return self._rounded(result.out, result.checksum, at)

    def _rounded(self, out: Tensor, checksum: int, output: int) -> Tensor:
        if self.outputs is not None:
            self.outputs.add(self.op, output, out)
        self._note(out, checksum)
        return out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            checksum = (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)
        self._note(bits, checksum)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        self.read.append(value)
        self.hosts += 1
        return value

    def _note(self, out: Tensor, checksum: int) -> None:
        made = flat(out)
        digest = bytes_digest(made.view(torch.uint8).cpu().numpy().data)
        self.noted.append((digest, checksum))
        self.hashed.append((made, made._version, digest))
        self.checked += 1

    def taken(self) -> list[tuple[Tensor, bytes]]:
        """Returns the results that were not changed since they were hashed, with their digests, and lets them go."""
        found = [(made, digest) for made, version, digest in self.hashed if made._version == version]
        self.hashed = []
        return found

    def counters(self, flops: int) -> Counters:
        """Returns how far the step is.

        Args:
            flops: FLOPs of the operations so far.
        """
        return Counters(
            rng=dict(self.rng), entries=self.entries, chosen=self.chosen, flops=flops % (1 << 64), checked=self.checked,
            hosts=self.hosts, rounded=self.rounded_elements,
        )  # fmt: skip

    def recorded(self) -> bool:
        """Says whether the results and values since the last leaf are those that the step record has."""
        first, host = self.checked - len(self.noted), self.hosts - len(self.read)
        said, read = self._wanted[first : self.checked], self.record.host[host : self.hosts]
        if [checksum for _, checksum in self.noted] != said or len(read) != len(self.read):
            return False
        return all(same_scalar(a, b) for a, b in zip(read, self.read, strict=True))


class PartedError(Exception):
    """The execution parts from the step record; only ever caught here."""


class Tracer(Executor):
    """Makes the tree of one step after another.

    Attributes:
        tree: The leaves of the last step.
        opening: What was asked to be opened of it, or None.
        shown: The leaf that was asked for, encoded, if it was made.
        parts: Chaining values of the chunks of its operation's result; nothing if that is executed whole.
        parted: Why the tree ends early; "" if it does not.
        explaining: Whether results that a wider bound would explain are taken as the record's checksums have them.
    """

    tree: list[Leaf]
    opening: Opening | None = None
    shown = parts = b""
    parted = ""
    explaining = False
    _reaching = False

    def reach(
        self, tape: Tape, record: StepRecord, log: LogReader | None, batch: Mapping[str, Tensor],
        undeclared: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Executes a step on the state that was loaded as a replay does, and makes no tree.

        Args:
            tape: The program.
            record: The step's record.
            log: Its rounding log; None if it is made on demand, and is not here.
            batch: Batch tensors by path.
            undeclared: Undeclared tensors by name.

        Raises:
            WeighbridgeError: The step does not come out as it was recorded.
        """
        self._reaching = True
        try:
            self.run(tape, record.tape, record, log, batch, undeclared)
        finally:
            self._reaching = False

    def _context(self, record: StepRecord, log: LogReader | None) -> Following:
        if self._reaching:
            return super()._context(record, log)
        self._tracing = Tracing(record, log, self._seed, self._policy)
        self._tracing.explaining = self.explaining
        return self._tracing

    def trace(
        self, tape: Tape, record: StepRecord, log: bytes, batch: Mapping[str, Tensor],
        undeclared: Mapping[str, Tensor], state: bytes, *, place: int | None = None, part: int | None = None,
        to_the_end: bool = False,
    ) -> None:  # fmt: skip
        """Executes a step on the state that was loaded and makes its tree.

        Args:
            tape: The program.
            record: The step's record.
            log: Its rounding log, encoded.
            batch: Batch tensors by path.
            undeclared: Undeclared tensors by name.
            state: Digest of the state before the step (32 bytes).
            place: A leaf that is to be opened.
            part: Of its operation's result, the chunk that is to be opened alone.
            to_the_end: Whether to go on where results are not those of the record.

        Raises:
            UsageError: The step exchanges with other ranks.
        """
        if record.collectives:
            raise UsageError("A step that exchanges with other ranks cannot be disputed; replay the whole job.")
        self.tree, self.opening, self.parted = [], None, ""
        self.shown = self.parts = b""
        which: Narrowed | None = None
        counted = flops(tape)
        roots, done = MemoryRoots(tape), Counters()
        regions = {name: held(data) for name, data in self.state.items()} if place in (0, len(tape.nodes) + 1) else {}
        given = Contents(regions, dict(self.rng))

        def before(index: int, slots: Mapping[int, Tensor]) -> None:
            nonlocal done, which
            context = self._tracing
            roots(index, slots, context.taken())
            if index == 0:
                self.tree.append(enter(record, state, roots.roots[0]))
            else:
                node = tape.nodes[index - 1]
                if place == index and which is not None:
                    self.parts = b"".join(
                        trees.chaining_values(raw(slots[each.ref[0]]) or b"") for each in which.results
                    )
                after = context.counters(done.flops + counted[index - 1])
                if not to_the_end and context.misled is not None:
                    raise context.misled
                if not to_the_end and not context.recorded():
                    raise PartedError(f"operation {index - 1} ({node.op}) gives other results than the record has")
                self.tree.append(
                    Leaf(
                        index=index,
                        node=encoded(node),
                        values=values_of(node, record.values),
                        host=context.read,
                        results=context.noted,
                        before=done,
                        after=after,
                        memory=roots.roots[-2],
                        left=roots.roots[-1],
                    )
                )
                if place == index:
                    self.shown = self.tree[-1].to_cbor()
                done = after
                context.noted, context.read, context.misled = [], [], None
            if place == index + 1:
                previous, first = self.tree[-1].to_cbor(), self.tree[0].to_cbor()
                if index < len(tape.nodes):
                    sizes = {slot: data.numel() for slot, data in slots.items()}
                    which = narrowed(tape, index, record.values, self._policy, sizes)
                    worst = None if which is None or part is None else _worst(which, part, slots)
                    needed = None if which is None or part is None else _needed(which, part, slots, worst)
                    parts = [
                        (
                            slot, _shown(raw(slots.get(slot)), slot, needed) if reads else None,
                            _held(slots.get(slot)), roots.proof(slot),
                        )
                        for slot, reads in opened_slots(tape, index)
                    ]  # fmt: skip
                    self.opening = Opening(first=first, previous=previous, log=log, slots=parts, worst=worst)
                else:
                    memory = {slot: held(data) for slot, data in slots.items()}
                    self.opening = Opening(first=first, previous=previous, log=log, state=given, memory=memory)

        if place == 0:
            self.opening = Opening(log=log, state=given, batch=dict(batch), undeclared=dict(undeclared))
        self.before = before
        reader = LogReader(log, max_entries=most_entries(record))
        try:
            self.run(tape, record.tape, record, reader, batch, undeclared)
            reached = self.state_digest()
            if not to_the_end and not ends_as(record, done, reached):
                raise PartedError("the step leaves another state, or other counts, than the record has")
            self.tree.append(finish(len(tape.nodes) + 1, done, roots.roots[-1], reached))
        except (PartedError, WeighbridgeError) as error:
            self.parted = str(error)
        finally:
            self.before = None


def most_entries(record: StepRecord) -> int:
    """Returns how many entries the rounding log of a step may have: of one made on demand, one for each element."""
    return record.rounded if record.outputs else record.logged


def ends_as(record: StepRecord, done: Counters, state: bytes) -> bool:
    """Says whether a step that ended so is the one of a record.

    Args:
        record: The record.
        done: Counters after the last operation.
        state: Digest of the state that the step leaves (32 bytes).
    """
    return (
        done.checked * 8 == len(record.checksums)
        and done.hosts == len(record.host)
        and (done.entries == record.logged or bool(record.outputs))
        and done.rounded == record.rounded
        and {str(number): at for number, at in done.rng.items()} == {name: pair[1] for name, pair in record.rng.items()}
        and state == record.state
    )


def enter(record: StepRecord, state: bytes, root: bytes) -> Leaf:
    """Returns the first leaf of a step.

    Args:
        record: The step's record.
        state: Digest of the state before it.
        root: Memory root once all has entered.
    """
    starts = sorted((name, pair[0]) for name, pair in record.rng.items())
    return Leaf(
        index=0, node=[ENTER, record.kind, record.batch, starts], values=list(record.values), host=[], results=[],
        before=Counters(), after=Counters(), memory=state, left=root,
    )  # fmt: skip


def finish(index: int, done: Counters, root: bytes, state: bytes) -> Leaf:
    """Returns the last leaf of a step.

    Args:
        index: Which leaf that is.
        done: Counters after the last operation.
        root: Memory root then.
        state: Digest of the state that the step leaves.
    """
    return Leaf(
        index=index, node=[FINISH], values=[], host=[], results=[], before=done, after=done, memory=root, left=state
    )


def raw(data: Tensor | None) -> bytes | None:
    """Returns the bytes of a storage, if there is one."""
    return None if data is None else whole(data).cpu().numpy().tobytes()


def _shown(data: bytes | None, slot: int, needed: Mapping[int, Collection[int]] | None) -> bytes | None:
    """Returns what is shown of a storage: all of it, or the chunks that are needed."""
    return data if data is None or needed is None else trees.cut(data, needed.get(slot, ()))


def _needed(which: Narrowed, part: int, slots: Mapping[int, Tensor], worst: int | None) -> dict[int, set[int]]:
    """Returns the chunks of storages that a part of an operation reads."""
    named = which.named(part)
    if named is None:
        return which.needed(part, None, worst)
    data = raw(slots.get(named[0])) or b""
    return which.needed(part, {at: data[CHUNK * at : CHUNK * (at + 1)] for at in named[1]}, worst)


def _worst(which: Narrowed, part: int, slots: Mapping[int, Tensor]) -> int | None:
    """Returns the row of which the bound of all rows is made, if the bound reads one."""
    operand = which.slice(part).worst
    if operand is None:
        return None
    slot, name, size, stride, offset = which.refs[operand]
    x = torch.as_strided(whole(slots[slot]).view(DTYPES[name]), size, stride, offset)
    return worst_row(which.call.bound | {operand: x})


def _held(data: Tensor | None) -> Held | None:
    return None if data is None else held(data)
