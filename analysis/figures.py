"""What the figures show: each function draws one, for a scenario; `analysis.figure_files` names and saves them.

Lines differ by colour and by dashes, so that colour-blind readers and photocopies keep them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import detection, early_detection, evasion, paper, periods, scenario_answers
from analysis.catalog import load_models
from analysis.domain import InfeasibleError
from analysis.scenario import Scenario

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Blue, vermilion, green, purple, sky, orange: Okabe and Ito, "Color Universal Design" (2008)."""

_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_INK, _GRID = "#23313a", "#d9dee1"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "weighbridge",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "mathtext.fontset": "dejavusans",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "axes.formatter.use_mathtext": True,
}
_SIZE = (5.6, 3.5)  # inches


@contextmanager
def _axes(size: tuple[float, float] = _SIZE) -> Iterator[tuple[Figure, Axes]]:
    drawn = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(drawn)
    yield drawn, drawn.add_subplot()


def _line(axes: Axes, x: Any, y: Any, number: int, label: str) -> None:
    axes.plot(x, y, color=COLOURS[number % 6], linestyle=_DASHES[number % 6], label=label)


def _probabilities(axes: Axes, label: str = "detection probability p") -> None:
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel(label)


def _whole_counts(most: float, count: int = 80) -> Any:
    return np.unique(np.round(np.geomspace(1, max(2.0, most), count)))


def draw_figure_2(scenario: Scenario) -> Figure:
    """Draws p_d(k)/p_d(1) over k and b, the paper's figure 2, for any scenario the same."""
    del scenario  # it is the paper's
    k, b = np.geomspace(1, 100, 120), np.linspace(0.002, 0.2, 100)
    ratio = paper.figure_2(stretches=k, involved_fractions=b)
    with _axes() as (drawn, axes):
        surface = axes.contourf(k, b, ratio, levels=np.linspace(0.97, 1.0, 13), cmap="cividis")
        lines = axes.contour(k, b, ratio, levels=[0.975, 0.98, 0.985, 0.99, 0.995], colors="white", linewidths=0.8)
        axes.clabel(lines, fmt="%.3f", fontsize=7)
        axes.set_xscale("log")
        axes.grid(visible=False)
        axes.set_xlabel("stretch k")
        axes.set_ylabel("fraction of all chips b = H/(CaT)")
        drawn.colorbar(surface, ax=axes, label="$p_d(k) / p_d(1)$", ticks=[0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 1.0])
    return drawn


