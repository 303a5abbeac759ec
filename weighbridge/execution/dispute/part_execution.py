"""Executes the part of an operation that makes a chunk of its result.

The log's entries about that chunk say how contested elements are rounded, as they do in the whole. Products of a unit
that truncates are what its model makes of them, in the order that is declared for the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weighbridge.core.errors import LogError, RefusedOperationError, TapeError
from weighbridge.execution.dispute.narrowing import Narrowed, Result
from weighbridge.execution.dispute.reading import places, tensor_of
from weighbridge.execution.unit_openings import contradicted, of_unit
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations.prescribed_products import plan_of
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.slices.parts import Slice, all_of
from weighbridge.numerics.units import orders
from weighbridge.program.operands import UNFIT, unfit
from weighbridge.transcript.tape import DTYPES

Ints = npt.NDArray[np.int64]


class _Sliced(Context):
    """The context of a part: follows those log entries that are of it."""

    def __init__(self, policy: Policy, entries: Sequence[OpEntries | None], growth: float = 1.0) -> None:
        """Takes what the log says of each rounded result of the part, and by what its bounds are multiplied."""
        self.policy = policy
        self.results = 0
        self.rounds: list[tuple[Tensor, Bound, OpEntries | None]] = []
        self._entries, self._growth = entries, growth

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        wide, small = wide.contiguous(), dtype in formats.NARROW
        entries = self._entries[len(self.rounds)] if len(self.rounds) < len(self._entries) else None
        if self._growth != 1.0:
            bound = bound.scaled(self._growth)
        self.results += 1
        self.rounds.append((wide, bound, entries))
        follow = narrow.follow(wide, bound, dtype, entries) if small else contested.follow(wide, bound, entries)
        if follow.inadmissible:
            raise LogError(
                "the log asks for outcomes that no conforming device could have rounded to",
                code="replay.rounding.inadmissible",
            )
        if bound.judge is None:
            return follow.out
        out, _ = of_unit(wide, bound, follow, entries)
        if (error := contradicted(follow, out, entries, "the part that was executed")) is not None:
            raise error
        return out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        self.results += 1
        if checksum is None:
            (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        raise TapeError("an operation that draws has no parts")

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        raise TapeError("an operation that is read has no parts")


@dataclass(frozen=True)
class Part:
    """A chunk of a result, as it comes out.

    Attributes:
        data: Its bytes.
        results: How many results with a checksum the operation makes.
        roundings: How many of these it rounds.
        others: Its bytes where few elements next to a rounding boundary are rounded otherwise; of two pieces they are
            65,536 at most, so they are made as they are taken, once.
    """

    data: bytes
    results: int
    roundings: int
    others: Iterable[bytes]


def execute(
    which: Narrowed, chunk: int, shown: Mapping[int, Mapping[int, bytes]], entries: Mapping[int, OpEntries | None],
    policy: Policy, device: torch.device, worst: int | None = None,
) -> Part:  # fmt: skip
    """Executes the part of an operation that makes a chunk of its results.

    Args:
        which: The operation.
        chunk: Number of the chunk.
        shown: The chunks of storages that it takes, by slot and number.
        entries: The log's entries about the whole of each result, by its place among those that are returned.
        policy: Bounds of the run.
        device: Where to execute it.
        worst: The worst row, if the bound reads one.
    """
    result = which.result(chunk)
    made = [_executed(which, result, each, shown, entries, policy, device, worst) for each in which.pieces(chunk)]
    if {(each.results, each.roundings) for each in made[1:]} - {(made[0].results, made[0].roundings)}:
        raise TapeError("the pieces of a part have different results")
    ways = [[each.data, *each.others] for each in made]
    combined = islice((b"".join(way) for way in product(*ways)), 1, None)
    return replace(made[0], data=b"".join(each.data for each in made), others=combined)


def _executed(
    which: Narrowed, result: Result, piece: tuple[int, int, Slice], shown: Mapping[int, Mapping[int, bytes]],
    entries: Mapping[int, OpEntries | None], policy: Policy, device: torch.device, worst: int | None,
) -> Part:  # fmt: skip
    """Executes one piece of a part. The box may hold elements of other pieces: a sort's has all along a dimension."""
    start, stop, part = piece
    given = {name: each.to(device) for name, each in operands(which, part, shown, worst).items()}
    args, kwargs = part.operands(which.call.op, which.call.args, which.call.kwargs, given)
    kwargs = {name: device if isinstance(value, torch.device) else value for name, value in kwargs.items()}
    shapes = which.shapes()
    of = [_of(entries.get(at), places(shapes[at] or (), box)) for at, box in part.makes.items()]
    context = _Sliced(_ordered(which, policy, given), of, part.growth(given))
    try:
        out = evaluate(which.call.op, args, kwargs, context)
    except RefusedOperationError as error:
        raise TapeError(error.message, code="tape.forbidden", operation=str(which.call.op)) from None
    except UNFIT as error:
        raise unfit(str(which.call.op), error) from None
    box = part.makes[result.output]
    made = made_of(part, result.output, out)
    if made is None or tuple(made.shape) != tuple(high - low for low, high in box) or made.dtype != result.dtype:
        raise TapeError("a part of the operation's result has another shape than its operands say")
    mine = places(result.ref[2], box)
    inside = torch.from_numpy((mine >= start) & (mine < stop))
    values = made.contiguous().view(-1)[inside.to(device)].cpu()
    at = list(part.makes).index(result.output) if len(part.makes) > 1 else -1
    others = _others(*context.rounds[at], inside, values) if context.rounds else []
    return Part(_raw(values), context.results, len(context.rounds), others)


