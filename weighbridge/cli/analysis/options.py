"""What the commands of `weighbridge analysis` share: options, the methods by name, errors, tables on disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from analysis.domain import FloatArray

SECONDS_PER_DAY = 86400.0


class Method(StrEnum):
    """How probabilities are computed; see `analysis.detection` and `analysis.periods`."""

    HYPERGEOMETRIC = "hypergeometric"
    EQ1 = "eq1"
    ACCUMULATING = "accumulating"
    LINEARISED = "linearised"


class Quantity(StrEnum):
    """What a sweep computes."""

    PROBABILITY = "probability"
    SAMPLES = "samples"
    SMALLEST_RUN = "smallest-run"


Chips = Annotated[float, typer.Option("--chips", help="Number of chips that could be involved (C), e.g. 1e5.")]
Flops = Annotated[float, typer.Option("--flops", help="Size of the violation in FLOPs (H).")]
ChipFlops = Annotated[float, typer.Option("--chip-flops", help="FLOP/s of one chip; a is that times 86400.")]
Period = Annotated[float, typer.Option("--period-days", help="Monitoring period in days (T_m).")]
Rate = Annotated[float, typer.Option("--rate", help="Snapshots per chip and day (f).")]
RunDays = Annotated[
    float | None, typer.Option("--run-days", help="Length of the run in days (T); default: the period.")
]
Probability = Annotated[float, typer.Option("--probability", help="Detection probability (p), e.g. 0.9.")]
Samples = Annotated[float, typer.Option("--samples", help="Chips sampled in each period (s).")]
Withheld = Annotated[
    int,
    typer.Option(
        "--withheld",
        min=0,
        help="Drawn chips a period that stay unverified once the draw is known (w). The Prover chose them, so more "
        "than w drawn chips have to show the run.",
    ),
]
HOW = Annotated[
    Method,
    typer.Option(
        "--method",
        help="hypergeometric: whole chips, without replacement, snapshots accumulating. eq1: the paper's equation 1. "
        "accumulating: eq1 with snapshots accumulating. linearised: as the paper's table 1.",
    ),
]


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turns a domain error of `analysis` into an error of usage."""
    from analysis.domain import DetectionDomainError

    try:
        yield
    except DetectionDomainError as error:
        raise UsageError(str(error), code="usage.domain") from None


def fleet(
    chips: float, flops: float | None, chip_flops: float, period: float, rate: float, run_days: float | None
) -> dict[str, Any]:
    """Returns the parameters that formulas share, under the names that `analysis` gives them.

    Raises:
        UsageError: The FLOP/s of a chip are out of range.
    """
    from analysis.domain import positive

    with domain_errors():
        positive("period_days", period, "days")  # here, because a run of unstated length takes one period
        parameters: dict[str, Any] = {
            "chips": chips,
            "chip_flops_per_day": float(positive("chip_flops", chip_flops, "FLOP/s")) * SECONDS_PER_DAY,
            "period_days": period,
            "snapshot_rate_per_day": rate,
            "run_days": period if run_days is None else run_days,
        }
    return parameters if flops is None else parameters | {"flops_threshold": flops}


def _without(parameters: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name not in names}


def probability_of(method: Method, **parameters: Any) -> FloatArray:
    """Returns the detection probability by `method`.

    Raises:
        DetectionDomainError: The parameters are out of its domain.
    """
    from analysis import detection, periods

    if method is Method.LINEARISED:
        _refuse_withheld(method, parameters)
        return detection.detection_probability_linearised(**_without(parameters, "run_days", "withheld"))
    by_method: dict[Method, Callable[..., FloatArray]] = {
        Method.EQ1: detection.detection_probability_eq1,
        Method.ACCUMULATING: periods.accumulating_probability,
        Method.HYPERGEOMETRIC: periods.accumulating_probability_hypergeometric,
    }
    return by_method[method](**parameters)


def _refuse_withheld(method: Method, parameters: Mapping[str, Any]) -> None:
    """Refuses chips that are withheld, for a formula that has no place for them.

    Raises:
        InfeasibleError: There are some.
    """
    from analysis.domain import InfeasibleError

    if parameters.get("withheld"):
        raise InfeasibleError(f"the method {method.value} has no place for withheld chips here; use hypergeometric")


def samples_of(method: Method, **parameters: Any) -> FloatArray:
    """Returns the least whole samples per period by `method`, as float64.

    Raises:
        DetectionDomainError: The parameters are out of its domain, or that is more samples than chips.
    """
    import numpy as np

    from analysis import detection, periods
    from analysis.domain import not_more_than_chips, together, whole

    if method is Method.HYPERGEOMETRIC:
        needed = periods.accumulating_samples_hypergeometric(**parameters)
    else:
        _refuse_withheld(method, parameters)
        by_method: dict[Method, Callable[..., FloatArray]] = {
            Method.EQ1: detection.samples_needed,
            Method.ACCUMULATING: periods.accumulating_samples,
            Method.LINEARISED: lambda **given: detection.samples_needed_linearised(**_without(given, "run_days")),
        }
        needed = by_method[method](**_without(parameters, "withheld"))
    rounded, chips = together(np.ceil(needed), whole("chips", parameters["chips"], 1))
    not_more_than_chips(rounded, chips)
    return rounded[()]


def smallest_of(method: Method, **parameters: Any) -> FloatArray:
    """Returns the FLOPs of the smallest run caught, by `hypergeometric` or `eq1`.

    Raises:
        DetectionDomainError: The parameters are out of its domain, or the method has no inverse here.
    """
    import numpy as np

    from analysis import smallest_run
    from analysis.domain import DetectionDomainError, positive

    if method is Method.EQ1:
        return smallest_run.smallest_run_eq1(**parameters)
    if method is not Method.HYPERGEOMETRIC:
        raise DetectionDomainError("the smallest run is computed by the methods hypergeometric and eq1 only")
    speed = positive("chip_flops_per_day", parameters["chip_flops_per_day"], "FLOP/day")
    chips = smallest_run.smallest_run_chips(**_without(parameters, "chip_flops_per_day"))
    return chips * speed * np.asarray(parameters["run_days"], dtype=np.float64)


def csv_text(columns: Mapping[str, FloatArray]) -> str:
    """Returns columns of one length as CSV, empty where there is no value."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*(values.tolist() for values in columns.values()), strict=True):
        writer.writerow("" if value != value else repr(value) for value in row)
    return text.getvalue()


def write_table(columns: Mapping[str, FloatArray], out: Path) -> None:
    """Writes columns of one length as `.csv` or `.parquet`, whichever the name ends in.

    Raises:
        UsageError: It ends in neither, pyarrow is not installed, or the file cannot be written.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{out} must end in .csv or .parquet", code="usage.table")
    try:
        if out.suffix == ".csv":
            out.write_text(csv_text(columns), encoding="utf-8")
        else:
            _write_parquet(columns, out)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror or error}", code="usage.table") from None


def _write_parquet(columns: Mapping[str, FloatArray], out: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow: pip install 'weighbridge[parquet]', or write .csv", code="usage.table"
        ) from None
    table = pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()})
    parquet.write_table(table, out)
