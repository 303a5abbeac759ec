"""The page in a real browser: no sideways scrolling at any width, names for chips, and all of it on paper."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader
from support.browser import WIDTHS, print_to_pdf, scrollers, sideways
from support.browser import browser as browser
from support.browser import page_at as page_at
from support.large_report import many_chips
from support.reported import build, collect

from verifier.report.page import render_html
from verifier.report.signing import open_report

ALL_TEXTS = """() => {
    const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), nodes = [];
    while (walk.nextNode()) nodes.push(walk.currentNode);
    return nodes.filter(node => !node.parentElement.closest("style, metadata")).map(node => node.data);
}"""
GOLDEN = Path(__file__).parents[2] / "golden" / "report.dsse"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A clean report, one in which nothing was checked, one of many chips and findings, and one of an old version."""
    root = tmp_path_factory.mktemp("pages")
    empty = collect(root / "empty", honest=True)
    empty.segments, empty.snapshots = [], []
    found = build(collect(root / "found", text="x" * 90))
    return {
        "clean": build(collect(root / "clean", honest=True)),
        "unchecked": build(empty),
        "many": many_chips(found, chips=40, findings=12),
        "earlier": open_report(GOLDEN.read_bytes()).report,
    }


@pytest.fixture(scope="module")
def pages(reports: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports as pages in files."""
    root = tmp_path_factory.mktemp("rendered")
    for name, report in reports.items():
        (root / f"{name}.html").write_text(render_html(report), encoding="utf-8")
    return {name: root / f"{name}.html" for name in reports}


@pytest.mark.parametrize("name", ["clean", "unchecked", "many", "earlier"])
def test_no_page_scrolls_sideways(name: str, pages: dict[str, Path], page_at: Callable[..., Any]) -> None:
    for width in WIDTHS:
        page = page_at(pages[name], width)
        assert sideways(page) == [], f"at {width} pixels"
        assert scrollers(page) == [], f"at {width} pixels"


def test_the_check_for_sideways_scrolling_sees_it(tmp_path: Path, page_at: Callable[..., Any]) -> None:
    wide = tmp_path / "wide.html"
    wide.write_text("<p style='width:500px'>wide</p><div style='overflow-x:auto'><p style='width:400px'>w</p></div>")
    page = page_at(wide, 390)
    assert sideways(page)
    assert scrollers(page)


def test_texts_have_contrast_in_light_and_dark(pages: dict[str, Path], page_at: Callable[..., Any]) -> None:
    """Every colour of text has a contrast of at least 4.5 with the page and with cards (WCAG 2.2, AA)."""
    for dark in (False, True):
        page = page_at(pages["many"], dark=dark)
        names = ("ground", "card", "ink", "soft", "accent", "good", "bad", "warn", "calm")
        read = "n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()"
        colours = {name: page.evaluate(read, name) for name in names}
        for ground in ("ground", "card"):
            for text in names[2:]:
                assert contrast(colours[text], colours[ground]) >= 4.5, (dark, text, ground)


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours `#rrggbb` as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_paper_loses_nothing(
    pages: dict[str, Path], reports: dict[str, dict[str, Any]], tmp_path: Path, page_at: Callable[..., Any]
) -> None:
    """Every word of the page is in the PDF, also what is folded away on the screen."""
    page = page_at(pages["many"])
    words = [word for text in page.evaluate(ALL_TEXTS) for word in text.split()]
    folded = page.evaluate("[...document.querySelectorAll('details:not([open])')].length")
    assert folded > 10
    print_to_pdf(pages["many"], tmp_path / "page.pdf")
    text = "".join(each.extract_text() for each in PdfReader(tmp_path / "page.pdf").pages)
    printed = re.sub(r"\s", "", unicodedata.normalize("NFKC", text))  # ligatures are characters of their own there
    assert {word for word in words if unicodedata.normalize("NFKC", word) not in printed} == set()
    for chip in reports["many"]["chips"]:
        assert chip["ueid"] in printed
    for finding in reports["many"]["findings"]:
        assert finding["evidence"]["digests"][0] in printed


def test_chips_are_called_by_name_and_the_full_identifier_is_at_hand(
    pages: dict[str, Path], reports: dict[str, dict[str, Any]], page_at: Callable[..., Any]
) -> None:
    page = page_at(pages["many"])
    named, unnamed = reports["many"]["chips"][1], reports["many"]["chips"][0]
    about = page.locator(".finding abbr", has_text="rack-01").first
    assert about.get_attribute("title") == named["ueid"]
    assert page.locator("#findings ~ .finding").first.inner_text().count(named["ueid"]) == 0
    assert page.locator(f".finding abbr[title='{unnamed['ueid']}']").first.inner_text() == unnamed["ueid"][:8]


def test_equal_findings_are_stated_once(
    pages: dict[str, Path], reports: dict[str, dict[str, Any]], page_at: Callable[..., Any]
) -> None:
    page = page_at(pages["many"])
    messages = {(each["id"], each["message"]) for each in reports["many"]["findings"]}
    assert page.locator(".finding").count() == len(messages) < len(reports["many"]["findings"])
    assert page.locator(".finding .times").first.inner_text() == "12 times"
    assert page.locator(".finding").first.locator("dl.case").count() == 12


def test_one_p_is_quoted_and_observed_time_stands_beside_it(
    pages: dict[str, Path], reports: dict[str, dict[str, Any]], page_at: Callable[..., Any]
) -> None:
    page = page_at(pages["clean"])
    key = page.locator(".key").inner_text()
    assert len(re.findall(r"^[\d.]+ %$", key, re.MULTILINE)) == 1
    assert "2 of 2 chip-days" in key
    assert "Equation 1" in page.locator("#probability ~ p").first.inner_text()
    assert reports["clean"]["miss"]["p_is"] == "hypergeometric"


def test_a_page_of_a_small_fleet_has_no_plot(reports: dict[str, dict[str, Any]]) -> None:
    assert "<svg" in render_html(reports["clean"])
    small = json.loads(json.dumps(reports["clean"]))
    small["probability"]["curve"] = small["probability"]["curve"][:3]
    assert "<svg" not in render_html(small)


def test_a_chip_on_which_nothing_was_due_is_not_called_verified(tmp_path: Path) -> None:
    """Beside a chip whose snapshot was replayed; the report as a whole is clean of what was checked."""
    report = build(collect(tmp_path, honest=True))
    idle = {**report["chips"][0], "ueid": "02" + "ab" * 16, "snapshots": []}
    report["chips"].append(idle)
    page = render_html(report)
    assert "nothing was due</span>" in page
    assert page.count('class="tag verified"') == 1
    assert "On 1 of 1 drawn chips nothing was due: of it only the log was checked" in page
