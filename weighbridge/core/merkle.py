"""RFC 6962 Merkle trees over SHA-256: roots, inclusion proofs and consistency proofs.

Snapshots, transcripts and logs all commit to lists of things by one root of this kind, so that a single thing can be
shown to belong to the list without showing the others. Functions take *leaf hashes*, never leaf data: the holder of a
list hashes it once and may throw the data away. A list that grows is a `Tree`, whose roots and proofs cost O(log n).

Sizes and indices count leaves from 0. Every hash is 32 bytes. Verifiers return nothing and raise `ProofError`.
The verification steps are those of RFC 9162, sections 2.1.3.2 and 2.1.4.2 (the trees are the same as RFC 6962's).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from weighbridge.core.errors import ProofError, UsageError

HASH_SIZE = 32

EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the tree without leaves (RFC 6962, section 2.1)."""


def leaf_hash(data: bytes) -> bytes:
    """Returns the hash of one leaf: SHA-256 over a zero byte and `data` (RFC 6962, section 2.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaf_hashes: Sequence[bytes]) -> bytes:
    """Returns the tree's root (RFC 6962, section 2.1).

    Args:
        leaf_hashes: Hash of each leaf in order; may be empty.
    """
    if not leaf_hashes:
        return EMPTY_ROOT
    level = list(leaf_hashes)
    while len(level) > 1:
        # A node without a sibling moves up unchanged: that makes the left subtree the largest power of two.
        parents = [_node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            parents.append(level[-1])
        level = parents
    return level[0]


def _split(size: int) -> int:
    """Returns the largest power of two below `size` (which is at least 2)."""
    return 1 << ((size - 1).bit_length() - 1)


def inclusion_proof(leaf_hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Returns the audit path of leaf `index`, from the leaf upwards (RFC 6962, section 2.1.1).

    Raises:
        UsageError: `index` is not one of the leaves.
    """
    return _inclusion_path(index, len(leaf_hashes), lambda start, end: root(leaf_hashes[start:end]))


def _inclusion_path(index: int, size: int, over: Callable[[int, int], bytes]) -> list[bytes]:
    """`over(start, end)` is the root over those leaves, for the ranges into which the standard splits a tree."""
    if not 0 <= index < size:
        raise UsageError(f"There is no leaf {index} among {size}; ask for an index below the tree's size.")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(over(middle, end))
            end = middle
        else:
            path.append(over(start, middle))
            start = middle
    path.reverse()
    return path


def consistency_proof(leaf_hashes: Sequence[bytes], old_size: int) -> list[bytes]:
    """Returns the proof that the tree over the first `old_size` leaves is a prefix (RFC 6962, section 2.1.2).

    Raises:
        UsageError: `old_size` is negative or above the number of leaves.
    """
    return _consistency_path(old_size, len(leaf_hashes), lambda start, end: root(leaf_hashes[start:end]))


def _consistency_path(old_size: int, size: int, over: Callable[[int, int], bytes]) -> list[bytes]:
    if not 0 <= old_size <= size:
        raise UsageError(f"The old size {old_size} is not between 0 and {size}; give a size the tree had.")
    if old_size in (0, size):
        return []
    path: list[bytes] = []
    start, end = 0, size
    known = True  # The old tree is exactly the leaves from start to end from the verifier's point of view.
    while old_size != end:
        middle = start + _split(end - start)
        if old_size <= middle:
            path.append(over(middle, end))
            end = middle
        else:
            path.append(over(start, middle))
            start = middle
            known = False
    if not known:
        path.append(over(start, end))
    path.reverse()
    return path


