"""One HTML page for a scenario: answers, what they assume, figures. Self-contained, without scripts or addresses.

The page is the same for the same scenario and version: it holds no date. Texts from the scenario are escaped.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis import evasion, figure_files, scenario_answers
from analysis.number_texts import number, percent, seconds, size
from analysis.scenario import Scenario

FIGURES = ("samples", "smallest", "stretch", "early", "rate", "models", "proofs")  # those of every report, in order


def html(scenario: Scenario) -> str:
    """Returns the page for a scenario.

    Raises:
        DetectionDomainError: The scenario has no answer; see `answers.answer`.
    """
    found = scenario_answers.answer(scenario)
    names = [*FIGURES, *(["budget"] if scenario.budget is not None else [])]
    drawn = [
        (
            figure_files.DRAWINGS[name].caption,
            Markup(figure_files.inline_svg(figure_files.figure(name, scenario), name)),
        )
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
