"""Executes the part of an operation that makes a chunk of its result.

The log's entries about that chunk say how contested elements are rounded, as they do in the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weighbridge.core.errors import LogError, RefusedOperationError, TapeError
from weighbridge.execution.dispute.narrowing import Narrowed, places, tensor_of
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.slices import Slice
from weighbridge.program.operands import UNFIT, unfit

Ints = npt.NDArray[np.int64]


class _Sliced(Context):
    """The context of a part: follows those log entries that are of it."""

    def __init__(self, policy: Policy, entries: OpEntries | None) -> None:
        self.policy = policy
        self.results = self.roundings = 0
        self._entries = entries

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        self.results += 1
        self.roundings += 1
        wide, small = wide.contiguous(), dtype in formats.NARROW
        self.wide, self.bound, self.entries = wide, bound, self._entries
        follow = (
            narrow.follow(wide, bound, dtype, self._entries) if small else contested.follow(wide, bound, self._entries)
        )
        if follow.inadmissible:
            raise LogError(
                "the log asks for outcomes that no conforming device could have rounded to",
                code="replay.rounding.inadmissible",
            )
        return follow.out

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
        others: Its bytes where few elements next to a rounding boundary are rounded otherwise.
    """

    data: bytes
    results: int
    roundings: int
    others: list[bytes]


def execute(
    which: Narrowed, chunk: int, shown: Mapping[int, Mapping[int, bytes]], entries: OpEntries | None, policy: Policy,
    device: torch.device,
) -> Part:  # fmt: skip
    """Executes the part of an operation that makes a chunk of its result.

    Args:
        which: The operation.
        chunk: Number of the chunk.
        shown: The chunks of storages that it takes, by slot and number.
        entries: The log's entries about the whole result.
        policy: Bounds of the run.
        device: Where to execute it.
    """
    box, part = which.box(chunk), which.slice(chunk)
    given = _operands(which, part, shown)
    given = {name: each.to(device) for name, each in given.items()}
    args, kwargs = part.operands(which.call.op, which.call.args, which.call.kwargs, given)
    kwargs = {name: device if isinstance(value, torch.device) else value for name, value in kwargs.items()}
    mine = places(which.ref[2], box)
    context = _Sliced(policy, _of(entries, mine))
    try:
        out: Tensor = evaluate(which.call.op, args, kwargs, context)
    except RefusedOperationError as error:
        raise TapeError(error.message, code="tape.forbidden", operation=str(which.call.op)) from None
    except UNFIT as error:
        raise unfit(str(which.call.op), error) from None
    if tuple(out.shape) != tuple(b - a for a, b in box) or out.dtype != which.dtype:
        raise TapeError("a part of the operation's result has another shape than its operands say")
    start, stop = which.elements(chunk)
    inside = torch.from_numpy((mine >= start) & (mine < stop))
    values = out.contiguous().view(-1)[inside.to(device)].cpu()
    return Part(_raw(values), context.results, context.roundings, _others(context, inside, values))


def _operands(which: Narrowed, part: Slice, shown: Mapping[int, Mapping[int, bytes]]) -> dict[str, Tensor]:
    """Returns the operands of a part; rows that an operand names are those that are there, and named by their place."""
    chunks = {name: shown[which.refs[name][0]] for name in part.boxes}
    if part.rows is None:
        return {name: tensor_of(which.refs[name], box, chunks[name]) for name, box in part.boxes.items()}
    table, dim, index = part.rows
    rows = which.rows(part, chunks[index])
    named = tensor_of(which.refs[index], part.boxes[index], chunks[index])
    picked = torch.from_numpy(np.searchsorted(rows, named.numpy())).view(named.shape).to(named.dtype)
    return {table: tensor_of(which.refs[table], part.boxes[table], chunks[table], dim, rows), index: picked}


_NEAR = 8
"""Elements next to a boundary, at most, that may be rounded otherwise: they give 256 chunks to look at."""


def _others(context: _Sliced, inside: Tensor, values: Tensor) -> list[bytes]:
    """Returns the chunk with unlogged elements within 8e of a boundary rounded otherwise, in any combination."""
    if not context.roundings:
        return []
    y = context.wide.view(-1).cpu()
    e = dense_bound(context.wide, context.bound).cpu().to(y.dtype)
    sides = [(y + s * 8 * e).to(values.dtype) + 0 for s in (-1, 1)]
    free = sides[0] != sides[1]
    if context.entries is not None:
        free[torch.from_numpy(context.entries.positions)] = False
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