class Tree:
    """A growing list of leaf hashes with the hash of every complete subtree: 64 bytes of hashes a leaf.

    Roots and proofs are of the tree over the first `size` leaves, all of them by default, and cost O(log n).
    """

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        """Makes the tree over these leaf hashes (32 bytes each)."""
        self._levels: list[list[bytes]] = [[]]  # _levels[k][i] covers the leaves from i * 2^k to (i + 1) * 2^k
        for each in leaf_hashes:
            self.append(each)

    def __len__(self) -> int:
        return len(self._levels[0])

    def append(self, leaf_hash: bytes) -> None:
        """Adds a leaf at the end."""
        level, value = 0, leaf_hash
        self._levels[0].append(value)
        while len(self._levels[level]) % 2 == 0:
            value = _node_hash(self._levels[level][-2], value)
            level += 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(value)

    def leaves(self, start: int, end: int) -> list[bytes]:
        """Returns the leaf hashes start <= index < end."""
        return self._levels[0][start:end]

    def root(self, size: int | None = None) -> bytes:
        """Returns the root over the first `size` leaves.

        Raises:
            UsageError: There are fewer.
        """
        size = self._size(size)
        return self._over(0, size) if size else EMPTY_ROOT

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """As the function `inclusion_proof`, in the tree over the first `size` leaves."""
        return _inclusion_path(index, self._size(size), self._over)

    def consistency_proof(self, old_size: int, size: int | None = None) -> list[bytes]:
        """As the function `consistency_proof`, to the tree over the first `size` leaves."""
        return _consistency_path(old_size, self._size(size), self._over)

    def _size(self, size: int | None) -> int:
        if size is None:
            return len(self)
        if not 0 <= size <= len(self):
            raise UsageError(f"The tree has {len(self)} leaves, so none of {size} can be asked for; ask for its head.")
        return size

    def _over(self, start: int, end: int) -> bytes:
        level = (end - start).bit_length() - 1
        if end - start == 1 << level:  # start is a multiple of it, as the standard splits
            return self._levels[level][start >> level]
        middle = start + _split(end - start)
        return _node_hash(self._over(start, middle), self._over(middle, end))


def _check_hashes(*hashes: bytes) -> None:
    for value in hashes:
        if len(value) != HASH_SIZE:
            raise ProofError(
                f"A hash in the proof has {len(value)} bytes instead of {HASH_SIZE}; ask for the proof again."
            )


def verify_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Checks that a leaf is number `index` of the tree with `size` leaves and the given root.

    Raises:
        ProofError: The proof shows anything else.
    """
    _check_hashes(leaf_hash, root, *proof)
    if not 0 <= index < size:
        raise ProofError(f"Leaf {index} cannot be in a tree of {size} leaves; ask for a proof from a newer tree.")
    node, last, value = index, size - 1, leaf_hash
    for sibling in proof:
        if last == 0:
            raise ProofError("The inclusion proof is too long for the tree; ask for the proof again.")
        if node % 2 or node == last:
            value = _node_hash(sibling, value)
            # Levels at which this node had no sibling contribute nothing to the path.
            while node % 2 == 0 and node != 0:
                node, last = node >> 1, last >> 1
        else:
            value = _node_hash(value, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise ProofError("The inclusion proof is too short for the tree; ask for the proof again.")
    if value != root:
        raise ProofError(
            "The inclusion proof leads to another root: this leaf is not in that tree.",
            expected=root.hex(),
            found=value.hex(),
        )


def verify_consistency(old_size: int, new_size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Checks that the tree with `old_size` leaves is a prefix of the one with `new_size` leaves.

    Raises:
        ProofError: The proof shows anything else; an append-only log was rewritten or the proof is damaged.
    """
    _check_hashes(old_root, new_root, *proof)
    if not 0 <= old_size <= new_size:
        raise ProofError(f"A tree cannot shrink from {old_size} to {new_size} leaves; the log lost entries.")
    if old_size in (0, new_size):
        expected = EMPTY_ROOT if old_size == 0 else new_root
        if proof or old_root != expected:
            raise ProofError("Trees that must be equal are not, or their proof is not empty; the log was rewritten.")
        if new_size == 0 and new_root != EMPTY_ROOT:
            raise ProofError("The tree without leaves has another root than the standard says; ask for the head again.")
        return
    path = list(proof)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)  # A complete old tree is itself a node of the new one.
    if not path:
        raise ProofError("The consistency proof is empty; ask for the proof again.")
    node, last = old_size - 1, new_size - 1
    while node % 2:
        node, last = node >> 1, last >> 1
    old_value = new_value = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("The consistency proof is too long for the tree; ask for the proof again.")
        if node % 2 or node == last:
            old_value = _node_hash(sibling, old_value)
            new_value = _node_hash(sibling, new_value)
            while node % 2 == 0 and node != 0:
                node, last = node >> 1, last >> 1
        else:
            new_value = _node_hash(new_value, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise ProofError("The consistency proof is too short for the tree; ask for the proof again.")
    if old_value != old_root or new_value != new_root:
        raise ProofError(
            "The consistency proof leads to other roots: the log was rewritten.",
            expected=[old_root.hex(), new_root.hex()],
            found=[old_value.hex(), new_value.hex()],
        )
