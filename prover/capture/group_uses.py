"""Which process groups the collectives of a step went over: a tape names only their ranks."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One collective, and its group.

    Two groups may have the same ranks, and a message over one never arrives on the other, so all members have to use
    the same. Two uses are equal only if their group is one object.

    Attributes:
        op: The operation.
        name: The group's name in `torch.distributed`.
        group: The group.
    """

    op: int
    name: str
    group: weakref.ref[Any]
