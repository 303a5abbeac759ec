"""The published numbers of Shavit (arXiv 2303.11341), as printed and by equation 1: table 1, footnote 5, figure 2.

Table 1 was not computed with equation 1. Its numbers come from the linearised form, log(1 - q) taken as -q, with
T = T_m = 30 days, rounded down, and a dash where training would take more than the owner's chips a whole year.
`docs/paper.md` explains that and lists the errata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.costs import DAYS_PER_YEAR, annual_samples, inspectors_needed
from analysis.detection import (
    samples_needed,
    samples_needed_hypergeometric,
    samples_needed_linearised,
)
from analysis.domain import DetectionDomainError, FloatArray, InfeasibleError, Numbers
from analysis.stretch import stretch_ratio

Mode = Literal["printed", "exact", "hypergeometric"]

CHIP_FLOPS_PER_DAY = 1e15 * 24 * 3600  # a: an H100 at full use in 16 bits
RATE = 0.1  # f, snapshots per chip and day
PROBABILITY = 0.9  # p
PERIOD_DAYS = 30.0  # T; T_m is not stated, and only T_m = 30 gives the printed numbers
CHIPS = (10**3, 10**5, 10**7)  # C


@dataclass(frozen=True)
class PaperModel:
    """One line of table 1: a model and the FLOPs of its training (H).

    Chinchilla-280B and larger models are the Chinchilla paper's projections.
    """

    name: str
    flops: float


MODELS = (
    PaperModel("GPT-3", 3.14e23),
    PaperModel("Chinchilla", 5.76e23),
    PaperModel("PaLM", 2.56e24),
    PaperModel("Chinchilla-280B", 9.9e24),
    PaperModel("Chinchilla-1T", 1.27e26),
    PaperModel("Chinchilla-10T", 1.3e28),
)


@dataclass(frozen=True)
class Row:
    """One line of table 1.

    Attributes:
        model: Its name.
        flops: H.
        chip_days: H/a, days of one chip.
        chips_one_year: Chips that train it in a year, rounded up.
        samples: Samples a year by number of chips; None for a dash.
    """

    model: str
    flops: float
    chip_days: float
    chips_one_year: float
    samples: dict[int, float | None]


def table_1(mode: Mode) -> tuple[Row, ...]:
    """Returns table 1 of the paper.

    Args:
        mode: `printed`: the paper's recipe and rounding, all 27 numbers and 3 dashes. `exact`: equation 1, samples a
            year as a real number. `hypergeometric`: whole chips without replacement, whole samples per period, times
            365/30. The last two have no value where the run does not fit on the chips within 30 days.

    Raises:
        DetectionDomainError: There is no such mode.
    """
    if mode not in ("printed", "exact", "hypergeometric"):
        raise DetectionDomainError(f"there is no mode {mode!r}; use printed, exact or hypergeometric")
    return tuple(_printed_row(model) if mode == "printed" else _exact_row(model, mode) for model in MODELS)


def _printed_row(model: PaperModel) -> Row:
    days = model.flops / CHIP_FLOPS_PER_DAY
    for_a_year = int(np.ceil(days / DAYS_PER_YEAR))
    samples: dict[int, float | None] = {}
    for chips in CHIPS:
        needed = samples_needed_linearised(
            probability=PROBABILITY,
            flops_threshold=model.flops,
            chip_flops_per_day=CHIP_FLOPS_PER_DAY,
            chips=chips,
            period_days=PERIOD_DAYS,
            snapshot_rate_per_day=RATE,
        )
        yearly = float(np.floor(annual_samples(samples=needed, period_days=PERIOD_DAYS)))
        samples[chips] = None if for_a_year > chips else as_printed(yearly)
    return Row(model.name, model.flops, as_printed(float(np.ceil(days))), as_printed(float(for_a_year)), samples)


def _exact_row(model: PaperModel, mode: Mode) -> Row:
    days = model.flops / CHIP_FLOPS_PER_DAY
    samples: dict[int, float | None] = {}
    for chips in CHIPS:
        try:
            if mode == "exact":
                needed = samples_needed(
                    probability=PROBABILITY,
                    flops_threshold=model.flops,
                    chip_flops_per_day=CHIP_FLOPS_PER_DAY,
                    chips=chips,
                    run_days=PERIOD_DAYS,
                    period_days=PERIOD_DAYS,
                    snapshot_rate_per_day=RATE,
                )
            else:
                needed = samples_needed_hypergeometric(
                    probability=PROBABILITY,
                    flops_threshold=model.flops,
                    chip_flops_per_day=CHIP_FLOPS_PER_DAY,
                    chips=chips,
                    run_days=PERIOD_DAYS,
                    snapshot_rate_per_day=RATE,
                )
        except InfeasibleError:
            samples[chips] = None
        else:
            samples[chips] = float(annual_samples(samples=needed, period_days=PERIOD_DAYS))
    return Row(model.name, model.flops, days, float(np.ceil(days / DAYS_PER_YEAR)), samples)


def as_printed(value: float) -> float:
    """Returns a whole number as the paper prints it: as it is below 1000, to three digits from there on."""
    return value if value < 1000 else float(f"{value:.2e}")


def printed_text(value: float | None) -> str:
    """Returns such a number as text, such as `243`, `2.43e4`, `1.5e8`, or a dash for None."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value:.0f}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}" if digits.endswith("0") else f"{digits}e{int(exponent)}"


