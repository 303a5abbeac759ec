"""`weighbridge analysis examples`: copies of the scenarios and the notebook that come with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError

FOLDERS = ("scenarios", "notebooks")
"""Folders of the package `analysis` whose files are examples."""


def command(
    out: Annotated[Path, typer.Option("--out", help="Directory for the files, made if needed.")] = Path(
        "runs/examples"
    ),
    as_json: Json = False,
) -> None:
    """Copy the packaged scenarios and notebooks, into `scenarios/` and `notebooks/`. Replaces no file."""
    written = []
    for folder in FOLDERS:
        for source in sorted(resources.files("analysis").joinpath(folder).iterdir(), key=lambda each: each.name):
            target = out / folder / source.name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    file.write(source.read_bytes())
            except FileExistsError:
                raise UsageError(f"{target} exists; choose another directory with --out", code="usage.report") from None
            except OSError as error:
                raise UsageError(f"cannot write {target}: {error.strerror or error}", code="usage.report") from None
            written.append(str(target))
    if as_json:
        print_json({"files": written})
    else:
        print(*written, sep="\n")
