"""The plot of a report as inline SVG: deterministic, and without text that another party chose.

Ink and lines take the colours of the page around them, so that one picture fits light and dark pages and paper.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_INK, _GRID, _EXACT, _EQUATION = "#23313a", "#d9dee1", "#1f6f8b", "#99703a"
_OF_THE_PAGE = {_INK: "currentColor", _GRID: "var(--line)", _EXACT: "var(--accent)", _EQUATION: "var(--warn)"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "weighbridge",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_LEAST_POINTS = 5
"""A curve over fewer numbers of chips says no more than the figures beside it."""

_LOCK = threading.Lock()


def probability(curve: Sequence[Mapping[str, Any]], *, drawn: int) -> str:
    """Plots the detection probability against the number of chips drawn, with as many unverified as there were.

    Args:
        curve: Entries of the report's `probability.curve`: `samples`, `eq1`, `hypergeometric` (either may be None).
        drawn: Chips that were drawn.

    Returns:
        An `<svg>` element; empty where there is too little to plot, as for a fleet of a few chips.
    """
    series = (
        ("hypergeometric", "exact, without replacement", _EXACT, "-"),
        ("eq1", "equation 1, with replacement", _EQUATION, "--"),
    )
    lines = []
    for key, label, colour, line in series:
        points = [(each["samples"], each[key]) for each in curve if each[key] is not None]
        if len({value for _, value in points}) > 1:
            lines.append((label, colour, line, points))
    if max((len(points) for *_, points in lines), default=0) < _LEAST_POINTS:
        return ""
    # Fonts have the size of the page's text at the width of a telephone; pyplot's settings are global.
    with _LOCK, matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 2.9), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        for label, colour, line, points in lines:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, label=label)
        axes.axvline(drawn, color=_INK, linewidth=1, linestyle=":", label="this inspection")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("chips drawn")
        axes.set_ylabel("p")
        axes.grid(color=_GRID)
        axes.locator_params(axis="x", integer=True)
        axes.legend(frameon=False, fontsize=8.5, ncols=1, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.1)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    """Returns the figure as an `<svg>` element without XML prologue, the same for the same data."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    for fixed, of_the_page in _OF_THE_PAGE.items():
        text = text.replace(fixed, of_the_page)
    return text[text.index("<svg") :]
