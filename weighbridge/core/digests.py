"""Digests of bytes, records and memory regions.

Two hash functions are in use: BLAKE3-256 over bulk bytes (tensors, files, regions), which is fast and itself a tree;
and the RFC 6962 SHA-256 tree of `merkle.py` above them. Structured records are hashed as deterministic CBOR (RFC 8949,
section 4.2.1) behind a domain tag, so that a digest of one kind of record can never be presented as another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import cbor2
from blake3 import blake3

from weighbridge.core import merkle

DIGEST_SIZE = 32


def cbor(value: Any) -> bytes:
    """Encodes `value` as deterministic CBOR."""
    return cbor2.dumps(value, canonical=True)


def bytes_digest(data: bytes | bytearray | memoryview) -> bytes:
    """Returns the 32-byte BLAKE3 digest of raw bytes."""
    return blake3(data, max_threads=blake3.AUTO if len(data) > 1 << 20 else 1).digest()


def record_digest(domain: str, value: Any) -> bytes:
    """Returns the digest of a structured record: BLAKE3 over `domain`, a zero byte and deterministic CBOR.

    Args:
        domain: Names the kind of record and its version, e.g. `step/1`.
        value: Anything deterministic CBOR can carry.
    """
    return blake3(b"weighbridge/" + domain.encode() + b"\x00" + cbor(value)).digest()


def chain(head: bytes, digest: bytes) -> bytes:
    """Returns the running head after a record with `digest` follows `head` (both 32 bytes)."""
    return record_digest("head/1", [head, digest])


def region_digest(data: bytes | bytearray | memoryview, salt: bytes) -> bytes:
    """Returns the keyed 32-byte digest of one memory region, as a snapshot holds it.

    Args:
        data: The region's bytes as they lie in memory.
        salt: The 32-byte per-boot salt of the chip.
    """
    return blake3(data, key=salt, max_threads=blake3.AUTO if len(data) > 1 << 20 else 1).digest()


Leaf = tuple[int, bytes]
"""One memory region: (number of bytes, keyed digest)."""


def snapshot_root(leaves: Iterable[Leaf], salt: bytes) -> bytes:
    """Returns the root over live storages: RFC 6962 over the sorted leaves, keyed by the salt.

    The order of storages in memory carries no meaning, so leaves are sorted by (bytes, digest).
    """
    ordered: Sequence[Leaf] = sorted(leaves)
    hashes = [merkle.leaf_hash(cbor([size, digest])) for size, digest in ordered]
    return record_digest("snapshot-root/1", [salt, len(hashes), merkle.root(hashes)])


def salt_digest(salt: bytes) -> bytes:
    """Returns what a token shows of the salt it was keyed with, so that an opening can prove to have the same one."""
    return record_digest("salt/1", salt)
