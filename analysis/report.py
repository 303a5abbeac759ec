"""One HTML page for a scenario: answers, what they assume, figures. Self-contained, without scripts or addresses.

The page is the same for the same scenario and version: it holds no date. Texts from the scenario are escaped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis import answers, figures
from analysis.domain import DetectionDomainError
from analysis.scenario import Scenario

FIGURES = ("samples", "smallest", "stretch", "early", "rate", "models", "proofs")  # those of every report, in order


class ReportError(DetectionDomainError):
    """A report that cannot be written; the message says where."""


def html(scenario: Scenario) -> str:
    """Returns the page for a scenario.

    Raises:
        DetectionDomainError: The scenario has no answer; see `answers.answer`.
    """
    found = answers.answer(scenario)
    names = [*FIGURES, *(["budget"] if scenario.budget is not None else [])]
    drawn = [
        (figures.DRAWINGS[name].caption, Markup(figures.inline_svg(figures.figure(name, scenario), name)))
        for name in names
    ]
    environment = Environment(
        loader=PackageLoader("analysis"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(number=number, percent=percent, size=size, seconds=seconds)
    template = environment.get_template("scenario.html")
    return template.render(scenario=scenario, found=found, figures=drawn)


def write(scenario: Scenario, path: Path) -> None:
    """Writes the page for a scenario.

    Raises:
        DetectionDomainError: The scenario has no answer.
        ReportError: The file cannot be written.
    """
    content = html(scenario)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from None


def number(value: Any) -> str:
    """Returns a number as text: whole ones below a million with separators, others to four digits."""
    if value is None:
        return "none"
    plain = float(value)
    if plain.is_integer() and abs(plain) < 1e6:
        return f"{int(plain):,}"
    return f"{plain:,.4g}" if 1e-3 <= abs(plain) < 1e6 else f"{plain:.4g}"


def percent(value: float | None) -> str:
    """Returns a fraction as a percentage, with more digits near 0 and 1, which are written only if true."""
    if value is None:
        return "does not fit"
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    for digits in range(2, 12):
        text = f"{value:.{digits}%}"
        if float(text[:-1]) not in (0.0, 100.0):
            return text
    return "almost 100 %" if value > 0.5 else "almost 0 %"


def size(value: float) -> str:
    """Returns bytes with a decimal prefix, such as `24 PB`."""
    scaled = value
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if scaled < 1000:
            return f"{scaled:.3g} {unit}"
        scaled /= 1000
    return f"{scaled:,.3g} ZB"


def seconds(value: float) -> str:
    """Returns a duration in the largest unit that it has one of, such as `3.2 years`."""
    for unit, length in (("years", 365 * 86400.0), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= length:
            return f"{value / length:,.3g} {unit}" if value / length < 1e6 else f"{value / length:.3g} {unit}"
    return f"{value:.3g} s"
