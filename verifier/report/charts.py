"""The plots of a report as inline SVG: deterministic, and without text that another party chose.

Chips are named by the first digits of their UEID, never by owner or site, so no hostile string reaches the plots.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

COLOURS = {
    "explained": "#2f7d5b", "explained given collectives": "#7fb8a0", "unverified": "#b9a44c",
    "unexplained": "#c8553d", "mismatch": "#7b1e3a",
}  # fmt: skip
"""One colour for each status of a snapshot, told apart in grey too."""

MOST_CHIPS = 60
"""Chips that a plot has room for."""
MOST_STRATA = 40

LEDGER_COLOURS = {"explained": "#2f7d5b", "idle": "#c9d3d8", "exempt": "#6a87b0", "unexplained": "#c8553d"}
"""One colour for each category of the ledger, told apart in grey too."""

_DAY_MS = 86_400_000
_MARKERS = {
    "explained": "o",
    "explained given collectives": "P",
    "unverified": "s",
    "unexplained": "X",
    "mismatch": "D",
}
_INK, _GRID = "#23313a", "#d9dee1"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "weighbridge",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_LOCK = threading.Lock()


def short(ueid: str) -> str:
    """Returns the label of a chip in plots: the first hex digits after the type byte."""
    return ueid[2:10]


def shown(chips: Sequence[Mapping[str, Any]], doubt: Callable[[Mapping[str, Any]], float]) -> list[Mapping[str, Any]]:
    """Returns the chips that a plot has room for, in their order: those with the most to doubt, if there are more.

    Args:
        chips: Entries of a report, one for each chip.
        doubt: How much there is to doubt about one.
    """
    worst = sorted(range(len(chips)), key=lambda place: (-doubt(chips[place]), place))[:MOST_CHIPS]
    return [chips[place] for place in sorted(worst)]


def _unexplained(chip: Mapping[str, Any]) -> float:
    return float(sum(each["status"] != "explained" for each in chip["snapshots"]))


def fleet(counts: Mapping[str, Any], strata: Sequence[Mapping[str, Any]]) -> str:
    """Plots how much of the fleet was looked at: chips, drawn and verified, by stratum and altogether.

    Args:
        counts: The report's `counts`.
        strata: Entries of the report's `draw.strata`, with `chips`, `drawn` and `certain`; by number, since their
            names come from outside.
    """
    rows = [(f"stratum {n}", each["chips"], each["drawn"], each["certain"], 0) for n, each in enumerate(strata, 1)]
    rows = [*rows[:MOST_STRATA], ("all", counts["registered"], counts["sampled"], 0, counts["verified"])]
    series = (
        ("registered", 1, "#c9d3d8"),
        ("drawn", 2, "#1f6f8b"),
        ("drawn with certainty", 3, "#99703a"),
        ("verified", 4, "#2f7d5b"),
    )
    with _canvas(height=0.8 + 0.5 * len(rows)) as (figure, axes):
        for place, (label, column, colour) in enumerate(series):
            values = [(number, row[column]) for number, row in enumerate(rows) if row[column]]
            heights = [number + 0.2 * place - 0.3 for number, _ in values]
            axes.barh(heights, [value for _, value in values], color=colour, label=label, height=0.18)
            for height, (_, value) in zip(heights, values, strict=True):
                axes.annotate(f" {value}", (value, height), va="center", fontsize=8)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, max(1, *(row[1] for row in rows)) * 3)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel("chips")
        _legend(axes, True)
        return _svg(figure)


def coverage(chips: Sequence[Mapping[str, Any]]) -> str:
    """Plots each sampled chip's snapshots by status, as stacked horizontal bars.

    Args:
        chips: Entries of the report's `chips`, each with its `snapshots`.
    """
    chips = shown(chips, _unexplained)
    with _canvas(height=0.7 + 0.34 * max(1, len(chips))) as (figure, axes):
        names = _names(chips)
        left = [0] * len(chips)
        for status, colour in COLOURS.items():
            counts = [sum(1 for each in chip["snapshots"] if each["status"] == status) for chip in chips]
            if any(counts):
                axes.barh(names, counts, left=left, color=colour, label=status, height=0.6)
            left = [start + count for start, count in zip(left, counts, strict=True)]
        axes.invert_yaxis()
        axes.set_xlim(0, max([1, *left]) * 1.02)
        axes.set_xlabel("snapshots")
        axes.locator_params(axis="x", integer=True)
        _legend(axes, bool(any(left)))
        return _svg(figure)


def timeline(chips: Sequence[Mapping[str, Any]]) -> str:
    """Plots when each chip took its snapshots, by its own clock, coloured by status.

    Args:
        chips: Entries of the report's `chips`, each with its `snapshots`.
    """
    chips = shown(chips, _unexplained)
    with _canvas(height=0.7 + 0.34 * max(1, len(chips))) as (figure, axes):
        names = _names(chips)
        times = [each["time_ms"] for chip in chips for each in chip["snapshots"]]
        start = min(times, default=0)
        for status, colour in COLOURS.items():
            points = [
                ((each["time_ms"] - start) / 86_400_000, place)
                for place, chip in enumerate(chips)
                for each in chip["snapshots"]
                if each["status"] == status
            ]
            if points:
                days, rows = zip(*points, strict=True)
                axes.scatter(days, rows, color=colour, marker=_MARKERS[status], s=34, label=status, zorder=3)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("days by the chip's clock, since the first snapshot")
        axes.grid(axis="x", color=_GRID)
        _legend(axes, bool(times))
        return _svg(figure)


def ledger(chips: Sequence[Mapping[str, Any]]) -> str:
    """Plots what each chip's time in the period counts as, from its beginning to its end.

    Args:
        chips: Entries of the report's `ledger.chips`, each with its `rows`.
    """
    chips = shown(chips, lambda chip: chip["ms"]["unexplained"])
    with _canvas(height=0.7 + 0.34 * max(1, len(chips))) as (figure, axes):
        names = _names(chips)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        for category, colour in LEDGER_COLOURS.items():
            label = category
            for place, chip in enumerate(chips):
                begin = chip["rows"][0]["begin_ms"] if chip["rows"] else 0
                spans = [
                    ((row["begin_ms"] - begin) / _DAY_MS, (row["end_ms"] - row["begin_ms"]) / _DAY_MS)
                    for row in chip["rows"]
                    if row["category"] == category
                ]
                if spans:
                    axes.broken_barh(spans, (place - 0.3, 0.6), color=colour, label=label)
                    label = "_nolegend_"
        axes.autoscale_view(scaley=False)
        axes.set_xlabel("days of the period")
        _legend(axes, any(chip["rows"] for chip in chips))
        return _svg(figure)


def probability(curve: Sequence[Mapping[str, Any]], *, drawn: int) -> str:
    """Plots the detection probability against the number of chips drawn, with as many unverified as there were.

    Args:
        curve: Entries of the report's `probability.curve`: `samples`, `eq1`, `hypergeometric` (either may be None).
        drawn: Chips that were drawn.
    """
    with _canvas(height=2.9) as (figure, axes):
        series = (
            ("hypergeometric", "exact, without replacement", "#1f6f8b", "-"),
            ("eq1", "equation 1", "#99703a", "--"),
        )
        defined = False
        for key, label, colour, line in series:
            points = [(point["samples"], point[key]) for point in curve if point[key] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, marker=".", label=label)
                defined = True
        axes.axvline(drawn, color=_INK, linewidth=1, linestyle=":", label="this inspection")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("chips drawn")
        axes.set_ylabel("p")
        axes.grid(color=_GRID)
        axes.locator_params(axis="x", integer=True)
        _legend(axes, defined)
        return _svg(figure)


def _names(chips: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [short(chip["ueid"]) for chip in chips]
    # Bars with equal names would fall on each other.
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names)]


@contextmanager
def _canvas(*, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Gives a figure of `height` inches with one pair of axes, drawn in our style; matplotlib's settings are global."""
    with _LOCK, matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure, figure.subplots()


def _legend(axes: Axes, wanted: bool) -> None:
    if wanted:
        axes.legend(frameon=False, fontsize=9, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.1)


def _svg(figure: Figure) -> str:
    """Returns the figure as an `<svg>` element without XML prologue, the same for the same data."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
