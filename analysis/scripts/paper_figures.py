"""Writes every figure as SVG and PDF into a directory, for the paper's setting or for a scenario.

python -m analysis.scripts.paper_figures figures [scenario.toml]
"""

from __future__ import annotations

import sys
from pathlib import Path

from analysis import figure_files, scenario


def main(arguments: list[str]) -> None:
    """Writes the figures; `arguments` are a directory and, if wanted, a scenario."""
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    setting = scenario.load(Path(arguments[1])) if len(arguments) > 1 else scenario.paper()
    for name in figure_files.DRAWINGS:
        drawn = figure_files.figure(name, setting)
        for suffix in (".svg", ".pdf"):
            figure_files.save(drawn, directory / f"{name}{suffix}")
            print(directory / f"{name}{suffix}")


if __name__ == "__main__":
    main(sys.argv[1:])
