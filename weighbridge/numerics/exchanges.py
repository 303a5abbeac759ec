"""What collectives mean here: a closed set of operations whose results have one right answer.

Every collective of PyTorch, in whatever form it was called, becomes one of these operators on a tape. They have no
kernels: the Recorder exchanges through `torch.distributed`, a replay between virtual ranks or from given results, and
both put results together by `combine`, in the order of the group (docs/sharding.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.arrays import physical
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.canonical_nan import make_canonical

Tensor = torch.Tensor

LIBRARY = torch.library.Library("weighbridge", "DEF")  # type: ignore[no-untyped-call]

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}

REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
ROOTED = frozenset({"reduce", "gather", "scatter", "broadcast"})
MESSAGES = frozenset({"send", "recv"})
NAMES = (*sorted(REDUCING), "all_gather", "gather", "scatter", "broadcast", "all_to_all", "send", "recv")

_SCHEMAS = [f"{name}(Tensor(a!)[] outs, Tensor[] ins, str reduction, int[] group, int root, int tag)" for name in NAMES]
for _schema in (*_SCHEMAS, "resize(Tensor(a!) self, int bytes)"):
    LIBRARY.define(f"{_schema} -> ()")  # type: ignore[no-untyped-call]

CANONICAL = (torch.float32, *formats.NARROW)
"""Types whose reduced results have a checksum; these and float64 have the canonical NaN."""


Sources = tuple[tuple[int, int], ...]
"""Where one tensor that a collective makes comes from: (group rank, which of the tensors that this member gives), in
the order of combination."""


def pieces(name: str, members: int, rank: int, root: int) -> list[Sources]:
    """Says what each of a collective's results at one member is made from.

    Args:
        name: One of `NAMES`.
        members: Size of the group; 2 for messages.
        rank: The member's group rank.
        root: The root's group rank.

    Returns:
        One entry for each tensor that the member gets, in order.
    """
    everybody = range(members)
    match name:
        case "all_reduce":
            return [tuple((i, 0) for i in everybody)]
        case "reduce":
            return [tuple((i, 0) for i in everybody)] if rank == root else []
        case "reduce_scatter":
            return [tuple((i, rank) for i in everybody)]
        case "all_gather":
            return [((i, 0),) for i in everybody]
        case "gather":
            return [((i, 0),) for i in everybody] if rank == root else []
        case "scatter":
            return [((root, rank),)]
        case "broadcast":
            return [((root, 0),)]
        case "all_to_all":
            return [((i, rank),) for i in everybody]
        case "recv":
            return [((0, 0),)]
    return []  # the sender gets nothing


def given(name: str, members: int, rank: int, root: int) -> int:
    """Returns how many tensors a member contributes; arguments as for `pieces`."""
    if name in ("reduce_scatter", "all_to_all") or (name == "scatter" and rank == root):
        return members
    return int(name not in ("recv", "scatter") and (name != "broadcast" or rank == root))


def combine(reduction: str, parts: Sequence[Tensor]) -> Tensor:
    """Combines what the members of a group contributed, in their order.

    Args:
        reduction: One of `REDUCTIONS`, or empty for what is only moved (one part).
        parts: Tensors of one dtype and shape.

    Returns:
        A new tensor of that dtype and shape: sums, means and products computed in float64 (bfloat16 and float16 in
        float32) and rounded once, with the canonical NaN.

    Raises:
        RefusedOperationError: The dtype has no such reduction.
    """
    dtype = parts[0].dtype
    if not reduction:
        return parts[0].clone()
    if dtype.is_complex or (dtype.is_floating_point and reduction in _BITWISE):
        raise RefusedOperationError(f"the reduction {reduction} of {dtype} has no rule; use another type")
    if reduction in ("min", "max"):
        pick = torch.minimum if reduction == "min" else torch.maximum
        result = parts[0].clone()
        for part in parts[1:]:
            result = pick(result, part)
        if dtype.is_floating_point:
            result.add_(0.0)  # of two zeros +0
    elif reduction in _BITWISE:
        result = parts[0].clone()
        for part in parts[1:]:
            result = _BITWISE[reduction](result, part)
    else:
        result = _accumulate(reduction, parts)
    if dtype in CANONICAL and result.numel():
        result = result.contiguous()
        canonicalise(physical.flat(result))
    elif dtype is torch.float64:
        make_canonical(result)
    return result


def _accumulate(reduction: str, parts: Sequence[Tensor]) -> Tensor:
    dtype = parts[0].dtype
    if not dtype.is_floating_point:
        if reduction == "avg" or dtype is torch.bool:
            raise RefusedOperationError(f"the reduction {reduction} of {dtype} has no rule; use a floating type")
        wide = dtype
    else:
        wide = torch.float32 if dtype in formats.NARROW else torch.float64
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        if reduction == "product":
            total.mul_(part.to(wide))
        else:
            total.add_(part.to(wide))
    if reduction == "avg":
        total.div_(torch.full_like(total, len(parts)))  # by a number, a GPU would multiply by its reciprocal
    return total.to(dtype)


def canonicalise(bits: Tensor) -> int:
    """Gives a flat tensor of a dtype in `CANONICAL` the canonical NaN in place and returns its checksum."""
    return narrow.canonicalise(bits) if bits.dtype in formats.NARROW else contested.canonicalise(bits)
