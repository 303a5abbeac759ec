"""How much of what a chip says may differ from what transcripts say before somebody is asked about it, or accused."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from weighbridge.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotPolicy:
    """The caps of the checks of snapshots and interrupts.

    Attributes:
        unexplained_share: Up to this share of all bytes, storages that do not match are a warning; above it a
            violation. A program may keep a tensor longer than its transcript knows. A model, its optimizer or their
            wrong contents are larger.
        temporaries: Off a safepoint, an operation in progress may hold so many times the bytes of its operands and
            results, in buffers that no tape knows.
        work_share: FLOPs that a chip may have done beside those of the transcript, as a share of these: evaluation
            and the like, which nobody records.
        tails: Runs of one chip that a crash ended in a step with a snapshot, which nobody can replay. More are a
            warning.
        setup_flops: FLOPs that a program may do before its first recorded step: to test the device, to make or load a
            model. A snapshot of then that cannot be replayed accuses nobody, and verifies nothing.
        unserved: Interrupts of one chip that its workload left without a snapshot, as every workload that is killed
            may. More are a violation, if they are also more than `unserved_share` of its interrupts.
        unserved_share: See `unserved`.
    """

    unexplained_share: float = 0.01
    temporaries: float = 16.0
    work_share: float = 0.5
    tails: int = 1
    setup_flops: float = 1e9
    unserved: int = 2
    unserved_share: float = 0.1

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is negative or no number.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{field.name} of a snapshot policy must be a number of at least 0, not {value!r}")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field."""
        return asdict(self)


AS_DESIGNED = SnapshotPolicy()
