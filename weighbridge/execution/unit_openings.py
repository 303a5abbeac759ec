"""What a declared unit that truncates makes of a result, wherever its bound leaves a rounding open: for disputes.

A replay judges a sample of such elements (`unit_adjudication`); a dispute takes all of them from the unit's model.
"""

from __future__ import annotations

import numpy as np
import torch

from weighbridge.core.errors import LogError
from weighbridge.execution.unit_results import Result
from weighbridge.numerics.arrays.physical import coordinates, flat
from weighbridge.numerics.rounding import narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.rounding_log import OpEntries

Tensor = torch.Tensor

FALSE = "replay.unit.false"
"""Reason for which a log is false that says otherwise than the declared unit computes."""


def of_unit(wide: Tensor, bound: Bound, followed: Rounded, entries: OpEntries | None) -> tuple[Tensor, int]:
    """Returns a result with every element as the unit has it whose rounding a log could choose, and its checksum.

    All other elements are rounded as the replayer has them: the bound says that the unit rounds them so too.

    Args:
        wide: The replayer's wide result.
        bound: Its bound, with what judges.
        followed: The result as the log has it.
        entries: What the log says of it.
    """
    assert bound.judge is not None
    dtype = followed.out.dtype
    places = [Result(wide, bound.scaled(narrow.REACH), bound.judge, followed.out).could_flip()]
    if entries is not None:
        places.append(torch.from_numpy(np.ascontiguousarray(entries.positions)).to(wide.device))
    at = torch.unique(torch.cat(places))
    if len(at):
        wide = torch.empty_strided(wide.shape, wide.stride(), dtype=wide.dtype, device=wide.device).copy_(wide)
        flat(wide)[at] = bound.judge.at(coordinates(wide, at)).to(wide.device, wide.dtype)
    return narrow.round_plain(wide, dtype)


def contradicted(followed: Rounded, unit: Tensor, entries: OpEntries | None, where: str) -> LogError | None:
    """Returns what is wrong with a log that names another result than the unit; None if none of its entries does.

    A log that has no entry where the unit comes to another result names none: a bound was too small for it. Then the
    result says whether it is the unit's.

    Args:
        followed: The result as the log has it.
        unit: The result as the unit has it, of the same layout.
        entries: What the log says of it.
        where: Of which operation it is.
    """
    if entries is None:
        return None
    at = torch.from_numpy(np.ascontiguousarray(entries.positions)).to(unit.device)
    others = int((flat(followed.out)[at].view(torch.int16) != flat(unit)[at].view(torch.int16)).sum())
    if not others:
        return None
    return LogError(
        f"{where}: {others} results that the log names are not those of the unit that the draft declares", code=FALSE
    )
