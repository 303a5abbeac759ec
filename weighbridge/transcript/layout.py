"""Which part of which tensor a rank holds, in the terms of distributed checkpointing.

A shard is a box of a global tensor: offsets and sizes along each dimension (docs/sharding.md, `layout.cbor`). So a
shard held by a chip can be compared with an unsharded state, and an unsharded state be put together from shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import Finding, FormatError, UsageError
from weighbridge.transcript.tape import DTYPES
from weighbridge.transcript.tensor_file import raw_bytes

Tensor = torch.Tensor

LAYOUT = "layout.cbor"
_MAX_DIMENSIONS = 32


@dataclass(frozen=True, slots=True)
class Shard:
    """What a rank holds of one tensor.

    Attributes:
        name: The tensor's name, the same on all ranks.
        dtype: Short dtype name, a key of `weighbridge.transcript.tape.DTYPES`.
        shape: Shape of the global tensor.
        offsets: First index of the part along each dimension.
        sizes: Size of the part along each dimension; the whole shape for a replicated tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def cut(self, whole: Tensor) -> Tensor:
        """Returns this part of a global tensor, as a view.

        Raises:
            UsageError: The tensor has another shape or dtype.
        """
        if tuple(whole.shape) != self.shape or whole.dtype != DTYPES[self.dtype]:
            raise UsageError(
                f"{self.name} is {tuple(whole.shape)} {whole.dtype} and not {self.shape} {self.dtype}; "
                "give the state of the same model"
            )
        for dim, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            whole = whole.narrow(dim, offset, size)
        return whole


def encode(shards: Iterable[Shard]) -> bytes:
    """Returns the bytes of `layout.cbor`: `[[name, dtype, shape, offsets, sizes], ...]`, ascending by name."""
    return cbor([[s.name, s.dtype, s.shape, s.offsets, s.sizes] for s in sorted(shards, key=lambda s: s.name)])


def decode(data: bytes) -> list[Shard]:
    """Reads what `encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format, or a part does not lie within its tensor.
    """
    raw = decode_cbor(data)
    if type(raw) is not list:
        raise FormatError(f"{LAYOUT} is not a list of shards; fetch it again")
    shards = [_shard(each) for each in raw]
    if [s.name for s in shards] != sorted({s.name for s in shards}):
        raise FormatError(f"the shards in {LAYOUT} are not in ascending order of different names; fetch it again")
    return shards


def _shard(raw: Any) -> Shard:
    match raw:
        case [str(name), str(dtype), list(shape), list(offsets), list(sizes)] if dtype in DTYPES:
            numbers = [*shape, *offsets, *sizes]
            if all(type(n) is int and 0 <= n < 1 << 62 for n in numbers) and len(shape) <= _MAX_DIMENSIONS:
                inside = [o + n <= total for total, o, n in zip(shape, offsets, sizes, strict=False)]
                if len(shape) == len(offsets) == len(sizes) and all(inside):
                    return Shard(name, dtype, tuple(shape), tuple(offsets), tuple(sizes))
    raise FormatError(f"a shard in {LAYOUT} is not a name, a dtype and a box within a shape; fetch it again")


def digest(tensor: Tensor) -> bytes:
    """Returns the digest of a tensor's elements in row-major order, whatever its strides (32 bytes)."""
    return bytes_digest(raw_bytes(tensor))


def check(shards: Sequence[Shard], held: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> list[Finding]:
    """Compares what a rank holds with an unsharded state, by digests.

    Args:
        shards: The rank's layout.
        held: The rank's tensors by name.
        whole: Tensors of the unsharded state by name.

    Returns:
        `layout.differs` for each shard whose content is not that part of the unsharded tensor, and for each that is
        absent from either side.
    """
    findings = []
    for shard in shards:
        mine, unsharded = held.get(shard.name), whole.get(shard.name)
        expected = "" if unsharded is None else _part_digest(shard, unsharded)
        found = "" if mine is None or tuple(mine.shape) != shard.sizes else digest(mine).hex()
        if not expected or expected != found:
            findings.append(
                Finding(
                    id="layout.differs",
                    message="A shard is not the part of the unsharded tensor that its layout says.",
                    expected=expected,
                    found=found,
                    subject=f"{shard.name} {list(shard.offsets)}+{list(shard.sizes)} of {list(shard.shape)}",
                )
            )
    return findings


def _part_digest(shard: Shard, whole: Tensor) -> str:
    try:
        return digest(shard.cut(whole)).hex()
    except UsageError:
        return ""


def assemble(parts: Sequence[tuple[Sequence[Shard], Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Puts an unsharded state together from what ranks hold.

    Args:
        parts: Layout and tensors of each rank.

    Returns:
        The global tensors by name.

    Raises:
        UsageError: Parts are missing, or ranks hold different content or layouts of the same part.
    """
    whole: dict[str, Tensor] = {}
    done: dict[str, Tensor] = {}
    for shards, held in parts:
        for shard in shards:
            mine = held.get(shard.name)
            if mine is None or tuple(mine.shape) != shard.sizes or mine.dtype != DTYPES[shard.dtype]:
                raise UsageError(f"a rank does not hold the part of {shard.name} that its layout says")
            target = whole.setdefault(shard.name, torch.zeros(shard.shape, dtype=mine.dtype))
            covered = done.setdefault(shard.name, torch.zeros(shard.shape, dtype=torch.bool))
            place, before = shard.cut(target), covered
            for dim, (offset, size) in enumerate(zip(shard.offsets, shard.sizes, strict=True)):
                before = before.narrow(dim, offset, size)
            if bool(before.any()) and raw_bytes(place[before]) != raw_bytes(mine[before]):
                raise UsageError(f"ranks hold different content of {shard.name}; they are not of one state")
            place.copy_(mine)
            before.fill_(True)
    for name, covered in done.items():
        if not bool(covered.all()):
            missing = math.prod(covered.shape) - int(covered.sum())
            raise UsageError(f"{missing} elements of {name} are held by no rank; give the parts of all ranks")
    return whole
