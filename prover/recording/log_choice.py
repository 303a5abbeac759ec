"""Which kind of rounding log a recording can keep on its device."""

from __future__ import annotations

import torch

from weighbridge.core.errors import UsageError
from weighbridge.transcript.log_kinds import KINDS, SKETCH, LogKind


def require_logs(logs: LogKind, device: str | torch.device | None) -> None:
    """Checks that a recording can keep such logs.

    Args:
        logs: The kind.
        device: Where its steps compute; None if that is unsaid.

    Raises:
        UsageError: It cannot, or there is no such kind.
    """
    if logs not in KINDS:
        raise UsageError(f"logs is {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {logs!r}")
    if logs == SKETCH and (device is None or torch.device(device).type != "cpu"):
        raise UsageError("sketches are made on the CPU only; record with logs='on-demand' on an accelerator")
    if logs != "full" and device is None:
        raise UsageError("logs on demand are made on the kind of machine that recorded: say device='cuda' or 'cpu'")
