"""The inspectorate's policy: severities change, and what is not evidence never becomes a violation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.report.inspectorate_policy import Policy, load
from weighbridge.core.errors import Finding, Severity, UsageError

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "violation")


@given(was=st.sampled_from(SEVERITIES), wanted=st.sampled_from(SEVERITIES), chance=st.booleans())
def test_evidence_and_notes_are_never_raised_to_a_violation(was: Severity, wanted: Severity, chance: bool) -> None:
    """Law: a violation comes only from a violation, or from a warning that rests on no p-value."""
    finding = Finding(id="a.b", message="m", severity=was, evidence={"p_value": 0.001} if chance else {})
    (now,), changes = Policy(severities={"a.b": wanted}).apply([finding])
    if now.severity == "violation":
        assert was == "violation" or (was == "warning" and not chance)
    else:
        assert now.severity == ("warning" if wanted == "violation" else wanted)
    assert bool(changes) == (now.severity != was)


def test_other_findings_stay_as_they_are() -> None:
    found = [Finding(id="a.b", message="m"), Finding(id="a.c", message="m", severity="info")]
    assert Policy(severities={"a.d": "info"}).apply(found) == (found, [])


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[severities]\n"snapshot.work.unexplained" = "violation"\n[ledger]\nexempt = ["legacy"]\nconfidence = 0.9\n'
    )
    policy = load(path)
    assert policy.severities == {"snapshot.work.unexplained": "violation"}
    assert policy.ledger.exempt == frozenset(["legacy"])
    assert policy.ledger.confidence == 0.9
    assert len(policy.to_json()["digest"]) == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no table of a policy"),
        ("[other]", "no table of a policy"),
        ('[severities]\n"a.b" = "fatal"', "has one of the severities"),
        ('[severities]\n"a.b" = 3', "has one of the severities"),
        ('[severities]\nnothing = "info"', "has one of the severities"),
        ("[ledger]\nexempt = 3", "list of UEIDs"),
        ("[ledger]\nconfidense = 0.9", "no setting of the ledger"),
        ("[ledger]\nconfidence = 2", "between 0.5 and 1"),
        ("[", "cannot read"),
        ("\x00", "cannot read"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "policy.toml")
    assert message in caught.value.message
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "nothing.toml")
