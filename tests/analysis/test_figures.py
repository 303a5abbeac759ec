"""Figures: the same bytes each time, colours that colour-blind readers tell apart, curves that are the formulas'."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis import evasion, figure_files, figures
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.figure_files import DRAWINGS, FigureError, figure, inline_svg, save
from analysis.scenario import paper

NAMES = sorted(DRAWINGS)
# What lacks of the cones for long, middle and short waves do to linear RGB: Machado, Oliveira and Fernandes 2009,
# "A Physiologically-based Model for Simulation of Color Vision Deficiency", severity 1.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]
    ]),
}  # fmt: skip


def lab(colour: str, deficiency: np.ndarray) -> np.ndarray:
    """Returns a colour as seen, in CIE L*a*b* (D65)."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(deficiency @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = np.array(to_xyz) @ seen / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("deficiency", sorted(DEFICIENCIES))
def test_colours_are_told_apart(deficiency: str) -> None:
    seen = [lab(colour, DEFICIENCIES[deficiency]) for colour in figures.COLOURS]
    distances = [float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 8  # 2.3 is a just noticeable difference


def test_red_and_green_of_one_lightness_would_be_caught() -> None:
    """The check itself: the default red and green of Matplotlib are much nearer to each other than any pair of ours."""
    seen = [lab(colour, DEFICIENCIES["deuteranopia"]) for colour in ("#a05000", "#6b6b00")]
    assert float(np.linalg.norm(seen[0] - seen[1])) < 8


def test_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from analysis import figure_files, scenario\n"
        "for name in ('samples', 'figure2'):\n"
        "    for suffix in ('.svg', '.pdf'):\n"
        "        figure_files.save(figure_files.figure(name, scenario.paper()), Path(sys.argv[1]) / (name + suffix))\n"
    )
    made = []
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "TZ": ("UTC", "Asia/Tokyo")[number]}
        subprocess.run([sys.executable, "-c", program, str(directory)], check=True, env=environment, timeout=120)
        made.append({path.name: path.read_bytes() for path in sorted(directory.iterdir())})
    assert made[0] == made[1]
    assert len(made[0]) == 4
    for content in made[0].values():
        assert b"CreationDate" not in content
        assert b"<dc:date>" not in content


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_draws_and_its_svg_is_well_formed(name: str) -> None:
    drawn = figure(name, paper())
    assert len(drawn.axes[0].get_xlabel()) > 5
    assert len(drawn.axes[0].get_ylabel()) > 5
    text = inline_svg(drawn, "x")
    assert text.startswith("<svg")
    tree = ElementTree.fromstring(text)
    identifiers = [each.attrib["id"] for each in tree.iter() if "id" in each.attrib]
    assert all(each == "x" or each.startswith("x-") for each in identifiers)
    pointed = re.findall(r'(?:url\(#|href="#)([^)"]+)', text)
    assert set(pointed) <= set(identifiers)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)


def test_identifiers_of_two_figures_differ() -> None:
    first, second = (inline_svg(figure(name, paper()), name) for name in ("samples", "stretch"))
    taken = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert taken[0]
    assert not taken[0] & taken[1]


def test_curves_are_those_of_the_formulas() -> None:
    scenario = paper()
    line = figure("samples", scenario).axes[0].get_lines()[0]
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    expected = evasion.seen(scenario, samples=x, involved=223.0, days=30.0)
    assert np.array_equal(y, expected)
    surface = figure("figure2", scenario)
    assert surface.axes[0].get_xlim() == (1, 100)
    assert surface.axes[0].get_ylim()[1] == pytest.approx(0.2)


def test_printed_marks_lie_on_the_lines_of_table_1() -> None:
    axes = figure("table1", paper()).axes[0]
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 200]  # type: ignore[arg-type]
    marks = [line for line in axes.get_lines() if len(line.get_xdata()) != 200]  # type: ignore[arg-type]
    assert len(lines) == len(marks) == 6
    assert sum(len(mark.get_xdata()) for mark in marks) == 15  # type: ignore[arg-type]
    for line, mark in zip(lines, marks, strict=True):
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        shown = ~np.isnan(y)
        on_line = np.exp(np.interp(np.log(np.asarray(mark.get_xdata(), float)), np.log(x[shown]), np.log(y[shown])))
        assert np.allclose(on_line, np.asarray(mark.get_ydata(), float), rtol=0.15)  # 7 for 7.9 is rounded down


def test_what_cannot_be_drawn_or_written(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match="there are figure2, table1"):
        figure("mona-lisa", paper())
    with pytest.raises(InfeasibleError, match="no run of"):
        figure("samples", replace(paper(), flops=1e30))
    drawn = figure("stretch", paper())
    with pytest.raises(FigureError, match="must end in"):
        save(drawn, tmp_path / "a.gif")
    with pytest.raises(FigureError, match="cannot write"):
        save(drawn, tmp_path / "none" / "a.svg")
    assert issubclass(FigureError, DetectionDomainError)


def test_figures_leave_matplotlibs_settings_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    inline_svg(figure_files.figure("proofs", paper()), "p")
    assert dict(matplotlib.rcParams) == before
