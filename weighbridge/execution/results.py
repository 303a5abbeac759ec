"""Takes what an operation returned into the storages of a step, if it is what the tape says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from weighbridge.core.errors import TapeError
from weighbridge.program.operands import adopt, same, storages
from weighbridge.transcript.tape import DTYPES, Ref

Tensor = torch.Tensor


def take(
    out: Any, refs: list[Ref | None], births: Mapping[int, int], operands: Iterable[Any], changed: Collection[int],
    slots: dict[int, Tensor], device: torch.device, name: str,
) -> None:  # fmt: skip
    """Compares what an operation returned with the tape, and keeps the storages that it made.

    Args:
        out: What it returned.
        refs: What the tape says of each value; None for what is no tensor.
        births: Bytes of the storages that it should make, by slot.
        operands: Its operands.
        changed: Identities of those that it changed.
        slots: Storages by slot.
        device: Where the step runs.
        name: The operation, for messages: its number and overload.

    Raises:
        TapeError: The tape says otherwise.
    """
    returned = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(returned) != len(refs):
        raise TapeError(f"operation {name} returned {len(returned)} values; the tape says {len(refs)}")
    for value, ref in zip(returned, refs, strict=True):
        if ref is None:
            continue
        if not isinstance(value, Tensor):
            raise TapeError(f"operation {name} returned no tensor where the tape has one")
        if DTYPES[ref[1]] != value.dtype or ref[2] != tuple(value.shape):
            raise TapeError(f"operation {name} made {tuple(value.shape)} {value.dtype}; the tape says {ref[1:3]}")
        if ref[0] in births:
            if value.untyped_storage()._cdata in storages([*operands]):
                raise TapeError(f"operation {name} makes no memory where the tape says it does")
            slots[ref[0]] = adopt(value, ref, births[ref[0]], device)
        elif id(value) not in changed and not same(value, slots[ref[0]]):
            raise TapeError(f"operation {name} did not return the storage that the tape names")
    if set(births) - set(slots):
        raise TapeError(f"operation {name} did not make a storage that the tape says it makes")
