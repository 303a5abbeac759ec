"""`weighbridge analysis ...`: detection probability and sample sizes, straight from `analysis.detection`."""

from __future__ import annotations

from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.errors import UsageError

app = typer.Typer(help="Detection probability: what an inspection would catch.", no_args_is_help=True)

_Threshold = Annotated[float, typer.Option("--threshold", help="Size of the violation in FLOPs (H).")]
_Speed = Annotated[float, typer.Option("--chip-flops-per-day", help="FLOPs of one chip per day (a).")]
_Chips = Annotated[int, typer.Option("--chips", help="Number of chips that could be involved (C).")]
_RunDays = Annotated[
    float | None, typer.Option("--run-days", help="Length of the run in days (T); default: the period.")
]
_Period = Annotated[float, typer.Option("--period", help="Monitoring period in days (T_m).")]
_Rate = Annotated[float, typer.Option("--rate", help="Snapshots per chip and day (f).")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def probability(
    samples: Annotated[int, typer.Option("--samples", help="Chips sampled in the period (s).")],
    threshold: _Threshold,
    speed: _Speed,
    chips: _Chips,
    period: _Period,
    rate: _Rate,
    run_days: _RunDays = None,
    as_json: _Json = False,
) -> None:
    """The chance of seeing a violation of this size had there been one; never the probability of compliance."""
    from analysis import detection

    days = period if run_days is None else run_days
    try:
        eq1 = detection.detection_probability_eq1(
            samples=samples,
            flops_threshold=threshold,
            chip_flops_per_day=speed,
            chips=chips,
            run_days=days,
            period_days=period,
            snapshot_rate_per_day=rate,
        )
        exact = detection.detection_probability_hypergeometric(
            samples=samples,
            flops_threshold=threshold,
            chip_flops_per_day=speed,
            chips=chips,
            run_days=days,
            snapshot_rate_per_day=rate,
        )
    except detection.DetectionDomainError as error:
        raise UsageError(str(error), code="usage.domain") from None
    if as_json:
        print_json({"equation_1": eq1, "hypergeometric": exact})
    else:
        print(f"p by equation 1 (sampling with replacement):   {eq1:.6g}")
        print(f"p exactly (without replacement, whole chips):  {exact:.6g}")


@app.command()
def samples(
    wanted: Annotated[float, typer.Option("--probability", help="Detection probability to reach, e.g. 0.9.")],
    threshold: _Threshold,
    speed: _Speed,
    chips: _Chips,
    period: _Period,
    rate: _Rate,
    run_days: _RunDays = None,
    as_json: _Json = False,
) -> None:
    """How many chips to sample in a period to reach a detection probability (equation 1)."""
    import math

    from analysis import detection

    try:
        needed = detection.samples_needed(
            probability=wanted,
            flops_threshold=threshold,
            chip_flops_per_day=speed,
            chips=chips,
            run_days=period if run_days is None else run_days,
            period_days=period,
            snapshot_rate_per_day=rate,
        )
    except detection.DetectionDomainError as error:
        raise UsageError(str(error), code="usage.domain") from None
    if as_json:
        print_json({"samples": math.ceil(needed), "exact": needed})
    else:
        print(f"{math.ceil(needed)} chips (equation 1 gives {needed:.6g})")