@dataclass(frozen=True)
class Footnote5:
    """Footnote 5: samples and inspectors a year for 10^7 chips of three times the speed, and 1000 chips an inspector.

    Attributes:
        linearised: Samples a year by the linearised form, which the paper's "roughly 232,000" rounds.
        exact: Samples a year by equation 1.
        as_stated: Samples a year by equation 1 for the 10^25 FLOPs that the text states.
        inspectors: Inspectors for `exact`.
    """

    linearised: float
    exact: float
    as_stated: float
    inspectors: int


def footnote_5() -> Footnote5:
    """Returns the numbers behind footnote 5; "232,000" belongs to Chinchilla-280B (9.9e24), not to 10^25 FLOPs."""

    def exact(flops: float) -> float:
        needed = samples_needed(
            probability=PROBABILITY,
            flops_threshold=flops,
            chip_flops_per_day=3 * CHIP_FLOPS_PER_DAY,
            chips=10**7,
            run_days=PERIOD_DAYS,
            period_days=PERIOD_DAYS,
            snapshot_rate_per_day=RATE,
        )
        return float(annual_samples(samples=needed, period_days=PERIOD_DAYS))

    linearised = samples_needed_linearised(
        probability=PROBABILITY,
        flops_threshold=9.9e24,
        chip_flops_per_day=3 * CHIP_FLOPS_PER_DAY,
        chips=10**7,
        period_days=PERIOD_DAYS,
        snapshot_rate_per_day=RATE,
    )
    return Footnote5(
        linearised=float(annual_samples(samples=linearised, period_days=PERIOD_DAYS)),
        exact=exact(9.9e24),
        as_stated=exact(1e25),
        inspectors=int(inspectors_needed(samples_per_year=exact(9.9e24))),
    )


def figure_2(*, stretches: Numbers, involved_fractions: Numbers, probability: float = PROBABILITY) -> FloatArray:
    """Returns p_d(k)/p_d(1) over a grid, the surface of figure 2.

    Args:
        stretches: Values of k, at least 1, one axis; the figure goes from 1 to 100.
        involved_fractions: Values of b = H/(CaT), one axis; the figure goes from 0 (exclusive here) to 0.2.
        probability: p.

    Returns:
        Shape (number of fractions, number of stretches).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    k, b = np.meshgrid(np.atleast_1d(stretches), np.atleast_1d(involved_fractions))
    return stretch_ratio(probability=probability, involved_fraction=b, stretch=k)
