"""`weighbridge analysis figure` and `report`: figures for papers, and one HTML page for each scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.analysis import options as shared
from weighbridge.core.errors import UsageError

Models = Annotated[
    Path | None, typer.Option("--model-file", help="Newer models in Epoch AI's columns; default: the packaged ones.")
]
Chips = Annotated[
    Path | None, typer.Option("--chip-file", help="Newer chips in Epoch AI's columns; default: the packaged ones.")
]


def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which figure; an unknown name lists them.")],
    out: Annotated[Path, typer.Option("--out", help="File to write, ending in .svg or .pdf.")],
    scenario: Annotated[
        Path | None, typer.Option("--scenario", help="A scenario in TOML; default: a Chinchilla on 100,000 chips.")
    ] = None,
    models: Models = None,
    chips: Chips = None,
    as_json: Json = False,
) -> None:
    """One figure as SVG or PDF, the same bytes each time: figure2 and table1 of the paper, or one of a scenario."""
    from analysis import figure_files
    from analysis import scenario as scenarios

    with shared.domain_errors():
        drawn = figure_files.figure(
            name, scenarios.paper() if scenario is None else scenarios.load(scenario, models=models, chips=chips)
        )
        figure_files.save(drawn, out)
    caption = figure_files.DRAWINGS[name].caption
    if as_json:
        print_json({"figure": name, "caption": caption, "file": str(out)})
    else:
        print(f"{out}: {caption}")


def report(
    files: Annotated[list[Path], typer.Argument(metavar="SCENARIO.toml...", help="Scenarios, one page each.")],
    out: Annotated[
        Path,
        typer.Option("--out", help="Directory for the pages, made if needed; with one scenario also a .html file."),
    ] = Path("runs/analysis"),
    models: Models = None,
    chips: Chips = None,
    as_json: Json = False,
) -> None:
    """One self-contained HTML page for each scenario: answers, what they assume, costs, figures."""
    from analysis import scenario as scenarios
    from analysis import scenario_page as reports

    pages = _pages(files, out)
    with shared.domain_errors():
        loaded = [scenarios.load(file, models=models, chips=chips) for file in files]
        made = []
        for file, each in zip(files, loaded, strict=True):
            try:
                made.append(reports.html(each))
            except ValueError as error:
                raise UsageError(f"{file}: {error}", code="usage.domain") from None
    for page, text in zip(pages, made, strict=True):  # only now: a bad scenario among good ones writes nothing
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {page}: {error.strerror or error}", code="usage.report") from None
    if as_json:
        answers = [
            {"scenario": str(file), "title": each.title, "page": str(page)}
            for file, each, page in zip(files, loaded, pages, strict=True)
        ]
        print_json({"pages": answers})
        return
    for page in pages:
        print(page)


def _pages(files: list[Path], out: Path) -> list[Path]:
    """Returns where each scenario's page goes."""
    if out.suffix == ".html" and not out.is_dir():
        if len(files) > 1:
            raise UsageError(
                f"--out {out} is one page for {len(files)} scenarios; name a directory", code="usage.report"
            )
        return [out]
    pages = [out / f"{file.stem}.html" for file in files]
    for page in pages:
        if pages.count(page) > 1:
            raise UsageError(f"two scenarios would both be {page}; rename one of them", code="usage.report")
    return pages
