"""All registered checks run; one that fails stops no other and is not evidence against the Prover."""

from __future__ import annotations

from pathlib import Path

from verifier import checks
from verifier.model.check_runner import Check, Given, judge
from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from weighbridge.core.errors import Finding

GIVEN = Given(
    plan=Plan(
        samples=1, seed=b"s" * 16, flops_threshold=1, chip_flops_per_day=1, period_days=1, snapshot_rate_per_day=1
    ),
    firmware=FirmwarePolicy(),
    witness=None,
)


def finding(name: str) -> list[Finding]:
    return [Finding(id=name, message="")]


def broken(facts: str, given: Given) -> list[Finding]:
    raise ZeroDivisionError(facts)


def test_a_check_that_fails_is_a_warning_and_the_others_run() -> None:
    run: list[Check[str]] = [
        Check("first", lambda facts, given: finding("a")),
        Check("broken", broken),
        Check("last", lambda facts, given: finding("b")),
    ]
    found = judge(run, "facts", GIVEN, subject="chip 7")
    assert [each.id for each in found.findings] == ["a", "verifier.check.failed", "b"]
    failed = found.findings[1]
    assert (failed.severity, failed.subject, failed.found) == ("warning", "chip 7", "ZeroDivisionError")
    assert found.failed == ["broken"]
    assert [each.id for each in found.counted] == ["a", "b"]
    assert found.not_sampled


def test_the_weight_of_a_check_says_what_follows() -> None:
    beside = judge([Check("x", lambda *_: finding("a"), "reported_only")], "facts", GIVEN, subject="")
    assert (beside.counted, beside.not_sampled, beside.violated) == ([], False, False)
    not_sampled = judge([Check("x", lambda *_: finding("a"), "not_sampled")], "facts", GIVEN, subject="")
    assert (not_sampled.counted, not_sampled.not_sampled) == ([], True)
    assert judge([Check("x", lambda *_: finding("a"))], "facts", GIVEN, subject="").violated
    assert not judge([Check("x", lambda *_: [])], "facts", GIVEN, subject="").violated


def test_checks_are_registered_once_under_the_names_of_their_files() -> None:
    lists = (
        checks.CUSTODY,
        checks.LOG,
        checks.LOGS,
        checks.TRANSCRIPT,
        checks.SNAPSHOT,
        checks.CHIP,
        checks.INSPECTION,
    )
    names = [check.name for each in lists for check in each]
    files = {path.stem for path in Path(checks.__file__).parent.glob("*.py")}
    assert len(names) == len(set(names))
    assert set(names) <= files
