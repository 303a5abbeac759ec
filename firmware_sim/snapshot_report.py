"""What the shim reports of a snapshot, and how its leaves are packed on the link and on the chip's disk."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from weighbridge.core.digests import DIGEST_SIZE, Leaf
from weighbridge.core.errors import ChipError

_LEAF = struct.Struct(f"<Q{DIGEST_SIZE}s")
LEAF_SIZE = _LEAF.size
MAX_LEAVES = 1 << 18


def pack_leaves(leaves: list[Leaf]) -> bytes:
    """Returns leaves in ascending order, 40 bytes each: size (8 bytes, little endian) and digest."""
    return b"".join(_LEAF.pack(size, digest) for size, digest in sorted(leaves))


def unpack_leaves(data: bytes) -> list[Leaf]:
    """Inverse of `pack_leaves`: pack_leaves(unpack_leaves(d)) == d for every d that is accepted.

    Raises:
        ChipError: It is no ascending list of leaves.
    """
    if len(data) % LEAF_SIZE or len(data) > MAX_LEAVES * LEAF_SIZE:
        raise ChipError("The leaves of a snapshot are cut off or too many.", code="chip.snapshot.leaves")
    leaves: list[Leaf] = list(_LEAF.iter_unpack(data))
    if leaves != sorted(leaves) or any(size >= 1 << 63 for size, _ in leaves):
        raise ChipError("The leaves of a snapshot are not in order or of impossible size.", code="chip.snapshot.leaves")
    return leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What the shim saw when it stopped the kernels.

    Attributes:
        leaves: (bytes, keyed digest) of every live storage.
        weights: The same for the declared weights region; each of them is among `leaves` too.
        safepoint: Whether the workload offered the moment; if not, running is empty, and if it claims no position, head
            is too, and step and op are -1.
        head: The workload's claim of the transcript's running head.
        running: The workload's claim of the digest of this step's operations so far.
        step: The workload's claim of the step in progress.
        op: The workload's claim of how many operations of it are complete.
        held: Kernels that ran between the interrupt and the snapshot.
        stall_us: Microseconds for which the kernels had been stopped when this was sent.
        unobserved: Bytes that the workload's process holds where no live storage is.
    """

    leaves: list[Leaf]
    weights: list[Leaf]
    safepoint: bool
    head: bytes
    running: bytes
    step: int
    op: int
    held: int
    stall_us: int
    unobserved: int
