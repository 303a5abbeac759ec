"""Figures for papers and reports: deterministic SVG and PDF, in colours that colour-blind readers tell apart.

The same figure gives the same bytes, wherever it is drawn with the same version of Matplotlib: no dates, fixed
identifiers, and the font that Matplotlib brings along. Lines differ by dashes too, so that they survive a photocopy.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from analysis import figures
from analysis.domain import DetectionDomainError
from analysis.figures import STYLE
from analysis.scenario import Scenario


class FigureError(DetectionDomainError):
    """A figure that there is not, or a file that it cannot be written to; the message says what is possible."""


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn.

    Attributes:
        name: What the command calls it.
        caption: What it shows, as one would write under it.
        draw: Draws it for a scenario.
    """

    name: str
    caption: str
    draw: Callable[[Scenario], Figure]


def figure(name: str, scenario: Scenario) -> Figure:
    """Returns a figure by name.

    Args:
        name: One of `DRAWINGS`.
        scenario: What to draw it for; `scenario.paper()` for the paper's setting.

    Raises:
        FigureError: There is no such figure.
        DetectionDomainError: It cannot be drawn for this scenario: see `answers.answer`.
    """
    if name not in DRAWINGS:
        raise FigureError(f"there is no figure {name!r:.40}; there are {', '.join(DRAWINGS)}")
    with matplotlib.rc_context(STYLE):
        return DRAWINGS[name].draw(scenario)


def save(drawn: Figure, path: Path) -> None:
    """Writes a figure as SVG or PDF, whichever the name ends in.

    Raises:
        FigureError: It ends in neither, or cannot be written.
    """
    if path.suffix not in (".svg", ".pdf"):
        raise FigureError(f"{path} must end in .svg or .pdf")
    content = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        dates: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
        drawn.savefig(content, format=path.suffix[1:], metadata=dates)
    try:
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise FigureError(f"cannot write {path}: {error.strerror or error}") from None


def inline_svg(drawn: Figure, prefix: str) -> str:
    """Returns a figure as an `<svg>` element that can stand in a page beside others.

    Args:
        drawn: The figure.
        prefix: Letters that its identifiers begin with, so that those of several figures differ.
    """
    content = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none", "svg.id": prefix}):
        drawn.savefig(content, format="svg", metadata={"Date": None})
    text = content.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="(?!' + prefix + r'")', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    return re.sub(r'href="#', f'href="#{prefix}-', text).strip()


_ALL = (
    Drawing(
        "figure2",
        "What training longer on fewer chips saves the Prover: figure 2 of the paper.",
        figures.draw_figure_2,
    ),
    Drawing(
        "table1",
        "Samples a year for the models of the paper's table 1; marks are its numbers.",
        figures.draw_table_1,
    ),
    Drawing("samples", "Detection probability by samples in each period.", figures.draw_samples),
    Drawing("rate", "Samples needed, and time lost, by the rate of snapshots.", figures.draw_rate),
    Drawing("stretch", "Detection probability by the time that the Prover takes for the run.", figures.draw_stretch),
    Drawing(
        "early",
        "When runs above the threshold are detected, by inspections that miss nothing.",
        figures.draw_early,
    ),
    Drawing("smallest", "The smallest violation that samples show.", figures.draw_smallest),
    Drawing("budget", "The best plan for a budget.", figures.draw_budget),
    Drawing("proofs", "Time to train, and to prove training, by published figures.", figures.draw_proofs),
    Drawing("models", "Published FLOPs of training, and the violation.", figures.draw_models),
)
DRAWINGS: dict[str, Drawing] = {each.name: each for each in _ALL}
"""Every figure by name."""
