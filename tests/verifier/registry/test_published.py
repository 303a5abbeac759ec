"""The registry's log: it alone gives the same custody as the tables, and tampering with either is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sqlalchemy import select, text, update
from support.custody_trade import DAY, Trade, ueid
from support.damage import flipped

from verifier.registry import Chip, Registry, published
from verifier.registry.entries import Listing, decode, listed_entries, statement_entry
from verifier.registry.reconstruction import compare, replay_log
from verifier.store.tables import ChipRow, LogEntryRow
from weighbridge.attest import tlog
from weighbridge.attest.custody_statements import CustodyError, Kind, read, sign
from weighbridge.attest.tlog import NoteError, NoteKey, parse_key
from weighbridge.core import merkle
from weighbridge.core.errors import ProofError, UsageError, WeighbridgeError


@pytest.fixture
def trade(tmp_path: Path) -> Trade:
    trade = Trade(tmp_path)
    trade.supply(range(20))
    trade.registry.register(Chip(ueid=ueid(99), address="localhost:1", owner="bolt"))
    return trade


def key(tmp_path: Path) -> NoteKey:
    return parse_key((tmp_path / "registry.db.registry-key.pub").read_text().strip())


def test_log_and_tables_agree_whatever_parties_say(tmp_path: Path) -> None:
    """150 random statements, most of them impossible, some late, and listings between them."""
    trade, choice = Trade(tmp_path), random.Random(6)
    parties = {"fab": "fab", "acme": "acme", "bolt": "bolt", "inspectorate": "inspectorate"}
    kinds: list[Kind] = [
        "made",
        "tested",
        "shipped",
        "sold",
        "installed",
        "moved",
        "resold",
        "damaged",
        "lost",
        "scrapped",
    ]
    accepted, refused = 0, set[str]()
    for number in range(150):
        kind = choice.choice(kinds)
        to = choice.choice(list(parties)) if kind in ("shipped", "sold", "resold", "scrapped") else ""
        by = choice.choice([name for name in parties if name != to])
        at = None if choice.random() < 0.7 else trade.now - choice.randrange(100 * DAY)
        chips = choice.sample(range(6), choice.randint(1, 4))
        site = f"site-{number}" if kind in ("installed", "moved") else ""
        try:
            trade.say(kind, by, chips, to=to, site=site, at=at)
            accepted += 1
        except CustodyError as error:
            refused.add(error.reason)
        if number == 75:
            trade.registry.register(Chip(ueid=ueid(5000), address="localhost:1", owner="acme"))
        if number == 90:
            trade.registry.register(Chip(ueid=ueid(2), address="localhost:2"))
    replayed = replay_log(trade.registry.log.entries())
    assert accepted > 40
    assert refused == {"registry.role"}
    assert replayed.findings == []
    assert any(wrong for _, _, wrong in replayed.chips())
    assert compare(trade.registry, replayed) == []


def test_a_copy_of_the_log_is_verified_without_the_registry(trade: Trade, tmp_path: Path) -> None:
    size = published.write(trade.registry, tmp_path / "log")
    copy = published.read(tmp_path / "log", key(tmp_path))
    assert (len(copy.entries), copy.findings) == (size, [])
    assert copy.checkpoint.root == trade.registry.root()
    replayed = replay_log(copy.entries)
    assert replayed.findings == []
    assert replayed.name == trade.registry.name
    assert compare(trade.registry, replayed) == []
    with pytest.raises(UsageError, match="new directory"):
        published.write(trade.registry, tmp_path / "log")


def test_an_altered_copy_is_found(trade: Trade, tmp_path: Path) -> None:
    published.write(trade.registry, tmp_path / "log")
    bundle = next((tmp_path / "log" / "tile" / "entries").rglob("*"))
    bundle = next(path for path in bundle.parent.rglob("*") if path.is_file())
    data = bytearray(bundle.read_bytes())
    data[-1] ^= 1
    bundle.write_bytes(data)
    found = published.read(tmp_path / "log", key(tmp_path)).findings
    assert {finding.id for finding in found} == {"registry.log.altered"}
    (tmp_path / "log" / "checkpoint").write_bytes(b"weighbridge/registry/00\n1\nAAAA\n\n")
    with pytest.raises(WeighbridgeError):
        published.read(tmp_path / "log", key(tmp_path))


def test_a_log_that_was_rewritten_is_found_with_an_older_checkpoint(trade: Trade, tmp_path: Path) -> None:
    older = trade.registry.checkpoint()
    note = tlog.parse_note(older)
    checkpoint = tlog.parse_checkpoint(note.text)
    honest = published.Copy(checkpoint=checkpoint, note=note, entries=list(trade.registry.log.entries()))
    assert published.continues(honest, older, key(tmp_path)) == []  # type: ignore[arg-type]
    with trade.registry.session.begin() as session:
        data = session.scalar(select(LogEntryRow.data).where(LogEntryRow.place == 7))
        assert data is not None
        session.execute(update(LogEntryRow).where(LogEntryRow.place == 7).values(data=flipped(data)))
    again = Registry(tmp_path / "registry.db")
    copy = published.Copy(checkpoint=checkpoint, note=note, entries=list(again.log.entries()))
    (finding,) = published.continues(copy, older, key(tmp_path))
    assert finding.id == "registry.log.rewritten"
    copy.entries.pop()
    with pytest.raises(UsageError, match="longer log"):
        published.continues(copy, older, key(tmp_path))


def test_changed_tables_are_found_by_the_log(trade: Trade) -> None:
    with trade.registry.session.begin() as session:
        session.execute(update(ChipRow).where(ChipRow.ueid == ueid(3)).values(owner="bolt"))
        session.execute(text("DELETE FROM chips WHERE ueid = :ueid"), {"ueid": ueid(4)})
        session.execute(
            text("INSERT INTO registry_contradictions VALUES (:ueid, 1, 'registry.gap', '', '')"), {"ueid": ueid(5)}
        )
    found = compare(trade.registry, replay_log(trade.registry.log.entries()))
    assert {finding.subject for finding in found} == {f"chip {ueid(number).hex()}" for number in (3, 4, 5)}
    assert {finding.id for finding in found} == {"registry.log.differs"}


def test_a_registry_that_logs_what_it_must_not_is_found(trade: Trade) -> None:
    entries = list(trade.registry.log.entries())
    forged = trade.write("lost", "bolt", range(20))
    said = read(trade.write("resold", "acme", [2], to="bolt")).statement
    at = trade.now
    relist = Listing(ueid=ueid(1), state="lost", owner="acme", site="", chip_type="", address="", prover_address="")
    bad = [
        statement_entry(at, forged[:-1] + bytes([forged[-1] ^ 1])),  # a signature of no party
        statement_entry(at, sign(said, trade.keys["acme"])),  # one side only
        next(entry for entry in entries if b"installed" in entry and b"statement" in entry),  # again
        statement_entry(at - 99 * DAY, trade.write("lost", "acme", [1])),  # before it was made
        next(listed_entries(at, [relist]))[0],  # the registry's word against the parties'
        entries[0],  # a second key
        b"\xa0",
    ]
    replayed = replay_log([*entries, *bad])
    assert [finding.evidence["place"] for finding in replayed.findings] == [len(entries) + n for n in range(len(bad))]
    assert {finding.id for finding in replayed.findings} == {"registry.log.entry"}
    assert [finding.evidence["reason"] for finding in replayed.findings[:4]] == [
        "registry.signature", "registry.handover.onesided", "registry.replayed", "registry.time",
    ]  # fmt: skip
    assert compare(trade.registry, replayed) == []  # they changed nothing


def test_one_entry_is_proved_without_the_log(trade: Trade, tmp_path: Path) -> None:
    place = trade.registry.history(ueid(3))[2]
    proof = published.prove(trade.registry, place).encode()
    (entry,) = trade.registry.log.entries(place, place + 1)
    checkpoint = published.check_proof(proof, entry, key(tmp_path))
    assert checkpoint.root == trade.registry.root()
    assert ueid(3) in decode(entry)[1].statement.chips  # type: ignore[union-attr]
    with pytest.raises(ProofError):
        published.check_proof(proof, entry + b"\x00", key(tmp_path))
    with pytest.raises(NoteError):
        published.check_proof(proof[:-20], entry, key(tmp_path))
    with pytest.raises(UsageError, match="no leaf"):
        published.prove(trade.registry, 10**6)


def test_the_root_is_that_of_all_entries(trade: Trade) -> None:
    entries = list(trade.registry.log.entries())
    hashes = [merkle.leaf_hash(entry) for entry in entries]
    assert trade.registry.tree_size == len(entries)
    assert trade.registry.root() == merkle.root(hashes)
    assert trade.registry.root(3) == merkle.root(hashes[:3])


def test_a_registry_from_before_there_was_a_log_gets_one(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "old.db")
    chips = [Chip(ueid=ueid(number), address="localhost:1", owner="acme") for number in range(700)]
    for chip in chips[:3]:
        registry.register(chip)
    with registry.session.begin() as session:
        for statement in ("DELETE FROM registry_log", "DELETE FROM registry_log_head", "UPDATE chips SET history = ''"):
            session.execute(text(statement))
    registry.close()
    again = Registry(tmp_path / "old.db")
    assert again.tree_size == 1
    assert compare(again, replay_log(again.log.entries())) == []
    assert [ueid for ueid, _, _ in replay_log(again.log.entries()).chips()] == [chip.ueid for chip in chips[:3]]
