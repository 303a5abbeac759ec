"""The audit: honest trade passes, and each way to make chips disappear is found and named by its holder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.custody_trade import DAY, Trade, ueid

from verifier.checks import chip_log
from verifier.contact.log_reading import read_log
from verifier.contact.witness import Witness
from verifier.registry.audit import AuditPolicy, audit, missing
from weighbridge.attest.custody_statements import Kind
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import UsageError


@pytest.fixture
def trade(tmp_path: Path) -> Trade:
    return Trade(tmp_path)


def ids(trade: Trade, policy: AuditPolicy | None = None) -> list[str]:
    return [finding.id for finding in audit(trade.registry, policy)]


def test_honest_trade_with_a_few_losses_passes(trade: Trade) -> None:
    trade.supply(range(200))
    trade.say("damaged", "acme", range(10))
    trade.say("scrapped", "acme", range(10), to="inspectorate")
    trade.say("lost", "acme", [50, 51])
    trade.say("resold", "acme", range(100, 200), to="bolt")
    trade.now += 30 * DAY
    trade.say("installed", "bolt", range(100, 200), site="bolt-1")
    trade.now += 400 * DAY
    assert audit(trade.registry) == []


def test_gap_is_named_by_statement_once_for_all_its_chips(trade: Trade) -> None:
    trade.supply(range(100))
    place = trade.say("installed", "bolt", range(7, 100), site="bolt-1")
    (finding,) = audit(trade.registry)
    assert (finding.id, finding.severity, finding.evidence["place"]) == ("registry.gap", "violation", place)
    assert finding.evidence["chips"] == 93
    assert finding.evidence["first"] == [ueid(number).hex() for number in range(7, 12)]
    assert "acme" in finding.expected
    assert "bolt" in finding.found


@pytest.mark.parametrize(
    ("events", "id", "severity"),
    [
        ([("installed", "acme", "kiel")], "registry.order", "violation"),
        ([("made", "fab", "")], "registry.duplicate", "violation"),
        ([("lost", "bolt", "")], "registry.gap", "violation"),
        ([("lost", "acme", ""), ("installed", "acme", "kiel")], "registry.reappeared", "info"),
    ],
)
def test_each_contradiction_is_found_alone(
    trade: Trade, events: list[tuple[Kind, str, str]], id: str, severity: str
) -> None:
    trade.supply([1, 2])
    for kind, by, site in events:
        trade.say(kind, by, [1], site=site)
    (finding,) = audit(trade.registry)
    assert (finding.id, finding.severity) == (id, severity)
    assert finding.evidence["first"] == [ueid(1).hex()]


def test_mass_losses_are_counted_by_holder_and_time(trade: Trade) -> None:
    trade.supply(range(100))
    trade.supply(range(100, 1000), owner="bolt")
    trade.say("lost", "bolt", range(100, 108))  # 8 of 900
    trade.say("lost", "acme", [1, 2, 3, 4])
    assert ids(trade) == []
    trade.say("lost", "acme", [5])
    (finding,) = audit(trade.registry)
    assert (finding.id, finding.subject, finding.found) == ("registry.loss.mass", "holder acme", "5 of 100")
    assert ids(trade, AuditPolicy(lost_least=5)) == []
    assert ids(trade, AuditPolicy(lost_share=0.005)) == ["registry.loss.mass"] * 2
    trade.now += 366 * DAY
    assert ids(trade) == []


def test_chips_that_are_never_installed_are_named_after_a_while(trade: Trade) -> None:
    trade.say("made", "fab", range(5))
    trade.say("tested", "fab", range(5))
    trade.say("sold", "fab", range(3), to="acme")
    trade.say("installed", "acme", [0], site="kiel")
    trade.now += 80 * DAY
    assert ids(trade) == []
    trade.now += 20 * DAY
    found = {finding.subject: finding for finding in audit(trade.registry)}
    assert {finding.id for finding in found.values()} == {"registry.uninstalled"}
    assert found["holder acme"].evidence == {"chips": 2, "state": "sold"}
    assert found["holder fab"].evidence == {"chips": 2, "state": "tested"}
    assert found["holder fab"].severity == "warning"


def test_the_most_recent_holder_answers_for_a_chip_that_is_not_found(trade: Trade) -> None:
    trade.supply([1, 2])
    before, *_ = missing(trade.registry, [ueid(1)])
    assert before.evidence["holder"] == "acme"
    trade.say("resold", "acme", [1], to="bolt")
    trade.say("installed", "acme", [2], site="elsewhere")  # twice: wrong, but its own
    trade.say("lost", "bolt", [2])  # not its own: changes nothing
    one, two = missing(trade.registry, [ueid(1), ueid(2)])
    assert (one.evidence["holder"], two.evidence["holder"]) == ("bolt", "acme")
    assert one.expected == "sold, with bolt"
    assert two.evidence["history"] == trade.registry.history(ueid(2))
    with pytest.raises(UsageError, match="not registered"):
        missing(trade.registry, [ueid(99)])


def test_policies_that_mean_nothing_are_refused() -> None:
    for wrong in ({"lost_share": 1.5}, {"lost_days": 0}, {"uninstalled_days": -1}, {"lost_least": -1}):
        with pytest.raises(UsageError, match="correct the policy"):
            AuditPolicy(**wrong)  # type: ignore[arg-type]


def test_a_drawn_chip_of_which_nobody_told_the_address_is_unreachable_and_its_holder_named(trade: Trade) -> None:
    trade.supply([1])
    manufacturer = CertificateAuthority.create("Manufacturer").certificate
    credentials = CertificateAuthority.create("Site").issue_role("verifier", "verifier")
    log = read_log(trade.registry.chip(ueid(1)), credentials, manufacturer, Witness(trade.registry, manufacturer))
    (finding,) = chip_log.check(log)
    assert (finding.id, finding.evidence["holder"]) == ("chip.unreachable", "acme")
    assert "address" in finding.message
