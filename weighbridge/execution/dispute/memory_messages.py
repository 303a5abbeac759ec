"""What the parties to a dispute about a chip's memory say: that two storages are one, and the way down to a chunk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Equality:
    """Opens a dispute: a storage that a chip hashed held exactly these bytes.

    Attributes:
        token: The chip's snapshot token, as its log has it.
        salt: Of that boot, with which the chip keyed its digests (32 bytes).
        leaf: Which storage, encoded: `memory_claim.KeyedLeaf`.
        source: Which bytes, encoded: `memory_claim.Source`.
        keyed: The highest layer of the storage's tree (`weighbridge.core.treehash.descent`), keyed.
        plain: The highest layer of the tree of the bytes.
    """

    token: bytes
    salt: bytes
    leaf: bytes
    source: bytes
    keyed: bytes
    plain: bytes


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The defender does not deny the claim."""


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """The defender denies what the newest layers say of one node.

    Attributes:
        node: Its place in the layer.
        chunk: Of a chunk, its bytes if the defender has them; else nothing, and the challenger is to show them.
    """

    node: int
    chunk: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The challenger's values below the node that is denied.

    Attributes:
        keyed: Of the storage's tree.
        plain: Of the tree of the bytes.
    """

    keyed: bytes
    plain: bytes
