"""Each finding about the registry of chips, alone, out of `weighbridge registry` over a small trade."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from sqlalchemy import update
from support.console import command, refused
from support.custody_trade import DAY, Trade, ueid
from support.damage import flipped
from support.exactly import exactly

from verifier.registry import Registry, load_key, published
from verifier.registry.entries import statement_entry
from verifier.store.tables import ChipRow
from weighbridge.attest.custody_statements import Statement, countersign, read, sign

BEGAN = int(time.time()) - 200 * DAY
"""The commands have the real clock: losses of a year ago would not count any more."""


@pytest.fixture
def trade(tmp_path: Path) -> Iterator[Trade]:
    """Twenty chips, all installed."""
    trade = Trade(tmp_path)
    trade.now = BEGAN
    trade.supply(range(20))
    yield trade
    trade.registry.close()


def audit(path: Path, *options: str | Path) -> tuple[int, dict[str, object]]:
    """Audits the registry in a directory; returns exit status and report."""
    status, out, said = command("registry", "audit", "--db", path / "registry.db", *options, "--json")
    assert status in (0, 1), said
    return status, json.loads(out)


def fsck(path: Path, *options: str | Path) -> tuple[int, dict[str, object]]:
    """Checks the copy of the log in `path / "log"`; returns exit status and report."""
    key = path / "registry.db.registry-key.pub"
    status, out, said = command("registry", "log", "fsck", path / "log", "--public-key", key, *options, "--json")
    assert status in (0, 1), said
    return status, json.loads(out)


def test_an_honest_trade_has_none(trade: Trade, tmp_path: Path) -> None:
    before = trade.registry.checkpoint()
    trade.say("damaged", "acme", [1])
    (tmp_path / "before").write_bytes(before)
    published.write(trade.registry, tmp_path / "log")
    for status, report in (audit(tmp_path, "--deep"), fsck(tmp_path, "--since", tmp_path / "before")):
        assert (status, report["findings"]) == (0, [])


# What the audit finds.


def installed_by_another(trade: Trade) -> None:
    trade.say("installed", "bolt", [3], site="bolt-1")


def installed_twice(trade: Trade) -> None:
    trade.say("installed", "acme", [3], site="acme-2")


def made_twice(trade: Trade) -> None:
    trade.say("made", "fab", [3])


def lost_and_found(trade: Trade) -> None:
    trade.say("lost", "acme", [3])
    trade.say("installed", "acme", [3], site="acme-1")


def five_lost(trade: Trade) -> None:
    trade.say("lost", "acme", range(5))


def never_installed(trade: Trade) -> None:
    trade.say("made", "fab", [99])
    trade.say("tested", "fab", [99])
    trade.say("sold", "fab", [99], to="acme")


@pytest.mark.parametrize(
    ("happens", "identifier"),
    [
        pytest.param(happens, identifier, marks=pytest.mark.finding(identifier), id=identifier)
        for happens, identifier in (
            (installed_by_another, "registry.gap"),
            (installed_twice, "registry.order"),
            (made_twice, "registry.duplicate"),
            (lost_and_found, "registry.reappeared"),
            (five_lost, "registry.loss.mass"),
            (never_installed, "registry.uninstalled"),
        )
    ],
)
def test_an_audit_finds(trade: Trade, tmp_path: Path, happens: Callable[[Trade], None], identifier: str) -> None:
    happens(trade)
    status, report = audit(tmp_path, "--deep")
    exactly(report, identifier)
    assert status == (0 if identifier == "registry.reappeared" else 1)


@pytest.mark.finding("registry.missing")
def test_a_chip_that_was_looked_for_in_vain(trade: Trade, tmp_path: Path) -> None:
    (tmp_path / "looked-for").write_text(ueid(4).hex())
    status, report = audit(tmp_path, "--not-found", tmp_path / "looked-for")
    exactly(report, "registry.missing")
    assert status == 1


@pytest.mark.finding("registry.log.differs")
def test_somebody_wrote_to_the_tables(trade: Trade, tmp_path: Path) -> None:
    with trade.registry.session.begin() as session:
        session.execute(update(ChipRow).where(ChipRow.ueid == ueid(3)).values(owner="bolt"))
    status, report = audit(tmp_path, "--deep")
    exactly(report, "registry.log.differs")
    assert status == 1


# What is found in a copy of the log.


@pytest.mark.finding("registry.log.altered")
@pytest.mark.parametrize("part", ["0", "entries"])
def test_a_copy_was_altered(trade: Trade, tmp_path: Path, part: str) -> None:
    """The registry neither logged what is in the altered copy now nor signed a second history."""
    (tmp_path / "before").write_bytes(trade.registry.checkpoint())
    published.write(trade.registry, tmp_path / "log")
    (tile,) = (tmp_path / "log" / "tile" / part).rglob("*.p/*")
    tile.write_bytes(flipped(tile.read_bytes()))
    status, report = fsck(tmp_path, "--since", tmp_path / "before")
    exactly(report, "registry.log.altered")
    assert status == 1


@pytest.mark.finding("registry.log.rewritten")
def test_the_registry_signed_two_histories(trade: Trade, tmp_path: Path) -> None:
    """One party was shown that a chip was lost, and all others that it was moved."""
    with trade.registry.session() as session:
        session.connection().exec_driver_sql("VACUUM INTO ?", (str(tmp_path / "other.db"),))
    said = trade.write("moved", "acme", [3], site="acme-2")
    trade.say("lost", "acme", [3])
    (tmp_path / "before").write_bytes(trade.registry.checkpoint())
    other = Registry(tmp_path / "other.db", load_key(tmp_path / "registry.db.registry-key"), clock=lambda: trade.now)
    other.submit(said)
    published.write(other, tmp_path / "log")
    other.close()
    status, report = fsck(tmp_path, "--since", tmp_path / "before")
    exactly(report, "registry.log.rewritten")
    assert status == 1


@pytest.mark.finding("registry.log.entry")
def test_the_registry_logged_a_forged_statement(trade: Trade, tmp_path: Path) -> None:
    forged = trade.write("lost", "acme", [3])
    entry = statement_entry(trade.now, forged[:-1] + bytes([forged[-1] ^ 1]))
    with trade.registry.session.begin() as session:
        trade.registry.log.append(session, trade.registry.log.lock(session), [entry])
    published.write(trade.registry, tmp_path / "log")
    status, report = fsck(tmp_path)
    exactly(report, "registry.log.entry")
    assert status == 1


# What the registry does not take in.


def cut_off(trade: Trade) -> bytes:
    return trade.write("lost", "acme", [3])[:-1]


def forged(trade: Trade) -> bytes:
    trade.keys["acme"] = ed25519.Ed25519PrivateKey.generate()
    return trade.write("lost", "acme", [3])


def one_sided(trade: Trade) -> bytes:
    return sign(read(trade.write("resold", "acme", [3], to="bolt")).statement, trade.keys["acme"])


def by_a_wrong_role(trade: Trade) -> bytes:
    return trade.write("made", "acme", [99])


def by_a_stranger(trade: Trade) -> bytes:
    trade.keys["stranger"] = ed25519.Ed25519PrivateKey.generate()
    return trade.write("lost", "stranger", [3])


def to_another_registry(trade: Trade) -> bytes:
    said: Statement = read(trade.write("lost", "acme", [3])).statement
    return sign(replace(said, registry="weighbridge/registry/0000000000000000"), trade.keys["acme"])


def said_before(trade: Trade) -> bytes:
    """Signed anew, so that its bytes are other ones than those that are in the log."""
    data = trade.write("resold", "acme", [3], to="bolt")
    trade.registry.submit(data)
    return countersign(sign(read(data).statement, trade.keys["acme"]), trade.keys["bolt"])


def of_tomorrow(trade: Trade) -> bytes:
    return trade.write("lost", "acme", [3], at=int(time.time()) + DAY)


@pytest.mark.parametrize(
    ("write", "identifier"),
    [
        pytest.param(write, identifier, marks=pytest.mark.finding(identifier), id=identifier)
        for write, identifier in (
            (cut_off, "registry.statement"),
            (forged, "registry.signature"),
            (one_sided, "registry.handover.onesided"),
            (by_a_wrong_role, "registry.role"),
            (by_a_stranger, "registry.party"),
            (to_another_registry, "registry.foreign"),
            (said_before, "registry.replayed"),
            (of_tomorrow, "registry.time"),
        )
    ],
)
def test_a_statement_is_refused(trade: Trade, tmp_path: Path, write: Callable[[Trade], bytes], identifier: str) -> None:
    (tmp_path / "statement").write_bytes(write(trade))
    size = trade.registry.tree_size
    assert (
        refused("registry", "event", "submit", tmp_path / "statement", "--db", tmp_path / "registry.db") == identifier
    )
    assert trade.registry.tree_size == size


@pytest.mark.finding("registry.csv")
def test_a_table_with_a_bad_row_is_refused(trade: Trade, tmp_path: Path) -> None:
    (tmp_path / "chips.csv").write_text(f"ueid,owner\n{ueid(98).hex()},acme\nxyz,acme\n")
    assert refused("registry", "import", tmp_path / "chips.csv", "--db", tmp_path / "registry.db") == "registry.csv"
    assert trade.registry.states() == {"installed": 20}
