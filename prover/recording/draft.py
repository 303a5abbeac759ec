"""What a run declares before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

import weighbridge
from weighbridge.numerics.conformance.bound_policy import ORDERS, Policy
from weighbridge.numerics.conformance.device_kind import device_kind
from weighbridge.numerics.rule_table import table_digest
from weighbridge.transcript.confidential_runs import CONFIDENTIAL
from weighbridge.transcript.declared_device import DEVICE
from weighbridge.transcript.log_kinds import LOGS, LogKind

if TYPE_CHECKING:  # it loads torch.distributed, which one process does without
    from prover.ranks.job import Job


def draft_of(
    name: str,
    *,
    job: Job | None,
    seed: int,
    policy: Policy,
    checkpoint_every: int,
    metadata: Mapping[str, Any],
    device: str | torch.device | None,
    logs: LogKind,
    confidential: bool = False,
    declared: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the draft of a run.

    Args:
        name: Of the transcript.
        job: The job on several ranks that this is one of, if it is.
        seed: The run's seed.
        policy: Its bounds.
        checkpoint_every: Steps from one checkpoint to the next.
        metadata: What the user says of the run.
        device: Where it is recorded, if that is declared.
        logs: Which kind of rounding logs is written.
        confidential: Whether the run is confidential.
        declared: Everything else: formulas, programs, parent, repeats.
    """
    draft = {
        "name": name,
        **({} if job is None else {"job": job.coordinate.to_map()}),
        "seed": seed,
        "stream": 0,
        "policy": policy.name,
        "calibration": policy.digest,
        **({ORDERS: dict(policy.orders)} if policy.orders else {}),
        "rules": table_digest(),
        "torch": torch.__version__,
        "weighbridge": weighbridge.__version__,
        "checkpoint_every": checkpoint_every,
        "metadata": metadata,
        **({} if device is None else {DEVICE: device_kind(device)}),
        **({} if logs == "full" else {LOGS: logs}),
        **({CONFIDENTIAL: True} if confidential else {}),
        **declared,
    }
    return draft
