"""`weighbridge analysis ...`: detection probability, sample sizes, plans and the paper's table, from `analysis`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.analysis import examples, fleets, pages, plan, sweep
from weighbridge.cli.analysis import options as shared

app = typer.Typer(
    help="Detection probability: what an inspection would catch, and what that takes.", no_args_is_help=True
)
app.command("plan")(plan.command)
app.command("sweep")(sweep.command)
app.command("figure")(pages.figure)
app.command("report")(pages.report)
app.command("examples")(examples.command)
app.command("simulate")(fleets.simulate)
app.command("attack")(fleets.attack)


class Mode(StrEnum):
    """How table 1 is computed."""

    PRINTED = "printed"
    EXACT = "exact"
    HYPERGEOMETRIC = "hypergeometric"


@app.command()
def table1(
    mode: Annotated[
        Mode, typer.Option("--mode", help="printed: as published. exact: equation 1. hypergeometric: whole chips.")
    ] = Mode.PRINTED,
    as_json: Json = False,
) -> None:
    """Table 1 of Shavit 2023: samples a year to catch the training of known models (T = T_m = 30, f = 0.1, p = 0.9)."""
    from analysis import paper

    rows = paper.table_1(mode.value)
    if as_json:
        print_json(
            {
                "mode": mode.value,
                "rows": [
                    {
                        "model": row.model,
                        "flops": row.flops,
                        "chip_days": _whole_if_whole(row.chip_days),
                        "chips_one_year": _whole_if_whole(row.chips_one_year),
                        "samples": {str(chips): _whole_if_whole(value) for chips, value in row.samples.items()},
                    }
                    for row in rows
                ],
                "note": _TABLE_NOTES[mode],
            }
        )
        return
    text = paper.printed_text if mode is Mode.PRINTED else _four_digits
    print(
        f"{'model':16} {'H':>9} {'H/a':>9} {'1 year':>9}"
        + "".join(f"{f'C=1e{len(str(c)) - 1}':>10}" for c in paper.CHIPS)
    )
    for row in rows:
        cells = "".join(f"{text(value):>10}" for value in row.samples.values())
        print(f"{row.model:16} {row.flops:9.3g} {text(row.chip_days):>9} {text(row.chips_one_year):>9}{cells}")
    print(_TABLE_NOTES[mode])


_TABLE_NOTES = {
    Mode.PRINTED: "samples a year as printed: equation 1 linearised, rounded down; "
    "a dash where a year on all chips is not enough",
    Mode.EXACT: "samples a year by equation 1 as written; a dash where the run does not fit on the chips in 30 days",
    Mode.HYPERGEOMETRIC: "whole chips without replacement, whole samples a period times 365/30; a dash as for exact",
}


def _whole_if_whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and value.is_integer() else value


def _four_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@app.command()
def samples(
    chips: shared.Chips,
    flops: shared.Flops,
    wanted: shared.Probability,
    period: shared.Period = 30.0,
    rate: shared.Rate = 0.1,
    chip_flops: shared.ChipFlops = 1e15,
    run_days: shared.RunDays = None,
    withheld: shared.Withheld = 0,
    method: shared.HOW = shared.Method.HYPERGEOMETRIC,
    as_json: Json = False,
) -> None:
    """How many chips to sample in each period to reach a detection probability."""
    from analysis.costs import annual_samples

    parameters = shared.fleet(chips, flops, chip_flops, period, rate, run_days) | {"withheld": withheld}
    with shared.domain_errors():
        needed = shared.samples_of(method, probability=wanted, **parameters)
        reached = float(shared.probability_of(method, samples=needed, **parameters))
        yearly = float(annual_samples(samples=needed, period_days=period))
    if as_json:
        print_json(
            {
                "per_period": int(needed),
                "per_year": yearly,
                "method": method.value,
                "detection_probability": reached,
            }
        )
        return
    print(f"{int(needed)} chips every {period:g} days, {yearly:.6g} a year ({method.value}; p = {reached:.6g})")


@app.command()
def probability(
    drawn: shared.Samples,
    chips: shared.Chips,
    flops: shared.Flops,
    period: shared.Period = 30.0,
    rate: shared.Rate = 0.1,
    chip_flops: shared.ChipFlops = 1e15,
    run_days: shared.RunDays = None,
    withheld: shared.Withheld = 0,
    method: shared.HOW = shared.Method.HYPERGEOMETRIC,
    as_json: Json = False,
) -> None:
    """The chance of seeing a violation of this size had there been one; never the probability of compliance."""
    from analysis.domain import InfeasibleError

    parameters = shared.fleet(chips, flops, chip_flops, period, rate, run_days) | {"withheld": withheld}
    every: dict[str, float | None] = {}
    with shared.domain_errors():
        found = float(shared.probability_of(method, samples=drawn, **parameters))
        for other in shared.Method:
            try:
                every[other.value] = float(shared.probability_of(other, samples=drawn, **parameters))
            except InfeasibleError:
                every[other.value] = None
    if as_json:
        print_json({"detection_probability": found, "method": method.value, "by_method": every})
        return
    print(f"p = {found:.6g} ({method.value})")
    for name, value in every.items():
        if name != method.value:
            print(f"    {_four_digits(value) if value is None else f'{value:.6g}'} ({name})")


@app.command("smallest-run")
def smallest_run(
    drawn: shared.Samples,
    chips: shared.Chips,
    wanted: shared.Probability,
    period: shared.Period = 30.0,
    rate: shared.Rate = 0.1,
    chip_flops: shared.ChipFlops = 1e15,
    run_days: shared.RunDays = None,
    method: shared.HOW = shared.Method.HYPERGEOMETRIC,
    as_json: Json = False,
) -> None:
    """What could be caught: the smallest violation that this many samples show with this probability."""
    parameters = shared.fleet(chips, None, chip_flops, period, rate, run_days)
    with shared.domain_errors():
        flops = float(shared.smallest_of(method, samples=drawn, probability=wanted, **parameters))
        reached = float(shared.probability_of(method, samples=drawn, flops_threshold=flops, **parameters))
    involved = flops / parameters["chip_flops_per_day"] / parameters["run_days"]
    if as_json:
        print_json(
            {
                "flops": flops,
                "chips": involved,
                "run_flops": 2 * flops,
                "method": method.value,
                "detection_probability": reached,
            }
        )
        return
    size = f"{flops:.6g} FLOPs in {parameters['run_days']:g} days, {involved:.6g} chips"
    print(f"{size} ({method.value}; p = {reached:.6g})")
    print(f"whole runs from {2 * flops:.6g} FLOPs on, because the FLOPs up to the threshold are no evidence")


@app.command()
def attribute(
    population: Annotated[float, typer.Option("--population", help="Number of items.")],
    defects: Annotated[float, typer.Option("--defects", help="Defective items that must not go unseen.")],
    wanted: shared.Probability,
    as_json: Json = False,
) -> None:
    """Smallest samples of any population: exact (hypergeometric), by the IAEA's formula, and with replacement."""
    from analysis import attribute_sampling as sizes

    with shared.domain_errors():
        question = {"population": population, "defects": defects, "probability": wanted}
        answer = {
            "exact": int(sizes.sample_size_exact(**question)),
            "iaea": int(sizes.sample_size_iaea(**question)),
            "iaea_refined": int(sizes.sample_size_iaea_refined(**question)),
            "binomial": int(sizes.sample_size_binomial(**question)),
        }
    if as_json:
        print_json(answer)
        return
    for name, size in answer.items():
        print(f"{name.replace('_', ' '):14}{size}")
