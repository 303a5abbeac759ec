"""Weighbridge: an inspection station for AI training.

This package is the protocol: what Prover, Verifier and chip must agree on bit for bit. The roles themselves live in the
sibling packages `prover`, `verifier` and `firmware_sim`, which import this one and never each other.
"""

from weighbridge.execution.job_replay import JobReplayResult, replay_cell, replay_job
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits

__version__ = "0.1.0"
__all__ = ["JobReplayResult", "Limits", "ReplayResult", "replay", "replay_cell", "replay_job"]
