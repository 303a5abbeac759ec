"""Opening single records of a data set against its commitment, without the rest of it.

The draft fixes the Merkle root over the digests of all records, and the chip logs the draft. So a record, with its path
to that root, is proven to be what was committed to before training; no batch and no other record is needed.

A record's content travels as deterministic CBOR: [[path, dtype, shape, bytes], ...], ascending by path, without the
batch dimension; the leaf of the tree is the digest of kind `record/1` over the same with each tensor's bytes replaced
by their digest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weighbridge.core import merkle
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest, cbor, record_digest
from weighbridge.core.errors import FormatError, ProofError
from weighbridge.transcript.tensor_file import DTYPES, dtype_name, raw_bytes

MAX_RECORDS = 65_536
"""Records that are opened at once, at most."""
_MAX_ITEMS = 65_536
"""Items of CBOR in one record, at most."""
MAX_CONTENT = 3 << 20
"""Bytes of the content of one record, at most: it travels in one message."""
_MAX_DIMENSIONS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedRecord:
    """One record as it was shown; nothing of it is verified.

    Attributes:
        record: Its id in the data commitment.
        content: Its tensors, encoded.
        proof: Merkle path from its leaf upwards, 32 bytes each.
    """

    record: int
    content: bytes
    proof: tuple[bytes, ...]


def encode(record: Mapping[str, Tensor]) -> bytes:
    """Returns the content of a record.

    Args:
        record: Path to tensor, without the batch dimension.
    """
    return cbor([[name, dtype_name(t.dtype), list(t.shape), bytes(raw_bytes(t))] for name, t in sorted(record.items())])


def verify(opened: OpenedRecord, root: bytes, count: int) -> dict[str, Tensor]:
    """Checks an opened record against a commitment.

    Args:
        opened: What was shown; it may be hostile.
        root: The commitment's root, from the draft (32 bytes).
        count: Its number of records.

    Returns:
        Path to tensor, in host memory.

    Raises:
        FormatError: The content breaks the rules of its format.
        ProofError: The path does not lead to the root.
    """
    parts = _decode(opened.content)
    leaf = record_digest("record/1", [[name, dtype, shape, bytes_digest(data)] for name, dtype, shape, data in parts])
    if any(len(each) != DIGEST_SIZE for each in (*opened.proof, root)):
        raise ProofError("a Merkle path consists of digests of 32 bytes; ask for the record again")
    merkle.verify_inclusion(merkle.leaf_hash(leaf), opened.record, count, opened.proof, root)
    return {name: _tensor(dtype, shape, data) for name, dtype, shape, data in parts}


Part = tuple[str, str, list[int], bytes]


def _decode(content: bytes) -> list[Part]:
    if len(content) > MAX_CONTENT:
        raise FormatError(f"a record has {len(content)} bytes, more than {MAX_CONTENT}; it cannot be opened by itself")
    value = decode_cbor(content, max_items=_MAX_ITEMS)
    if type(value) is not list or not value:
        raise FormatError("the content of a record is not a list of tensors; ask for the record again")
    parts = [_part(each) for each in value]
    names = [name for name, *_ in parts]
    if names != sorted(set(names)) or cbor([list(part) for part in parts]) != content:
        raise FormatError("the tensors of a record are not in ascending order of their paths; ask for it again")
    return parts


def _part(value: Any) -> Part:
    match value:
        case [str(name), str(dtype), list(shape), bytes(data)] if dtype in DTYPES and len(shape) <= _MAX_DIMENSIONS:
            sizes = all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
            fits = sizes and math.prod(shape) * DTYPES[dtype].itemsize == len(data)
            if fits and (dtype != "bool" or not data.strip(b"\0\1")):
                return name, dtype, shape, data
    raise FormatError("a tensor of a record is not [path, dtype, shape, bytes]; ask for the record again")


def _tensor(dtype: str, shape: Sequence[int], data: bytes) -> Tensor:
    if not data:
        return torch.zeros(list(shape), dtype=DTYPES[dtype])
    raw = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
    return raw.view(DTYPES[dtype]).reshape(list(shape))
