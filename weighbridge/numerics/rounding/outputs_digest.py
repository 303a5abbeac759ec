"""One digest over all rounded outputs of a step: what a step without a rounding log commits to.

Checksums are linear, so they find the operation that differs but commit to nothing. This digest is collision-resistant.
Each output is hashed where its memory is, and the hashes are hashed in order.
"""

from __future__ import annotations

import struct

import torch
from blake3 import blake3

from weighbridge.core.treehash.tree import tensor_digest

_DOMAIN = b"weighbridge/outputs/1\x00"
_HEADER = struct.Struct("<QQQ")


class OutputsDigest:
    """The digest of the outputs so far: BLAKE3 over the domain and, for each, three numbers and its own digest.

    The numbers are 64 bits each, little endian: the operation, the output of that operation, and the output's bytes.
    """

    def __init__(self) -> None:
        self._hash = blake3(_DOMAIN)

    def add(self, op: int, output: int, out: torch.Tensor) -> None:
        """Takes in the next output.

        Args:
            op: Index of the operation in its step.
            output: Index of the rounded result within the operation.
            out: The result, dense; its elements count in the order in which they lie in memory.
        """
        size = out.numel() * out.itemsize
        self._hash.update(_HEADER.pack(op, output, size) + tensor_digest(out))

    def digest(self) -> bytes:
        """Returns the digest of the outputs so far (32 bytes)."""
        return self._hash.digest()
