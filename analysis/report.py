"""One HTML page for a scenario: answers, what they assume, figures. Self-contained, without scripts or addresses.

The page is the same for the same scenario and version: it holds no date. Texts from the scenario are escaped.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis import answers, evasion, figures
from analysis.domain import DetectionDomainError
from analysis.scenario import Scenario
from analysis.texts import number, percent, seconds, size

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
    return template.render(
        scenario=scenario, found=found, figures=drawn, trials=evasion.TRIALS,
        longest=scenario.run_days * evasion.STRETCHES[-1],
    )  # fmt: skip


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
