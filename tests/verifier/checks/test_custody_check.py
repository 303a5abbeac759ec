"""The check of custody: an honest history passes; a chip that another party took over without a hand-over is found."""

from __future__ import annotations

from pathlib import Path

from support.custody_trade import Trade, ueid

from verifier.checks import chip_custody
from verifier.model.facts import CustodyFacts


def check(trade: Trade, number: int) -> list[tuple[str, str, str]]:
    chip = trade.registry.chip(ueid(number))
    found = chip_custody.check(CustodyFacts(chip=chip, contradictions=trade.registry.contradictions(chip.ueid)))
    assert all(finding.subject == f"chip {chip.ueid.hex()}" for finding in found)
    return [(finding.id, finding.severity, finding.evidence["holder"]) for finding in found]


def test_an_honest_history_passes(tmp_path: Path) -> None:
    trade = Trade(tmp_path)
    trade.supply(range(2))
    trade.say("moved", "acme", [0], site="acme-2")
    assert check(trade, 0) == check(trade, 1) == []


def test_what_cannot_be_is_found_and_the_holder_named(tmp_path: Path) -> None:
    trade = Trade(tmp_path)
    trade.supply(range(3))
    trade.say("installed", "bolt", [0], site="bolt-1")
    trade.say("lost", "acme", [1])
    trade.say("installed", "acme", [1], site="acme-1")
    assert check(trade, 0) == [("registry.gap", "violation", "acme")]
    assert check(trade, 1) == [("registry.reappeared", "info", "acme")]
    assert check(trade, 2) == []
