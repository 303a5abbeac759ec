"""The report: complete, the same from the same facts, and safe to look at whatever the texts in it are."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.reported import PLAN, build, collect

from verifier.report import consistency, document, extent, page

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report about an honest chip, one with an unexplained snapshot and hostile texts, and a dead one."""
    return build(collect(tmp_path_factory.mktemp("report"), text=HOSTILE))


def test_it_is_json_with_everything_that_was_asked_for(built: dict[str, Any]) -> None:
    assert json.loads(json.dumps(built)) == built
    assert built["schema"] == document.SCHEMA == "weighbridge-report/5"
    assert built["verdict"] == "findings"
    assert built["counts"] == {
        "registered": 8,
        "sampled": 3,
        "verified": 1,
        "silent_before_cutoff": 0,
        "found_against": 1,
        "unverified_after_draw": 1,
        "snapshots": 2,
        "explained": 1,
        "explained_given_collectives": 0,
        "violations": 1,
        "warnings": 0,
        "notes": 0,
    }
    assert built["plan"]["seed"] == bytes(range(32)).hex()
    assert [chip["verified"] for chip in built["chips"]] == [True, False, False]
    assert [chip["reachable"] for chip in built["chips"]] == [True, True, False]
    assert built["chips"][0]["snapshots"][0]["memory"] == {
        "explained": 108,
        "declared": 0,
        "temporary": 0,
        "unexplained": 0,
        "missing": 0,
        "unexplained_storages": 0,
        "missing_storages": 0,
    }
    assert built["chips"][0]["snapshots"][0]["replay"]["followed"] == 3
    assert built["transcripts"][0]["tapes"]["ab" * 32]["free_values"] == 1
    assert any("dddd" in line or "64" * 8 in line for line in built["not_verifiable"])


def test_p_takes_the_silent_chip_for_the_one_that_would_have_shown_the_run(built: dict[str, Any]) -> None:
    p = built["probability"]
    # H/(aT) = 1.5 chips, so two are involved. Of the three drawn of eight one was silent: both must be drawn.
    held = 1 - math.exp(-2)
    rates = {"H": 3e6, "a": 1e6, "T": 2.0, "T_m": 2.0, "f": 1.0}
    assert p["inputs"] == {"s": 3, "w": 1, "C": 8, "involved_chips": 2} | rates
    assert p["hypergeometric"] == pytest.approx(3 / 28 * held**2)  # C(6, 1) / C(8, 3)
    hit = 1.5 / 8 * held
    assert p["eq1"] == pytest.approx(3 * hit**2 * (1 - hit) + hit**3)
    assert any("1 of 3 drawn chips did not verify" in note for note in p["notes"])
    assert "never the probability of compliance" in p["meaning"]
    assert [point["samples"] for point in p["curve"]] == list(range(9))
    assert p["curve"][3]["eq1"] == p["eq1"]
    assert any("outside the simulation" in line for line in built["assumptions"])
    assert any("no confidential mode" in line for line in built["saw"])


def test_p_is_not_defined_where_the_violation_does_not_fit() -> None:
    p = document.probability(PLAN, population=1, drawn=1, unverified=0)
    assert (p["eq1"], p["hypergeometric"], p["inputs"]["involved_chips"]) == (None, None, None)
    assert any("no run of" in note for note in p["notes"])
    assert document.probability(PLAN, population=10**6, drawn=3, unverified=0)["curve"][-1]["samples"] == 60


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_hostile_texts_stay_texts_and_nothing_is_loaded_from_outside(built: dict[str, Any]) -> None:
    rendered = page.render_html(built)
    tags = _Tags()
    tags.feed(rendered)
    names = {tag for tag, _ in tags.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "form"}
    for tag, attributes in tags.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes), (tag, attributes)
        assert all(value.startswith("#") for name, value in attributes.items() if name.endswith("href") and value)
    assert "{{" not in rendered.replace("{{ 7*7 }}", "")
    assert not re.findall(r"url\((?!#)", rendered)
    assert rendered.count("&lt;script&gt;") >= 4


def test_the_page_shows_what_matters_and_is_deterministic(built: dict[str, Any]) -> None:
    rendered = page.render_html(built)
    assert rendered == page.render_html(json.loads(json.dumps(built)))
    assert rendered.count("<svg") == 1
    for text in ("snapshot.unexplained", "never the probability of compliance", PLAN.seed.hex(), "@media print"):
        assert text in rendered
    clean = built | {"verdict": "clean", "findings": [], "transcripts": []}
    assert "Nothing was found" in page.render_html(clean)


def test_a_report_in_which_nothing_was_replayed_is_not_clean(tmp_path: Path) -> None:
    """Of a chip that ran nothing, and of one whose snapshots could not be replayed."""
    collected = collect(tmp_path, honest=True)
    collected.segments = []
    for due in (1, 0):
        collected.snapshots = collected.snapshots[:due]
        for snapshot in collected.snapshots:
            snapshot.replayed, snapshot.status = None, "unverified"
        report = build(collected)
        assert consistency.check(report) == []
        assert (report["verdict"], report["counts"]["verified"]) == ("unchecked", 1 - due)
        said = "1 snapshot was due and none could be replayed: nothing was checked"
        assert extent.nothing_checked(report) == (said if due else "nothing was due, nothing was checked")
        rendered = page.render_html(report)
        assert (said if due else "Nothing was due, nothing was checked") in rendered
        assert "Nothing was found" not in rendered
        assert "chip verified" not in rendered
        assert report["observed"]["explained_ms"] == 0
        assert consistency.check(report | {"verdict": "clean"})[0].subject == "verdict"


def test_a_report_with_a_chip_that_is_not_verified_is_not_clean(tmp_path: Path) -> None:
    """One of its snapshots was excused, as one taken while weights were loaded is, and the other was explained."""
    collected = collect(tmp_path, honest=True)
    assert build(collected)["verdict"] == "clean"
    collected.snapshots.append(replace(collected.snapshots[0], replayed=None, status="unverified"))
    report = build(collected)
    assert (report["verdict"], report["counts"]["verified"], report["counts"]["explained"]) == ("incomplete", 0, 1)
    rendered = page.render_html(report)
    assert "not everything was checked" in rendered
    assert "1 of 1 drawn chips do not count as verified" in rendered
    assert "verdict" in {each.subject for each in consistency.check(report | {"verdict": "clean"})}


def test_observed_chip_time_is_that_of_verified_chips(built: dict[str, Any]) -> None:
    observed, ledger = built["observed"], built["ledger"]
    first = ledger["chips"][0]["ms"]
    assert (observed["explained_ms"], observed["idle_ms"]) == (first["explained"], first["idle"])
    assert ledger["ms"]["idle"] > first["idle"], "the other chips' idle time does not count"
    assert observed["observed_ms"] == observed["explained_ms"] + observed["idle_ms"]
    assert (observed["drawn_ms"], observed["fleet_ms"]) == (3 * 2 * 86_400_000, 8 * 2 * 86_400_000)


def test_the_page_is_small_enough_to_send(built: dict[str, Any], tmp_path: Path) -> None:
    assert len(page.render_html(built)) < 200_000
