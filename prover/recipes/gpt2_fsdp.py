"""The GPT-2 recipe on several ranks: weights sharded over all of them by FSDP2, the records of a batch dealt out."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from prover.recipes.gpt2 import Gpt2


def sharded_gpt2(**sizes: Any) -> Gpt2:
    """Returns the recipe as this process's rank of the default process group runs it.

    Args:
        **sizes: Fields of `Gpt2`; the batch size is that of all ranks together.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return Gpt2(**sizes, share=(rank, ranks), wrap=_shard)


def _shard(model: Any) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def shards(model: nn.Module) -> list[Any]:
    """Returns the memory of the weights that this rank holds."""
    return [parameter.to_local() if hasattr(parameter, "to_local") else parameter for parameter in model.parameters()]
