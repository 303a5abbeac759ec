"""The layout of what was attached: of each `DTensor` the part that this rank holds."""

from __future__ import annotations

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from prover.capture.attached_objects import Attached
from weighbridge.transcript.layout import Shard
from weighbridge.transcript.tape import DTYPE_NAMES


def layout_of(attached: Attached) -> list[Shard]:
    """Returns the layout of all attached tensors; one that is no `DTensor` is whole."""
    shards = []
    for name, t in attached.global_tensors().items():
        dtype, shape = DTYPE_NAMES[t.dtype], tuple(t.shape)
        if not isinstance(t, DTensor):
            shards.append(Shard(name, dtype, shape, (0,) * len(shape), shape))
            continue
        sizes, offsets = compute_local_shape_and_global_offset(t.shape, t.device_mesh, t.placements)
        empty = 0 in sizes and 0 not in shape  # the offset of nothing may lie anywhere
        shards.append(Shard(name, dtype, shape, (0,) * len(shape) if empty else tuple(offsets), tuple(sizes)))
    return shards
