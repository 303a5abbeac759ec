"""The report: complete, the same from the same facts, and safe to look at whatever the texts in it are."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.reported import PLAN, build, collect

from verifier import report

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report about an honest chip, one with an unexplained snapshot and hostile texts, and a dead one."""
    return build(collect(tmp_path_factory.mktemp("report"), text=HOSTILE))


def test_it_is_json_with_everything_that_was_asked_for(built: dict[str, Any]) -> None:
    assert json.loads(json.dumps(built)) == built
    assert built["schema"] == "weighbridge-report/2"
    assert built["verdict"] == "findings"
    assert built["counts"] == {
        "registered": 8,
        "sampled": 3,
        "verified": 1,
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


def test_p_counts_only_verified_chips_and_says_what_it_means(built: dict[str, Any]) -> None:
    p = built["probability"]
    # H/(aT) = 1.5 chips, so two are involved; one of eight was verified.
    held = 1 - math.exp(-2)
    assert p["inputs"] == {"s": 1, "C": 8, "H": 3e6, "a": 1e6, "T": 2.0, "T_m": 2.0, "f": 1.0, "involved_chips": 2}
    assert p["hypergeometric"] == pytest.approx(2 / 8 * held)
    assert p["eq1"] == pytest.approx(1.5 / 8 * held)
    assert "never the probability of compliance" in p["meaning"]
    assert [point["samples"] for point in p["curve"]] == list(range(9))
    assert p["curve"][1]["eq1"] == p["eq1"]
    assert any("outside the simulation" in line for line in built["assumptions"])
    assert any("no confidential mode" in line for line in built["saw"])


def test_p_is_not_defined_where_the_violation_does_not_fit() -> None:
    p = report.probability(PLAN, population=1, verified=1)
    assert (p["eq1"], p["hypergeometric"], p["inputs"]["involved_chips"]) == (None, None, None)
    assert any("no run of" in note for note in p["notes"])
    assert report.probability(PLAN, population=10**6, verified=3)["curve"][-1]["samples"] == 60


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_hostile_texts_stay_texts_and_nothing_is_loaded_from_outside(built: dict[str, Any]) -> None:
    page = report.render_html(built)
    tags = _Tags()
    tags.feed(page)
    names = {tag for tag, _ in tags.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "a", "form"}
    for tag, attributes in tags.tags:
        assert not any(name.startswith("on") or name in ("src", "href") for name in attributes), (tag, attributes)
        assert all(value.startswith("#") for name, value in attributes.items() if name == "xlink:href" and value)
    assert "{{" not in page.replace("{{ 7*7 }}", "")
    assert not re.findall(r"url\((?!#)", page)
    assert page.count("&lt;script&gt;") >= 4


def test_the_page_shows_what_matters_and_is_deterministic(built: dict[str, Any]) -> None:
    page = report.render_html(built)
    assert page == report.render_html(json.loads(json.dumps(built)))
    assert page.count("<svg") == 5
    for text in ("snapshot.unexplained", "never the probability of compliance", PLAN.seed.hex(), "@media print"):
        assert text in page
    clean = built | {"verdict": "clean", "findings": [], "chips": [], "transcripts": []}
    assert "Nothing was found" in report.render_html(clean)


def test_the_page_is_small_enough_to_send(built: dict[str, Any], tmp_path: Path) -> None:
    assert len(report.render_html(built)) < 200_000
