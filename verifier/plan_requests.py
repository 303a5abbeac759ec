"""What operators ask for, as plans."""

from __future__ import annotations

from typing import cast

from protos.weighbridge.v1 import verifier_pb2
from verifier.model.facts import CHUNKS, REGENERATION_SECONDS, Plan, Sharded
from verifier.model.policies import DrawPolicy, SegmentPolicy, TranscriptPolicy, Weight
from verifier.model.strata import Allocation, check_attributes


def plan_of(request: verifier_pb2.StartInspectionRequest, *, commitment: str = "") -> Plan:
    """Returns the plan that a request asks for.

    Args:
        request: The request; what it leaves out has its default.
        commitment: Hash of the Verifier's secret criteria, if it has some.

    Raises:
        UsageError: A field is out of range.
    """
    whole = {
        name: getattr(request, f"{name}_segments")
        for name in ("random", "largest")
        if request.HasField(f"{name}_segments")
    }
    if request.HasField("recognise"):
        whole["recognise"] = request.recognise
    return Plan(
        samples=request.samples,
        seed=request.seed,
        flops_threshold=request.flops_threshold,
        chip_flops_per_day=request.chip_flops_per_day,
        period_days=request.period_days,
        snapshot_rate_per_day=request.snapshot_rate_per_day,
        replay_device=request.replay_device or "cpu",
        replay_env=dict(request.replay_env),
        sharded=cast(Sharded, request.sharded or "all"),
        chunks=request.chunks or CHUNKS,
        peak_flops=request.peak_flops or None,
        segments=SegmentPolicy(
            memorisation=request.memorisation,
            records=request.records,
            sensitivity=request.sensitivity,
            commitment=commitment,
            **whole,
        ),
        transcripts=TranscriptPolicy(order=cast(Weight, request.chosen_order or "accepted")),
        draw=DrawPolicy(
            by=check_attributes(request.strata_by),
            allocation=cast(Allocation, request.allocation or "proportional"),
            speeds=dict(request.type_flops_per_day),
            cutoff_s=request.cutoff_s if request.HasField("cutoff_s") else None,
        ),
        regeneration_s=request.regeneration_s or REGENERATION_SECONDS,
    )