def _ordered(which: Narrowed, policy: Policy, given: Mapping[str, Tensor]) -> Policy:
    """Returns a policy under which a part of a product is summed in the order that is declared for the whole."""
    plan = plan_of(which.call.op)
    if not policy.orders or plan is None or given[plan[1]].dtype not in formats.NARROW:
        return policy
    _, first, second, _ = plan
    chain = orders.chain_of(policy.orders, which.call.bound[first], which.call.bound[second])
    own = orders.signature(given[first], given[second])
    return replace(policy, orders={own: chain} if chain else {})


def made_of(part: Slice, output: int, out: Any) -> Tensor | None:
    """Returns a result of a part, without the worst row that was made with it.

    Args:
        part: The part.
        output: Which result.
        out: What the operation returned.
    """
    made = out[output] if isinstance(out, (tuple, list)) else out
    if not isinstance(made, Tensor) or part.worst is None or not made.dim():
        return made if isinstance(made, Tensor) else None
    return made[:-1].reshape([high - low for low, high in part.makes[output]])


def operands(
    which: Narrowed, part: Slice, shown: Mapping[int, Mapping[int, bytes]], worst: int | None
) -> dict[str, Tensor]:
    """Returns the operands of a part; rows that an operand names are those that are there, and named by their place.

    Args:
        which: The operation.
        part: The part.
        shown: Chunks of storages, by slot and number.
        worst: The worst row, if the bound reads one.
    """
    chunks = {name: shown[which.refs[name][0]] for name in part.boxes}
    found = {
        name: tensor_of(which.refs[name], box, chunks[name])
        for name, box in part.boxes.items()
        if part.rows is None or name != part.rows.operand
    }
    for name, box in part.blank.items():
        found[name] = torch.zeros([high - low for low, high in box], dtype=DTYPES[which.refs[name][1]])
    if part.rows is not None:
        rows, named = part.rows, found[part.rows.index]
        picked = which.picked(part, chunks[rows.index])
        ref = which.refs[rows.operand]
        found[rows.operand] = tensor_of(ref, part.boxes[rows.operand], chunks[rows.operand], picked)
        if rows.within is None:
            place = torch.from_numpy(np.searchsorted(picked.rows, named.numpy())).view(named.shape)
        else:
            place = named.reshape(-1)[torch.from_numpy(picked.rows)] - rows.within[0]
        found[rows.index] = place.to(named.dtype)
    if part.worst is not None and worst is not None:
        ref, own = which.refs[part.worst], found[part.worst]
        row = tensor_of(ref, all_of(ref[2]), chunks[part.worst], which.worst(part, worst))
        found[part.worst] = torch.cat([own.reshape(-1, *row.shape[1:]), row])
    return found


_NEAR = 8
"""Elements next to a boundary, at most, that may be rounded otherwise: they give 256 chunks to look at."""


def _others(wide: Tensor, bound: Bound, entries: OpEntries | None, inside: Tensor, values: Tensor) -> list[bytes]:
    """Returns the chunk with unlogged elements within 8e of a boundary rounded otherwise, in any combination.

    What a unit's model computes is not otherwise on any device.
    """
    if bound.judge is not None:
        return []
    y = wide.view(-1).cpu()
    e = dense_bound(wide, bound).cpu().to(y.dtype)
    sides = [(y + s * 8 * e).to(values.dtype) + 0 for s in (-1, 1)]
    free = sides[0] != sides[1]
    if entries is not None:
        free[torch.from_numpy(entries.positions)] = False
    free, sides = free[: len(inside)], [side[: len(inside)] for side in sides]  # the worst row stands behind
    at = (free[inside] & torch.isfinite(values)).nonzero().flatten()[:_NEAR]
    found = [values]
    for i in at.tolist():
        low, high = (side[inside][i] for side in sides)
        changed = []
        for each in found:
            other = each.clone()
            other[i] = high if values[i] == low else low
            changed.append(other)
        found += changed
    return [_raw(each) for each in found[1:]]


def _of(entries: OpEntries | None, mine: Ints) -> OpEntries | None:
    """Returns the entries about the elements of a part, by their places in it."""
    if entries is None:
        return None
    kept = np.isin(entries.positions, mine, assume_unique=True)
    if not kept.any():
        return None
    places = np.searchsorted(mine, entries.positions[kept]).astype(np.int64)
    return OpEntries(entries.op, entries.output, places, entries.widths[kept], entries.bits[kept])


def _raw(values: Tensor) -> bytes:
    return bytes(values.contiguous().view(torch.uint8).numpy().data)
