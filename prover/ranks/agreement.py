"""What the ranks of a job tell each other beside its collectives, so that all of them go on in one way.

Every rank calls these at the same moments of its program, between steps. Nothing of it is on a tape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from prover.capture.without_modes import unseen
from prover.ranks import transfers
from weighbridge.core.errors import UsageError

_TEXT = 1000
"""Bytes of a text that ranks tell each other."""


@unseen
def numbers(own: Sequence[int], device: torch.device) -> list[list[int]]:
    """Returns what each rank gives, by rank.

    Args:
        own: What this rank gives: as many numbers of 63 bits as every other.
        device: Where the process group wants tensors.

    Raises:
        UsageError: Another rank has ended.
    """
    sent = torch.tensor(list(own), dtype=torch.int64, device=device)
    try:
        return [t.tolist() for t in transfers.all_gather(dist.group.WORLD, sent)]
    except RuntimeError as error:
        first = str(error).splitlines()[0][:200]
        raise UsageError(f"another rank of the job has ended ({first}); run it again on all ranks") from None


def texts(own: str, device: torch.device) -> list[str]:
    """Returns what each rank says, by rank; a long text is cut off."""
    raw = own.encode()[:_TEXT]
    said = numbers(list(raw.ljust(_TEXT, b"\0")), device)
    return [bytes(each).rstrip(b"\0").decode(errors="ignore") for each in said]
