"""A Prover who knows the draw unplugs the chip that would have shown its run, with real chips, jobs and logs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom, hypergeom
from support.station import Station, ids

from verifier.report.consistency import check
from verifier.report.page import render_html
from weighbridge.cli.report import as_text

CHIPS = ("honest", "hidden", "idle", "spare")
SHOWN = 1 - 2.718281828459045**-2
"""The plan of a station: one snapshot a day for two days. H takes one chip that long."""


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest run, an undeclared one, and two idle chips."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        jobs = []
        for name in CHIPS:
            station.chip(name)
            if name in ("honest", "hidden"):
                jobs.append(station.train(name, name))
        assert [job.wait(timeout=300) for job in jobs] == [0, 0]
        address = station.prover()
        for name in CHIPS:
            station.register(name, address)
        yield station


@pytest.fixture(scope="module")
def report(station: Station) -> dict[str, Any]:
    """Three of four chips are drawn, and then the one with the undeclared run is unplugged."""
    seen = station.inspect("honest", "hidden", "idle", flops_threshold=3.0)
    assert (seen["verdict"], seen["counts"]["found_against"], seen["probability"]["inputs"]["w"]) == ("findings", 1, 0)
    assert "snapshot.unexplained" in ids(seen, "violation")
    station.chips["hidden"].kill()
    return station.inspect("honest", "hidden", "idle", flops_threshold=3.0)


def more_than(withheld: int) -> float:
    """Pr(S > w) of three chips drawn of four, two of which are involved and hold a snapshot with probability SHOWN."""
    return float(sum(hypergeom.pmf(j, 4, 2, 3) * binom.sf(withheld, j, SHOWN) for j in range(4)))


def test_p_is_that_of_more_involved_chips_than_were_unplugged(report: dict[str, Any]) -> None:
    assert ids(report, "violation") == ["chip.unreachable"], "nothing is said about the run"
    counts, inputs = report["counts"], report["probability"]["inputs"]
    assert (counts["sampled"], counts["verified"], counts["unverified_after_draw"]) == (3, 2, 1)
    assert (inputs["s"], inputs["w"], inputs["C"], inputs["involved_chips"]) == (3, 1, 4, 2)
    assert report["probability"]["hypergeometric"] == report["miss"]["p"] == pytest.approx(more_than(1), rel=1e-9)
    not_sampled = 1 - float(sum(hypergeom.pmf(j, 4, 2, 2) * (1 - SHOWN) ** j for j in range(3)))
    assert report["miss"]["p"] < not_sampled / 1.5, (
        "which the report would have said had it taken the chip for not drawn"
    )
    assert check(report) == []


def test_the_texts_tell_the_two_silences_apart_and_say_what_was_observed(report: dict[str, Any]) -> None:
    text = as_text(report)
    assert "1 unverified after the draw was known, 0 silent before the cut-off" in text
    observed = report["observed"]
    assert 0 < observed["observed_ms"] < observed["drawn_ms"] == 3 * 2 * 86_400_000
    assert f"observed: {observed['observed_ms'] / 86_400_000:.3g} of 6 chip-days" in text
    page = render_html(report)
    assert "unverified after the draw was known (w)" in page
    assert "of 6 chip-days" in page


def test_a_verifier_that_understates_the_silence_is_found_out(report: dict[str, Any], station: Station) -> None:
    """It calls the unplugged chip verified, and mends counts, inputs and p; the chip was still not reached."""
    lied = copy.deepcopy(report)
    (chip,) = (each for each in lied["chips"] if each["site"] == "hidden")
    assert not chip["reachable"]
    lied["counts"]["unverified_after_draw"] = lied["probability"]["inputs"]["w"] = 0
    subjects = {each.subject for each in check(lied)}
    assert {"counts.unverified_after_draw", "probability.inputs.w", "probability.hypergeometric"} & subjects
    chip["verified"] = True
    assert f"chip {chip['ueid']}: verified" in {each.subject for each in check(lied)}
    honest = station.inspect("honest", "idle", flops_threshold=3.0)
    again = {**lied, "probability": honest["probability"], "miss": honest["miss"]}
    assert {each.id for each in check(again)} == {"report.inconsistent"}


def test_an_honest_inspection_has_the_p_that_it_always_had(station: Station) -> None:
    report = station.inspect("honest", "idle", "spare", flops_threshold=3.0)
    assert (report["verdict"], report["counts"]["unverified_after_draw"]) == ("clean", 0)
    assert report["miss"]["p"] == pytest.approx(more_than(0), rel=1e-9)
    assert check(report) == []


def test_an_inspection_of_chips_on_which_nothing_was_due(station: Station, tmp_path: Path) -> None:
    report = station.inspect("idle", "spare", flops_threshold=3.0)
    assert ids(report) == []
    assert (report["verdict"], report["counts"]["snapshots"], report["replayed"]) == ("unchecked", 0, [])
    text, page = as_text(report), render_html(report)
    assert "nothing was due, nothing was checked" in text
    assert "Nothing was due, nothing was checked" in page
    for said in (text, page):
        assert "clean" not in said
        assert "2 verified" not in said
        assert "counts as verified" not in said
        assert "chips verified, all snapshots explained" not in said
    assert report["observed"]["explained_ms"] == 0
    assert check(report) == []
    assert check({**report, "verdict": "clean"})[0].subject == "verdict"
