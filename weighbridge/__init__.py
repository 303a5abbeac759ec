"""Weighbridge: an inspection station for AI training.

This package is the protocol: what Prover, Verifier and chip must agree on bit for bit. The roles themselves live in the
sibling packages `prover`, `verifier` and `firmware_sim`, which import this one and never each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weighbridge.execution.job_replay import JobReplayResult, replay_cell, replay_job
    from weighbridge.execution.replay import replay
    from weighbridge.execution.replay_answer import ReplayResult
    from weighbridge.execution.worker_process import Limits

__version__ = "0.1.0"
__all__ = ["JobReplayResult", "Limits", "ReplayResult", "replay", "replay_cell", "replay_job"]

_ROOMS = {"ReplayResult": "replay_answer", "replay": "replay", "Limits": "worker_process"}
"""The modules of what is in `__all__`, if not `job_replay`."""


def __getattr__(name: str) -> Any:
    """Imports what is asked for: most commands and chips need no replay, and NumPy takes longer than they do."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"weighbridge.execution.{_ROOMS.get(name, 'job_replay')}"), name)
