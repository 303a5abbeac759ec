"""What a report says of the rounding logs that Provers were asked for follows from its own list of requests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from support.reported import build, collect
from support.workers_here import workers_here

from verifier.checks import regenerated_logs
from verifier.model.supplement_facts import LATE, MISSING, REFUSED, Asked, Steps, section
from verifier.report import consistency
from weighbridge.core.errors import ProverError, TranscriptError, WeighbridgeError

RUN = "ab" * 32


def asked(prover: str, steps: Steps, came: int, why: WeighbridgeError | None = None) -> Asked:
    return Asked(prover=prover, transcript=RUN, steps=steps, came=came, deadline_s=9.0, seconds=0.2, why=why)


REQUESTS = [
    asked("honest:1", (0, 4), 4),
    asked("honest:1", (4, 6), 2),
    asked("late:1", (0, 4), 0, ProverError("late", code=LATE)),
    asked("late:1", (4, 8), 0, ProverError("late", code=LATE)),
    asked("refuses:1", (0, 4), 0, ProverError("no", code=REFUSED)),
    asked("refuses:2", (0, 4), 0, ProverError("no", code=REFUSED)),
    asked("away:1", (0, 4), 0, ProverError("nobody is there")),
    asked("short:1", (0, 4), 3),
    asked("short:1", (4, 6), 1, TranscriptError("something else")),
    asked("", (0, 4), 0, ProverError("uploaded")),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report with requests of every kind; several of them alike but for the Prover or the steps."""
    with workers_here():
        collected = collect(tmp_path_factory.mktemp("report"), honest=True)
    collected.supplements += REQUESTS
    collected.report(regenerated_logs.check(collected))
    report = build(collected)
    report["evidence"]["supplements"] = section(REQUESTS, {})
    return report


def test_an_honest_report_follows(report: dict[str, Any]) -> None:
    assert consistency.check(report) == []
    about = [each for each in report["findings"] if each["id"] in (LATE, REFUSED, ProverError.code)]
    assert len(about) == 8, "one of each request that was not answered with every log"


def without(report: dict[str, Any], wanted: Callable[[dict[str, Any]], bool]) -> None:
    """A careful Verifier, who also mends the count of warnings."""
    report["findings"] = [each for each in report["findings"] if not wanted(each)]
    report["counts"]["warnings"] = sum(each["severity"] == "warning" for each in report["findings"])


def request_dropped(report: dict[str, Any]) -> None:
    del report["evidence"]["supplements"]["requests"][2]


def all_came(report: dict[str, Any]) -> None:
    report["evidence"]["supplements"]["requests"][2]["came"] = 4


def counted_as_made(report: dict[str, Any]) -> None:
    report["evidence"]["supplements"]["provers"][-1]["regenerated"] += 1


def prover_dropped(report: dict[str, Any]) -> None:
    del report["evidence"]["supplements"]["provers"][0]


def prover_counted_twice(report: dict[str, Any]) -> None:
    provers = report["evidence"]["supplements"]["provers"]
    provers.insert(0, {**provers[0], "asked": 0})


def another_reason(report: dict[str, Any]) -> None:
    report["evidence"]["supplements"]["requests"][2]["why"] = REFUSED


def finding_of_one_prover_dropped(report: dict[str, Any]) -> None:
    without(report, lambda each: each["evidence"].get("prover") == "refuses:2")


def finding_of_some_steps_dropped(report: dict[str, Any]) -> None:
    without(report, lambda each: each["id"] == LATE and each["evidence"]["begin"] == 4)


def finding_of_a_prover_dropped(report: dict[str, Any]) -> None:
    without(report, lambda each: each["id"] == MISSING and each["subject"] == "Prover short:1")


@pytest.mark.parametrize(
    "attack",
    [
        request_dropped, all_came, counted_as_made, prover_dropped, prover_counted_twice, another_reason,
        finding_of_one_prover_dropped, finding_of_some_steps_dropped, finding_of_a_prover_dropped,
    ],
    ids=lambda attack: str(attack.__name__),
)  # fmt: skip
def test_a_verifier_who_favours_a_prover_is_found(
    attack: Callable[[dict[str, Any]], None], report: dict[str, Any]
) -> None:
    altered = copy.deepcopy(report)
    attack(altered)
    found = consistency.check(altered)
    assert {each.id for each in found} == {"report.inconsistent"}
    assert all("supplements" in each.subject or "rounding logs" in each.subject for each in found)


def test_a_report_from_before_there_were_such_requests_follows(report: dict[str, Any]) -> None:
    older = copy.deepcopy(report)
    del older["evidence"]["supplements"]
    assert consistency.check(older) == []
