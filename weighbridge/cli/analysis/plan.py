"""`weighbridge analysis plan`: the best snapshot rate, samples and strata that a budget pays for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.analysis import options as shared
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from analysis.planning import Stratum

_KEYS = ("chips", "chip-flops", "missed", "cost")


def command(
    budget: Annotated[float, typer.Option("--budget", help="What inspections and snapshots may cost a year.")],
    flops: shared.Flops,
    chips: Annotated[
        float | None, typer.Option("--chips", help="Number of chips (C), if there is but one stratum.")
    ] = None,
    period: shared.Period = 30.0,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Fixes the snapshots per chip and day (f); default: the best.")
    ] = None,
    chip_flops: shared.ChipFlops = 1e15,
    missed: Annotated[
        float, typer.Option("--missed", help="Probability that inspecting a chip with a snapshot shows nothing.")
    ] = 0.0,
    inspection_cost: Annotated[
        float, typer.Option("--inspection-cost", help="Cost of one sample: 250,000 an inspector, 1000 chips a year.")
    ] = 250.0,
    withheld: shared.Withheld = 0,
    strata: Annotated[
        list[str] | None,
        typer.Option(
            "--stratum",
            help="NAME:chips=N[,chip-flops=X][,missed=P][,cost=M] instead of --chips, repeated; missed=1: no logging.",
        ),
    ] = None,
    chip_day_cost: Annotated[float, typer.Option("--chip-day-cost", help="Worth of one chip for a day.")] = 48.0,
    stall_seconds: Annotated[float, typer.Option("--stall-seconds", help="Seconds that a snapshot takes.")] = 1.0,
    job_chips: Annotated[
        float, typer.Option("--job-chips", help="Chips that stand still while one of them takes a snapshot.")
    ] = 1.0,
    snapshot_bytes: Annotated[
        float, typer.Option("--snapshot-bytes", help="Bytes kept of a snapshot; default: a chip's whole memory.")
    ] = 8e10,
    gigabyte_month: Annotated[
        float, typer.Option("--gigabyte-month", help="Cost of keeping 1e9 bytes for a month.")
    ] = 0.02,
    kept_days: Annotated[
        float | None, typer.Option("--kept-days", help="Days for which snapshots are kept; default: the period.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The snapshot rate, samples and strata that are most likely to catch the run that is hardest to catch."""
    from analysis import costs, planning
    from analysis.domain import whole

    with shared.domain_errors():
        defaults = {"chip-flops": chip_flops, "missed": missed, "cost": inspection_cost}
        if strata and chips is not None:
            raise UsageError("give --chips or --stratum, not both", code="usage.plan")
        if not strata and chips is None:
            raise UsageError("a plan needs --chips, or --stratum for each kind of chip", code="usage.plan")
        fleet = [_stratum(text, defaults) for text in strata or [f"all:chips={chips!r}"]]
        model = planning.CostModel(
            chip_day_cost=chip_day_cost,
            stall_seconds=stall_seconds,
            job_chips=int(whole("job_chips", job_chips, 1)),
            snapshot_bytes=snapshot_bytes,
            byte_year_cost=gigabyte_month * 12 / 1e9,
            kept_days=period if kept_days is None else kept_days,
        )
        plan = planning.best_plan(
            budget=budget,
            flops_threshold=flops,
            period_days=period,
            strata=tuple(fleet),
            costs=model,
            snapshot_rate_per_day=rate,
            withheld=withheld,
        )
        yearly = float(costs.annual_samples(samples=sum(plan.samples), period_days=period))
        inspectors = int(costs.inspectors_needed(samples_per_year=yearly))
    answer: dict[str, Any] = {
        "rate": plan.snapshot_rate_per_day,
        "samples": sum(plan.samples),
        "per_year": yearly,
        "inspectors": inspectors,
        "detection_probability": plan.detection_probability_hypergeometric,
        "detection_probability_with_replacement": plan.detection_probability,
        "strata": [
            {"name": stratum.name, "chips": int(stratum.chips), "samples": drawn, "worst_share": part}
            for stratum, drawn, part in zip(fleet, plan.samples, plan.shares, strict=True)
        ],
        "costs": {
            "sampling": plan.sampling_cost,
            "stalls": plan.stall_cost,
            "storage": plan.storage_cost,
            "total": plan.sampling_cost + plan.stall_cost + plan.storage_cost,
            "budget": budget,
        },
    }
    if as_json:
        print_json(answer)
        return
    print(f"f = {plan.snapshot_rate_per_day:.4g} snapshots per chip and day, {answer['samples']} samples a period")
    for line in answer["strata"]:
        print(
            f"  {line['name']}: {line['samples']} of {line['chips']} chips; {line['worst_share']:.1%} of the worst run"
        )
    prover = "a Prover who knows the plan" + (f" and withholds {withheld} of the drawn chips" if withheld else "")
    print(f"p = {answer['detection_probability']:.6g} against {prover}; {inspectors} inspectors")
    print("a year: " + ", ".join(f"{name} {value:.6g}" for name, value in answer["costs"].items()))


def _stratum(text: str, defaults: dict[str, float]) -> Stratum:
    """Returns the stratum that `NAME:chips=N,...` describes."""
    from analysis.planning import Stratum

    name, colon, rest = text.partition(":")
    values = dict(defaults)
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        try:
            if not (name and colon and equals and key in _KEYS):
                raise ValueError
            values[key] = float(value)
        except ValueError:
            raise UsageError(
                f"--stratum {text!r:.80} is not NAME:chips=N[,chip-flops=X][,missed=P][,cost=M]", code="usage.plan"
            ) from None
    if "chips" not in values:
        raise UsageError(f"--stratum {text!r:.80} does not say how many chips it has", code="usage.plan")
    return Stratum(
        name=name,
        chips=values["chips"],
        chip_flops_per_day=values["chip-flops"] * shared.SECONDS_PER_DAY,
        reliability=1 - values["missed"],
        sample_cost=values["cost"],
    )
