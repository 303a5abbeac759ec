"""The memory root at every position of a step, made while the step is executed.

Set as `Executor.before`. Only storages that an operation made, replaced, freed or may have written are looked at again,
so the cost follows what a step writes and not what it holds. Which operands an operation may write says its schema;
views and operations that read only leave the map as it is. A storage that holds what was hashed as a result is not
hashed again: comparing its bytes with that result takes a fraction of hashing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weighbridge.core.digests import bytes_digest
from weighbridge.core.memory_map import Held, MemoryMap
from weighbridge.execution.location import operands
from weighbridge.numerics.schemas import mutated
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import RESIZE, Tape, references

COLLECTIVE_RESULTS = "outs"
"""Operands that a collective writes."""


def slots_of(tape: Tape) -> int:
    """Returns how many slots a tape's memory map has: one more than the largest that enters or is made; at least 1."""
    entering = [item.slot for item in tape.inputs]
    made = [slot for node in tape.nodes for slot, _ in node.births]
    return 1 + max([0, *entering, *made])


def may_write(tape: Tape, op: int) -> frozenset[int]:
    """Returns the slots whose storage an operation makes, replaces or may write.

    Raises:
        TapeError: The tape names an operation that does not exist.
    """
    node = tape.nodes[op]
    born = {slot for slot, _ in node.births}
    changed = None if node.op == RESIZE else {*mutated(resolve(node.op)), COLLECTIVE_RESULTS}
    written = [
        tape.refs[ref][0]
        for name, value in operands(node)
        if changed is None or name in changed
        for ref in references(value)
    ]
    return frozenset(born.union(written))


class MemoryRoots:
    """Collects the memory roots of one step.

    Attributes:
        roots: The root before each operation so far, and after the last one (32 bytes each).
        hashed: Bytes of storages hashed so far.
    """

    def __init__(self, tape: Tape) -> None:
        """Begins a step.

        Args:
            tape: The program of the step.
        """
        self.roots: list[bytes] = []
        self.hashed = 0
        self._tape = tape
        self._map = MemoryMap(slots_of(tape))
        self._seen: dict[int, Tensor] = {}
        self._results: Sequence[tuple[Tensor, bytes]] = ()
        self._frees: dict[int, list[int]] = {}
        for at, slot in tape.frees:
            self._frees.setdefault(at, []).append(slot)

    def __call__(self, index: int, slots: Mapping[int, Tensor], results: Sequence[tuple[Tensor, bytes]] = ()) -> None:
        """Takes the memory before operation `index`; called in order, once for each.

        Args:
            index: Operations that are complete.
            slots: Storages by slot (uint8).
            results: What the last operation made, dense in one dimension, and its digests (32 bytes).
        """
        self._results = results
        if index:
            written = may_write(self._tape, index - 1)
            for slot in written.union(self._frees.get(index - 1, ())):
                self._take(slot, slots.get(slot), written=slot in written)
        if not index or len(self._seen) != len(slots):
            for slot in self._seen.keys() - slots.keys():
                self._take(slot, None, written=False)
            for slot, data in slots.items():
                self._take(slot, data, written=False)
        self.roots.append(self._map.root())

    def _take(self, slot: int, data: Tensor | None, *, written: bool) -> None:
        """Takes what a slot holds now, if that may have changed."""
        if data is None:
            if self._seen.pop(slot, None) is not None:
                self._map.put(slot, None)
        elif written or self._seen.get(slot) is not data:
            self._map.put(slot, self._held(data))
            self._seen[slot] = data

    def _held(self, data: Tensor) -> Held:
        for result, digest in self._results:
            if result.nbytes == data.numel() and torch.equal(result.view(torch.uint8), data):
                return Held(data.numel(), digest)
        self.hashed += data.numel()
        return held(data)

    def proof(self, slot: int) -> list[bytes]:
        """Returns the proof of what a slot holds at the last position (`MemoryMap.proof`).

        Raises:
            UsageError: There is no such slot.
        """
        return self._map.proof(slot)


def held(data: Tensor) -> Held:
    """Returns what a memory map says of a storage.

    Args:
        data: The storage (uint8, any device).
    """
    return Held(data.numel(), bytes_digest(data.cpu().numpy().data))
