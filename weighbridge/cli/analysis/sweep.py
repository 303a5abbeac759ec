"""`weighbridge analysis sweep`: a quantity over a grid of parameters, as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.analysis import options as shared
from weighbridge.core.errors import UsageError

_SWEPT = {
    "chips": "chips",
    "flops": "flops_threshold",
    "chip-flops": "chip_flops_per_day",
    "period-days": "period_days",
    "run-days": "run_days",
    "rate": "snapshot_rate_per_day",
    "samples": "samples",
    "probability": "probability",
}


def command(
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary", help="NAME=1,2,5 or NAME=START:STOP:COUNT[:log]; may be repeated. NAME is another option's name."
        ),
    ],
    quantity: Annotated[
        shared.Quantity, typer.Option("--quantity", help="What to compute.")
    ] = shared.Quantity.PROBABILITY,
    chips: Annotated[float | None, typer.Option("--chips", help="Number of chips (C).")] = None,
    flops: Annotated[float | None, typer.Option("--flops", help="Size of the violation in FLOPs (H).")] = None,
    drawn: Annotated[float | None, typer.Option("--samples", help="Chips sampled in each period (s).")] = None,
    wanted: Annotated[float | None, typer.Option("--probability", help="Detection probability (p).")] = None,
    period: shared.Period = 30.0,
    rate: shared.Rate = 0.1,
    chip_flops: shared.ChipFlops = 1e15,
    run_days: shared.RunDays = None,
    method: shared.HOW = shared.Method.HYPERGEOMETRIC,
    out: Annotated[
        Path | None, typer.Option("--out", help="File ending in .csv or .parquet; default: CSV on standard output.")
    ] = None,
    as_json: Json = False,
) -> None:
    """A quantity over a grid of any parameters, as a table; empty where a run does not fit or p cannot be reached."""
    import numpy as np

    from analysis.sweep import evaluate

    fixed = {
        "chips": chips, "flops": flops, "chip-flops": chip_flops, "period-days": period, "rate": rate,
        "run-days": run_days, "samples": drawn, "probability": wanted,
    }  # fmt: skip
    function, columns = _sweep_points(quantity, vary, fixed)
    arguments = {_SWEPT[name]: values for name, values in columns.items()}
    arguments["chip_flops_per_day"] = arguments["chip_flops_per_day"] * shared.SECONDS_PER_DAY
    with shared.domain_errors():
        found = evaluate(lambda **point: function(method, **point), arguments)
    table = columns | {quantity.value: found}
    missing = int(np.isnan(found).sum())
    if out is not None:
        shared.write_table(table, out)
    if as_json:
        summary: dict[str, Any] = {"points": len(found), "infeasible": missing, "method": method.value}
        if out is not None:
            print_json(summary | {"file": str(out)})
        else:
            lists = {name: [None if v != v else v for v in values.tolist()] for name, values in table.items()}
            print_json(summary | {"columns": lists})
    elif out is None:
        print(shared.csv_text(table), end="")
    else:
        print(f"{len(found)} points in {out}, {missing} of them infeasible")


def _sweep_points(
    quantity: shared.Quantity, vary: list[str], fixed: dict[str, float | None]
) -> tuple[Any, dict[str, Any]]:
    """Returns the function of a sweep and its parameters at every point, by the names of their options."""
    import numpy as np

    from analysis.sweep import axis, grid

    function, unused = {
        shared.Quantity.PROBABILITY: (shared.probability_of, {"probability"}),
        shared.Quantity.SAMPLES: (shared.samples_of, {"samples"}),
        shared.Quantity.SMALLEST_RUN: (shared.smallest_of, {"flops"}),
    }[quantity]
    names = [name for name in _SWEPT if name not in unused]
    axes = {}
    with shared.domain_errors():
        for text in vary:
            name, equals, values = text.partition("=")
            if not equals or name not in names or name in axes:
                raise UsageError(
                    f"--vary {text!r:.80} does not name one parameter; write NAME=VALUES, NAME being one of "
                    f"{', '.join(names)}, each at most once",
                    code="usage.sweep",
                )
            axes[name] = axis(values)
            if name in ("chips", "samples") and ":" in values:  # a range of what is counted has whole numbers only
                axes[name] = np.unique(np.round(axes[name]))
        points = grid(axes)
    count = len(next(iter(points.values())))
    for name in names:
        if name in points:
            continue
        value = fixed[name]
        if value is None and name != "run-days":
            raise UsageError(f"a sweep of {quantity.value} needs --{name}, or --vary {name}=...", code="usage.sweep")
        points[name] = points["period-days"] if value is None else np.full(count, value)
    return function, {name: points[name] for name in names}