def draw_table_1(scenario: Scenario) -> Figure:
    """Draws samples a year over chips for the models of the paper's table 1, for any scenario the same."""
    del scenario  # it is the paper's
    chips = np.geomspace(1e2, 1e8, 200)
    rows = paper.table_1("printed")
    with _axes() as (drawn, axes):
        for number, row in enumerate(rows):
            yearly = detection.samples_needed_linearised(
                probability=paper.PROBABILITY,
                flops_threshold=row.flops,
                chip_flops_per_day=paper.CHIP_FLOPS_PER_DAY,
                chips=np.round(chips),
                period_days=paper.PERIOD_DAYS,
                snapshot_rate_per_day=paper.RATE,
            ) * (365 / paper.PERIOD_DAYS)
            possible = np.where(chips >= row.chips_one_year, yearly, np.nan)
            _line(axes, chips, possible, number, f"{row.model} ({row.flops:.3g})")
            printed = [(count, value) for count, value in row.samples.items() if value is not None]
            axes.plot(*zip(*printed, strict=True), _MARKERS[number], color=COLOURS[number], markersize=4.5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("chips C")
        axes.set_ylabel("samples a year for p = 0.9")
        axes.legend(title="model (FLOPs); marks: as printed", title_fontsize=8)
    return drawn


def draw_samples(scenario: Scenario) -> Figure:
    """Draws p over samples in each period, by several formulas, and how many are needed."""
    involved = scenario_answers.involved_chips(scenario)
    needed = scenario_answers.samples_needed(scenario)
    most = min(scenario.chips, max(10.0, 3.0 * (scenario.samples or needed or scenario.chips / 3)))
    counts = _whole_counts(most)
    shared = scenario.fleet()
    with _axes() as (drawn, axes):
        inspected = evasion.seen(scenario, samples=counts, involved=involved, days=scenario.run_days)
        _line(axes, counts, inspected, 0, "inspections as they happen")
        named = (("equation 1", detection.detection_probability_eq1),
                 ("snapshots accumulate", periods.accumulating_probability))  # fmt: skip
        for number, (label, method) in enumerate(named, start=1):
            try:
                _line(axes, counts, method(samples=counts, **shared), number, label)
            except InfeasibleError:
                continue  # equation 1 has no value for runs shorter than a period
        axes.axhline(scenario.wanted, color=_INK, linewidth=0.8, linestyle=":")
        if needed is not None:
            axes.annotate(
                f"{needed:,} samples", (needed, scenario.wanted), xytext=(-6, 6), textcoords="offset points", ha="right"
            )
            axes.plot([needed], [scenario.wanted], "o", color=COLOURS[0], markersize=5)
        axes.set_xscale("log")
        axes.set_xlabel("samples in each period s")
        _probabilities(axes)
        axes.legend(loc="upper left")
    return drawn


def draw_rate(scenario: Scenario) -> Figure:
    """Draws samples needed and time lost over the rate of snapshots."""
    rates = np.geomspace(1e-3, 10, 41)
    needed = [scenario_answers.samples_needed(replace(scenario, rate=float(rate))) for rate in rates]
    lost = rates * scenario.costs.stall_seconds * scenario.costs.job_chips / 86400
    with _axes() as (drawn, axes):
        _line(axes, rates, [np.nan if count is None else count for count in needed], 0, "samples in each period")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("snapshots per chip and day f")
        axes.set_ylabel(f"samples in each period for p = {scenario.wanted:g}")
        axes.axvline(scenario.rate, color=_INK, linewidth=0.8, linestyle=":")
        other = axes.twinx()
        other.spines["right"].set_visible(True)
        other.grid(visible=False)
        _line(other, rates, lost, 1, "time lost to snapshots")
        other.set_yscale("log")
        other.set_ylabel("fraction of time lost to snapshots")
        axes.legend(handles=[*axes.get_lines()[:1], *other.get_lines()], loc="upper center")
    return drawn


def draw_stretch(scenario: Scenario) -> Figure:
    """Draws p over the days that the Prover takes for the run."""
    samples, days = scenario_answers.samples_used(scenario), scenario.run_days * np.geomspace(0.1, 20, 100)
    ways = [evasion.way(scenario, samples, days=float(length)) for length in days]
    found = [np.nan if way.probability is None else way.probability for way in ways]
    with _axes() as (drawn, axes):
        _line(axes, days, found, 0, f"{samples:,} samples in each period")
        axes.axvline(scenario.run_days, color=_INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_xlabel("days that the Prover takes for the run T")
        _probabilities(axes)
        axes.legend(loc="lower right")
    return drawn


def draw_early(scenario: Scenario) -> Figure:
    """Draws over days when runs of 2, 4 and 8 H are detected, by inspections that miss nothing."""
    samples, length = scenario_answers.samples_used(scenario), 2 * scenario.run_days
    elapsed = np.linspace(0, length + scenario.period_days, 240)
    with _axes() as (drawn, axes):
        for number, size in enumerate((2.0, 4.0, 8.0)):
            chips_needed = size * scenario.flops / scenario.chip_flops_per_day / length
            if chips_needed > scenario.chips:
                continue
            found = early_detection.probability_by_day(
                elapsed_days=elapsed,
                samples=samples,
                run_flops=size * scenario.flops,
                flops_threshold=scenario.flops,
                chip_flops_per_day=scenario.chip_flops_per_day,
                chips=scenario.chips,
                run_days=length,
                period_days=scenario.period_days,
                snapshot_rate_per_day=scenario.rate,
            )
            axes.step(
                elapsed, np.asarray(found), where="post", color=COLOURS[number], linestyle=_DASHES[number],
                label=f"a run of {size:g} H",
            )  # fmt: skip
        axes.axvline(length, color=_INK, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"days since the run began; it takes {length:g}")
        _probabilities(axes, "detected by then")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left")
    return drawn


def draw_smallest(scenario: Scenario) -> Figure:
    """Draws the smallest violation that is seen over samples in each period."""
    counts = _whole_counts(min(scenario.chips, 20.0 * scenario_answers.samples_used(scenario)), 40)
    involved = [scenario_answers.smallest_involved(scenario, float(count)) for count in counts]
    sizes = [np.nan if n is None else scenario_answers.violation_of(scenario, n) for n in involved]
    with _axes() as (drawn, axes):
        _line(axes, counts, sizes, 0, "smallest violation seen")
        for number, model in enumerate(paper.MODELS[:4], start=1):
            axes.axhline(model.flops, color=COLOURS[number], linestyle=_DASHES[number], linewidth=0.9, label=model.name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("samples in each period s")
        axes.set_ylabel(f"FLOPs of the violation, p = {scenario.wanted:g}")
        axes.legend(loc="upper right")
    return drawn


def draw_budget(scenario: Scenario) -> Figure:
    """Draws p and snapshot rate of the best plan over budgets."""
    cost = sum(scenario_answers.yearly_costs(scenario, scenario_answers.samples_used(scenario)))
    budgets = np.geomspace(cost / 100, 10 * cost, 16)
    found, rates = [], []
    for money in budgets:
        try:
            plan = scenario_answers.plan_for(scenario, float(money))
        except InfeasibleError:
            found.append(np.nan)
            rates.append(np.nan)
        else:
            found.append(plan.detection_probability_hypergeometric)
            rates.append(plan.snapshot_rate_per_day)
    with _axes() as (drawn, axes):
        axes.plot(budgets, found, color=COLOURS[0], marker="o", markersize=3.5, label="p of the best plan")
        axes.set_xscale("log")
        axes.set_xlabel("budget a year, in units of cost")
        _probabilities(axes)
        other = axes.twinx()
        other.spines["right"].set_visible(True)
        other.grid(visible=False)
        look = {"color": COLOURS[1], "linestyle": _DASHES[1], "marker": "s", "markersize": 3.5}
        other.plot(budgets, rates, label="its snapshot rate", **look)
        other.set_yscale("log")
        other.set_ylabel("snapshots per chip and day f")
        axes.legend(handles=[*axes.get_lines(), *other.get_lines()], loc="upper left")
    return drawn


def draw_proofs(scenario: Scenario) -> Figure:
    """Draws years of one machine to train, and to prove training, over FLOPs."""
    sizes = np.geomspace(1e18, 1e27, 60)
    with _axes() as (drawn, axes):
        training = sizes / scenario.chip_flops / 86400 / 365
        _line(axes, sizes, training, 0, "training, and replaying all of it at the same speed")
        for number, proving in enumerate(scenario_answers.proofs(1.0, 1.0), start=1):
            system, years = proving.system, sizes * proving.seconds / 86400 / 365
            _line(axes, sizes, years, number, f"proving it: {system.name} ({system.published})")
        axes.axvline(scenario.flops, color=_INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("FLOPs of the run")
        axes.set_ylabel("years of one machine")
        axes.legend(loc="upper left")
    return drawn


def draw_models(scenario: Scenario) -> Figure:
    """Draws published FLOPs of training over dates of publication."""
    made = [(model, when) for model in load_models() if model.organization and (when := _year(model.published))]
    years = [when for _, when in made]
    with _axes((6.4, 4.0)) as (drawn, axes):
        axes.plot(years, [model.flops for model, _ in made], "o", color=COLOURS[0], markersize=4)
        for number, (model, when) in enumerate(sorted(made, key=lambda each: each[0].flops)):
            aside = (4, 2) if number % 2 else (4, -7)  # neighbours in size on different sides
            axes.annotate(model.name, (when, model.flops), xytext=aside, textcoords="offset points", fontsize=6.5)
        axes.axhline(scenario.flops, color=COLOURS[1], linestyle=_DASHES[1], label=f"H = {scenario.flops:.3g} FLOPs")
        axes.set_yscale("log")
        axes.set_xlim(min(years) - 0.3, max(years) + 1.3)
        axes.set_xlabel("year of publication")
        axes.set_ylabel("FLOPs of training")
        axes.legend(loc="lower right")
    return drawn


def _year(text: str) -> float | None:
    """Returns a date such as 2022-03-29 as a year with a fraction; None if the text is none."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day.year + (day.timetuple().tm_yday - 1) / 365.25
