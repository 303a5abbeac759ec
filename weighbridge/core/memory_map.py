"""A Merkle map from storage slots to what they hold: one root for the whole memory of a step at one position.

Operands alone do not bind an operation that writes in place or returns a view, so a claim about an operation names the
memory before and after it. The map is a complete binary tree with one place for each slot of the tape. A slot without
a storage has a leaf of its own kind, so absence is proven as presence is. A change costs one hash a level, and
every proof has as many hashes as the tree has levels.

Hashes are BLAKE3-256 with a domain byte: 0 for an empty slot, 1 for a storage, 2 for an inner node. Leaves include
their slot; the root includes the number of slots (`memory-root/1`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blake3 import blake3

from weighbridge.core.digests import DIGEST_SIZE, record_digest
from weighbridge.core.errors import ProofError, UsageError

MAX_SLOTS = 1 << 24
"""Most slots of a map."""


@dataclass(frozen=True)
class Held:
    """What a slot holds.

    Attributes:
        size: Bytes of the storage.
        content: BLAKE3-256 of them (32 bytes).
    """

    size: int
    content: bytes


def _leaf(slot: int, held: Held | None) -> bytes:
    place = slot.to_bytes(8, "little")
    if held is None:
        return blake3(b"\x00" + place).digest()
    return blake3(b"\x01" + place + held.size.to_bytes(8, "little") + held.content).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return blake3(b"\x02" + left + right).digest()


def _check(slots: int, slot: int, held: Held | None) -> None:
    if not 0 < slots <= MAX_SLOTS or not 0 <= slot < slots:
        raise UsageError(f"There is no slot {slot} among {slots}; ask for a slot of the tape.")
    if held is not None and not (0 <= held.size < 1 << 63 and len(held.content) == DIGEST_SIZE):
        raise UsageError(f"Slot {slot} cannot hold {held.size} bytes with a digest of {len(held.content)} bytes.")


class MemoryMap:
    """The map of a memory that changes; each change costs as many hashes as the tree has levels."""

    def __init__(self, slots: int) -> None:
        """Makes the map of a memory in which nothing exists yet.

        Args:
            slots: Slots of the tape.

        Raises:
            UsageError: There are none, or more than `MAX_SLOTS`.
        """
        _check(slots, 0, None)
        self._slots = slots
        places = 1 << (slots - 1).bit_length()
        self._levels = [[_leaf(slot, None) for slot in range(places)]]
        while len(below := self._levels[-1]) > 1:
            self._levels.append([_node(below[i], below[i + 1]) for i in range(0, len(below), 2)])

    def put(self, slot: int, held: Held | None) -> None:
        """Says what a slot holds now; None if its storage was freed.

        Raises:
            UsageError: There is no such slot, or nothing can be held so.
        """
        _check(self._slots, slot, held)
        value, at = _leaf(slot, held), slot
        self._levels[0][at] = value
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            at //= 2
            above[at] = _node(level[2 * at], level[2 * at + 1])

    def root(self) -> bytes:
        """Returns the memory root (32 bytes)."""
        return record_digest("memory-root/1", [self._slots, self._levels[-1][0]])

    def proof(self, slot: int) -> list[bytes]:
        """Returns the hashes beside the path from a slot to the root, from the leaf upwards.

        Raises:
            UsageError: There is no such slot.
        """
        _check(self._slots, slot, None)
        return [level[(slot >> depth) ^ 1] for depth, level in enumerate(self._levels[:-1])]


def verify_held(slots: int, slot: int, held: Held | None, proof: Sequence[bytes], root: bytes) -> None:
    """Checks that a slot holds this, or nothing, in the memory with the given root.

    Args:
        slots: Slots of the tape, which both parties agree on.
        slot: Which of them.
        held: What it holds; None if it has no storage.
        proof: As `MemoryMap.proof` returns it.
        root: The memory root (32 bytes).

    Raises:
        ProofError: The proof shows anything else.
    """
    try:
        _check(slots, slot, held)
    except UsageError as error:
        raise ProofError(error.message) from None
    if len(proof) != (slots - 1).bit_length() or any(len(each) != DIGEST_SIZE for each in proof):
        raise ProofError(f"The proof of slot {slot} has not the length of a map of {slots} slots; ask for it again.")
    value = _leaf(slot, held)
    for depth, beside in enumerate(proof):
        value = _node(beside, value) if slot >> depth & 1 else _node(value, beside)
    if record_digest("memory-root/1", [slots, value]) != root:
        raise ProofError(f"The memory root does not say this of slot {slot}; the opening is of another memory.")


def changed_root(
    slots: int,
    opened: Mapping[int, tuple[Held | None, Sequence[bytes]]],
    changes: Mapping[int, Held | None],
    root: bytes,
) -> bytes:
    """Returns the root of a memory after changes to slots that were opened, without knowing the rest of it.

    Args:
        slots: Slots of the tape.
        opened: By slot, what it holds and the proof, as `verify_held` takes them.
        changes: What some of these slots hold afterwards.
        root: The memory root before (32 bytes).

    Raises:
        ProofError: A proof shows anything else, or a slot changes that was not opened.
    """
    for slot, (held, proof) in opened.items():
        verify_held(slots, slot, held, proof, root)
    if not changes.keys() <= opened.keys():
        raise ProofError("A slot changes that was not opened; open every slot that the operation may write.")
    if not changes:
        return root
    beside = {
        (depth, (slot >> depth) ^ 1): value for slot, (_, proof) in opened.items() for depth, value in enumerate(proof)
    }
    level = {}
    for slot, held in changes.items():
        _check(slots, slot, held)
        level[slot] = _leaf(slot, held)
    for depth in range((slots - 1).bit_length()):
        level = {
            at // 2: _node(*(level.get(child) or beside[depth, child] for child in (at & ~1, at | 1))) for at in level
        }
    return record_digest("memory-root/1", [slots, level[0]])
