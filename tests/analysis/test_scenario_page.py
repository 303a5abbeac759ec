"""The page of a scenario: self-contained, the same each time, with the numbers of the answers, and nothing executed."""

from __future__ import annotations

import html.parser
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import number_texts as texts
from analysis import scenario_answers, scenario_page
from analysis.scenario import load, paper

EXAMPLES = Path(__file__).parents[2] / "analysis" / "scenarios"


class Page(html.parser.HTMLParser):
    """What a browser would see: text, tags, and every address that it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "img", "link", "input"):
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href", "data") and value and not value.startswith("#"):
                self.fetched.append(value)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data + " "


@pytest.fixture(scope="module")
def treaty() -> str:
    return scenario_page.html(load(EXAMPLES / "treaty.toml"))


def test_a_page_is_self_contained_and_well_formed(treaty: str) -> None:
    page = Page(treaty)
    assert page.open == []
    assert page.fetched == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == len(scenario_page.FIGURES) + 1  # and the plan's
    assert "Content-Security-Policy" in treaty


def test_it_has_the_numbers_of_the_answers(treaty: str) -> None:
    scenario = load(EXAMPLES / "treaty.toml")
    found, text = scenario_answers.answer(scenario), " ".join(Page(treaty).text.split())
    assert f"see a violation of 5e+25 FLOPs with a probability of {texts.percent(found.probability)}" in text
    assert f"{found.needed:,} would reach 95.00%" in text
    assert "It is not the probability of compliance" in text
    assert "whole runs of 1e+26 FLOPs and more (the 2H rule)" in text
    assert "2,000 further unmonitored chips" in text
    for way in found.ways:
        assert f"{way.name} {texts.number(way.chips)} {texts.number(way.days)} {texts.percent(way.probability)}" in text
        if way.simulated is not None:
            assert f"{texts.percent(way.simulated.low)} to {texts.percent(way.simulated.high)}" in text
    assert f"{found.worst.strategy}, in {texts.number(found.worst.days)} days" in text
    for proving in found.proofs:
        assert proving.system.source in text


def test_texts_are_shown_and_not_executed_and_the_page_is_the_same_each_time() -> None:
    hostile = "</title><script>alert(1)</script>$\\frac{1}{0}$ {{ 7 * 7 }}"
    text = scenario_page.html(replace(paper(), title=hostile, note=hostile))
    assert scenario_page.html(replace(paper(), title=hostile, note=hostile)) == text
    page = Page(text)
    assert "script" not in page.tags
    assert page.text.count(hostile) >= 2
    assert "49" not in page.text.split("{{ 7 * 7 }}")[1][:5]


@given(fraction=st.floats(0, 1))
def test_a_percentage_is_certain_only_if_it_is(fraction: float) -> None:
    text = texts.percent(fraction)
    if 0 < fraction < 1:
        assert text not in ("0%", "100%")
        if "almost" not in text:
            assert 0 < float(text[:-1]) < 100
            assert float(text[:-1]) / 100 == pytest.approx(fraction, abs=1e-4)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "none"), (3.0, "3"), (12345.0, "12,345"), (1e6, "1e+06"), (0.123456, "0.1235"), (0, "0")]
)
def test_numbers_as_text(value: float | None, text: str) -> None:
    assert texts.number(value) == text


def test_sizes_and_durations_as_text() -> None:
    assert [texts.size(value) for value in (12, 2.4e16, 5e30)] == ["12 B", "24 PB", "5e+09 ZB"]
    assert [texts.seconds(value) for value in (1, 90, 7200, 3 * 86400, 1e9)] == ["1 s", "1.5 min", "2 h", "3 days", "31.7 years"]  # fmt: skip  # noqa: E501
