"""Each finding of a rule set, alone in the report of an inspection; and a check that breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import clean_runs
from support.exactly import exactly, found
from support.ruled import ruled
from support.written_chips import Bench, WrittenChip

from verifier.checks import chip_rate


@pytest.fixture(scope="module")
def chip(bench: Bench, honest: Path) -> WrittenChip:
    return bench.at_end(honest)


def test_a_rule_that_holds_has_no_findings(bench: Bench, chip: WrittenChip, tmp_path: Path) -> None:
    report = bench.inspected(
        bench.runs, chip, regime=ruled(tmp_path, "runs.all(r, r.complete && r.flops < threshold)", threshold=1e6)
    )
    assert found(report) == set(), report["findings"]
    assert [each["outcome"] for each in report["rules"]["rules"]] == ["holds"]


@pytest.mark.parametrize(
    ("holds", "more", "expected"),
    [
        pytest.param("runs.all(r, r.flops < 1.0)", {}, "rule.violated", marks=pytest.mark.finding("rule.violated")),
        pytest.param(
            "runs.all(r, r.parameters < 1000)", {}, "rule.undecided", marks=pytest.mark.finding("rule.undecided")
        ),  # which state of this run holds weights is undeclared
        pytest.param(
            "runs.all(r, r.complete)", {"threshold": 3.0}, "rule.unbacked", marks=pytest.mark.finding("rule.unbacked")
        ),  # the plan is for an H of 2
    ],
)
def test_rules_over_an_honest_run(
    bench: Bench, chip: WrittenChip, tmp_path: Path, holds: str, more: dict[str, Any], expected: str
) -> None:
    exactly(bench.inspected(bench.runs, chip, regime=ruled(tmp_path, holds, **more)), expected)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({}, "rule.declaration.missing", marks=pytest.mark.finding("rule.declaration.missing")),
        pytest.param(
            {"kind": "\u0433l"}, "rule.declaration.unknown", marks=pytest.mark.finding("rule.declaration.unknown")
        ),  # CYRILLIC SMALL LETTER GHE, which many fonts draw as an r
        pytest.param({"kind": "rl"}, "", id="honest"),
    ],
)
def test_rules_by_omission(bench: Bench, tmp_path: Path, metadata: dict[str, str], expected: str) -> None:
    """The attack: a run of a kind that the rules limit says nothing of its kind, or says it in another letter."""
    run = clean_runs.record(tmp_path / "runs" / "run", metadata=metadata)
    rules = ruled(
        tmp_path, "runs.all(r, r.flops < 1e9 || r.declared.kind != 'rl')", declarations={"kind": ["pretraining", "rl"]}
    )
    report = bench.inspected(tmp_path / "runs", bench.at_end(run), regime=rules)
    if not expected:
        assert found(report) == set(), report["findings"]
        assert report["verdict"] == "clean"
        return
    exactly(report, expected)
    assert [each["severity"] for each in report["findings"]] == ["violation"]
    assert report["verdict"] == "findings"


@pytest.mark.finding("score.unavailable")
def test_a_benchmark_that_does_not_fit_the_program(bench: Bench, chip: WrittenChip, tmp_path: Path) -> None:
    benchmark = {"0/x": torch.zeros(2, 9), "0/expected": torch.zeros(2, dtype=torch.int64)}
    regime = ruled(tmp_path, "runs.all(r, r.complete)", benchmark=benchmark)
    exactly(bench.inspected(bench.runs, chip, regime=regime), "score.unavailable")


@pytest.mark.finding("verifier.check.failed")
def test_a_check_that_breaks(bench: Bench, chip: WrittenChip, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is the Verifier's own, so it has to be put there."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(chip_rate, "check", broken)
    report = bench.inspected(bench.runs, chip)
    exactly(report, "verifier.check.failed")
    assert report["counts"]["verified"] == 0
