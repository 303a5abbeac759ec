"""Statements in the registry: honest trade leaves no contradiction; forged and replayed ones change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from sqlalchemy import select
from support.custody_trade import DAY, START, Trade, ueid

from verifier.registry import Chip, Party, Registry, load_key
from verifier.store.tables import ContradictionRow
from weighbridge.attest.custody_statements import CustodyError, Kind, countersign, encode_key, read, sign
from weighbridge.core.errors import UsageError


@pytest.fixture
def trade(tmp_path: Path) -> Trade:
    return Trade(tmp_path)


def contradictions(trade: Trade) -> list[tuple[bytes, int, str]]:
    with trade.registry.session() as session:
        rows = session.scalars(select(ContradictionRow).order_by(ContradictionRow.place, ContradictionRow.ueid))
        return [(row.ueid, row.place, row.reason) for row in rows]


def snapshot(trade: Trade) -> object:
    return (trade.registry.tree_size, trade.registry.root(), list(trade.registry.everything()), contradictions(trade))


def test_a_chips_way_from_fab_to_scrap(trade: Trade) -> None:
    chips = range(3)
    expected = [
        "made",
        "tested",
        "shipped",
        "sold",
        "installed",
        "installed",
        "damaged",
        "installed",
        "sold",
        "scrapped",
    ]
    owners = ["fab", "fab", "bolt", *["acme"] * 5, "bolt", "bolt"]
    steps: list[tuple[Kind, str, dict[str, str]]] = [
        ("made", "fab", {}),
        ("tested", "inspectorate", {}),
        ("shipped", "fab", {"to": "bolt"}),
        ("sold", "bolt", {"to": "acme"}),
        ("installed", "acme", {"site": "kiel"}),
        ("moved", "acme", {"site": "bonn"}),
        ("damaged", "acme", {}),
        ("installed", "acme", {"site": "kiel"}),
        ("resold", "acme", {"to": "bolt"}),
        ("scrapped", "bolt", {"to": "inspectorate"}),
    ]
    sites = ["", "", "", "", "kiel", "bonn", "bonn", "kiel", "", ""]
    for (kind, by, more), state, owner, site in zip(steps, expected, owners, sites, strict=True):
        trade.say(kind, by, chips, **more)
        for number in chips:
            chip = trade.registry.chip(ueid(number))
            assert (chip.state, chip.owner, chip.site) == (state, owner, site), kind
            assert (chip.maker, chip.chip_type) == ("fab", "WB-1")
    assert contradictions(trade) == []
    assert trade.registry.chips() == []  # scrapped ones are not drawn


def test_only_chips_at_work_are_drawn(trade: Trade) -> None:
    trade.supply(range(4))
    trade.say("made", "fab", [9])
    trade.say("lost", "acme", [0])
    trade.say("damaged", "acme", [1])
    members = list(trade.registry.population())
    assert [member.ueid for member in members] == [ueid(1), ueid(2), ueid(3)]
    assert {(member.owner, member.site, member.chip_type) for member in members} == {("acme", "acme-1", "WB-1")}
    assert [chip.ueid for chip in trade.registry.chips()] == [member.ueid for member in members]


def forged(trade: Trade) -> bytes:
    data = trade.write("moved", "acme", [1], site="kiel-3")
    trade.keys["acme"], good = ed25519.Ed25519PrivateKey.generate(), data
    assert read(good).statement.by == "acme"
    return trade.write("moved", "acme", [1], site="kiel-3")


def one_sided(trade: Trade) -> bytes:
    said = read(trade.write("resold", "acme", [1], to="bolt")).statement
    return sign(said, trade.keys["acme"])


def taken(trade: Trade) -> bytes:
    """The buyer signs for both."""
    said = read(trade.write("resold", "acme", [1], to="bolt")).statement
    return countersign(sign(said, trade.keys["bolt"]), trade.keys["bolt"])


def replayed(trade: Trade) -> bytes:
    data = trade.write("resold", "acme", [1], to="bolt")
    trade.registry.submit(data)
    trade.say("resold", "bolt", [1], to="acme")
    said = read(data).statement  # signed again, so that its bytes are new
    return countersign(sign(said, trade.keys["acme"]), trade.keys["bolt"])


def foreign(trade: Trade) -> bytes:
    said = read(trade.write("lost", "acme", [1])).statement
    return sign(replace(said, registry="weighbridge/registry/0000000000000000"), trade.keys["acme"])


def of_the_future(trade: Trade) -> bytes:
    return trade.write("lost", "acme", [1], at=trade.now + DAY)


def by_a_stranger(trade: Trade) -> bytes:
    trade.keys["nobody"] = ed25519.Ed25519PrivateKey.generate()
    return trade.write("lost", "nobody", [1])


def by_the_wrong_role(trade: Trade) -> bytes:
    return trade.write("made", "acme", [99])


def scrapped_before_a_friend(trade: Trade) -> bytes:
    return trade.write("scrapped", "acme", [1], to="bolt")


def by_one_who_withdrew(trade: Trade) -> bytes:
    trade.registry.statements.declare(replace(trade.registry.statements.party("acme"), roles=()))
    return trade.write("lost", "acme", [1])


def under_an_old_key(trade: Trade) -> bytes:
    old = trade.keys["acme"]
    trade.join("acme", "owner")
    said = read(trade.write("lost", "acme", [1])).statement
    return sign(said, old)


def cut_off(trade: Trade) -> bytes:
    return trade.write("lost", "acme", [1])[:-1]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (forged, "registry.signature"),
        (one_sided, "registry.handover.onesided"),
        (taken, "registry.signature"),
        (replayed, "registry.replayed"),
        (foreign, "registry.foreign"),
        (of_the_future, "registry.time"),
        (by_a_stranger, "registry.party"),
        (by_the_wrong_role, "registry.role"),
        (scrapped_before_a_friend, "registry.role"),
        (by_one_who_withdrew, "registry.role"),
        (under_an_old_key, "registry.signature"),
        (cut_off, "registry.statement"),
    ],
)
def test_what_is_not_authentic_is_refused_and_changes_nothing(
    trade: Trade, make: Callable[[Trade], bytes], reason: str
) -> None:
    trade.supply(range(3))
    data = make(trade)
    before = snapshot(trade)
    with pytest.raises(CustodyError) as caught:
        trade.registry.submit(data)
    assert caught.value.reason == reason
    assert snapshot(trade) == before


def test_a_statement_of_somebody_who_does_not_have_the_chip_changes_nothing(trade: Trade) -> None:
    trade.supply([1, 2])
    for kind, more in (("lost", {}), ("moved", {"site": "elsewhere"}), ("resold", {"to": "fab"})):
        before = trade.registry.chip(ueid(1))
        place = trade.say(kind, "bolt", [1], **more)  # type: ignore[arg-type]
        assert contradictions(trade)[-1] == (ueid(1), place, "registry.gap")
        assert trade.registry.chip(ueid(1)) == before
    assert {row[0] for row in contradictions(trade)} == {ueid(1)}


def test_a_chip_that_is_sold_twice_is_the_first_buyers(trade: Trade) -> None:
    trade.join("coil", "owner")
    trade.supply([1])
    trade.say("resold", "acme", [1], to="bolt")
    place = trade.say("resold", "acme", [1], to="coil")
    assert trade.registry.chip(ueid(1)).owner == "bolt"
    assert contradictions(trade) == [(ueid(1), place, "registry.gap")]


def test_two_may_say_that_a_chip_is_damaged(trade: Trade) -> None:
    trade.supply([1])
    trade.say("damaged", "acme", [1])
    trade.say("damaged", "inspectorate", [1])
    assert contradictions(trade) == []
    assert [member.ueid for member in trade.registry.population()] == [ueid(1)]


def test_a_missing_link_that_comes_late_heals_the_gap(trade: Trade) -> None:
    trade.supply([1, 2])
    sold_at = trade.now + DAY
    trade.now += 3 * DAY
    place = trade.say("installed", "bolt", [1, 2], site="bolt-1")
    assert contradictions(trade) == [(ueid(1), place, "registry.gap"), (ueid(2), place, "registry.gap")]
    assert trade.registry.chip(ueid(1)).owner == "acme"
    trade.say("resold", "acme", [1, 2], to="bolt", at=sold_at)
    assert contradictions(trade) == []
    chip = trade.registry.chip(ueid(2))
    assert (chip.owner, chip.state, chip.site) == ("bolt", "installed", "bolt-1")


def test_events_in_an_impossible_order_are_kept_as_contradictions(trade: Trade) -> None:
    trade.say("made", "fab", [1])
    untested = trade.say("shipped", "fab", [1], to="acme")
    trade.say("installed", "acme", [1], site="kiel")
    twice = trade.say("installed", "acme", [1], site="kiel")
    trade.say("scrapped", "acme", [1], to="inspectorate")
    undead = trade.say("resold", "acme", [1], to="bolt")
    assert contradictions(trade) == [(ueid(1), place, "registry.order") for place in (untested, twice, undead)]
    assert trade.registry.chip(ueid(1)).owner == "bolt"  # who signed to have it answers for it


def test_re_ordered_times_are_found(trade: Trade) -> None:
    """An owner that dates its sale before its purchase."""
    trade.supply([1])
    place = trade.say("resold", "acme", [1], to="bolt", at=START + 1)
    # Before it was made there was no chip to sell, and a chip that bolt says to have was not made a day later.
    assert {(row[1], row[2]) for row in contradictions(trade)} >= {(place, "registry.gap")}


def test_a_chip_made_twice_stays_the_first_makers(trade: Trade) -> None:
    trade.supply([1])
    trade.join("fab-2", "manufacturer")
    place = trade.say("made", "fab-2", [1])
    assert contradictions(trade) == [(ueid(1), place, "registry.duplicate")]
    chip = trade.registry.chip(ueid(1))
    assert (chip.maker, chip.owner, chip.state) == ("fab", "acme", "installed")


def test_a_chip_without_a_beginning_is_known_from_its_first_statement(trade: Trade) -> None:
    place = trade.say("installed", "acme", [7], site="kiel")
    assert contradictions(trade) == [(ueid(7), place, "registry.gap")]
    assert [member.ueid for member in trade.registry.population()] == [ueid(7)]
    trade.say("made", "fab", [7], at=START - 9 * DAY)
    trade.say("tested", "fab", [7], at=START - 8 * DAY)
    trade.say("sold", "fab", [7], to="acme", at=START - 7 * DAY)
    assert contradictions(trade) == []
    assert trade.registry.chip(ueid(7)).state == "installed"


def test_a_lost_chip_that_turns_up_is_drawn_again(trade: Trade) -> None:
    trade.supply([1])
    trade.say("lost", "acme", [1])
    place = trade.say("installed", "acme", [1], site="kiel")
    assert contradictions(trade) == [(ueid(1), place, "registry.reappeared")]
    assert [member.ueid for member in trade.registry.population()] == [ueid(1)]


def test_the_registry_lists_what_it_was_not_told_and_then_parties_take_over(trade: Trade) -> None:
    registry = trade.registry
    registry.register(Chip(ueid=ueid(1), address="localhost:1", owner="acme", site="kiel", chip_type="WB-0"))
    trade.say("made", "fab", [1], at=START - 100 * DAY)  # its history may come later
    trade.say("moved", "acme", [1], site="bonn")
    assert contradictions(trade) == []
    registry.register(Chip(ueid=ueid(1), address="localhost:2"))
    chip = registry.chip(ueid(1))
    assert (chip.address, chip.owner, chip.site, chip.chip_type) == ("localhost:2", "acme", "bonn", "WB-0")
    with pytest.raises(UsageError, match="statements say"):
        registry.register(Chip(ueid=ueid(1), address="localhost:2", owner="bolt"))
    assert registry.chip(ueid(1)).owner == "acme"


def test_registering_the_same_again_adds_no_entry(trade: Trade) -> None:
    chip = Chip(ueid=ueid(1), address="localhost:1", owner="acme")
    trade.registry.register(chip)
    before = (trade.registry.tree_size, trade.registry.root())
    trade.registry.register(chip)
    trade.registry.statements.declare(trade.registry.statements.party("acme"))
    assert (trade.registry.tree_size, trade.registry.root()) == before
    trade.registry.register(replace(chip, address="localhost:2"))
    assert trade.registry.tree_size == before[0] + 1
    assert trade.registry.root(before[0]) == before[1] != trade.registry.root()


def test_a_registry_belongs_to_its_key(trade: Trade, tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with pytest.raises(UsageError, match="right key file"):
        Registry(path, load_key(tmp_path / "another-key"))
    again = Registry(path, load_key(tmp_path / "registry.db.registry-key"))
    assert (again.name, again.root()) == (trade.registry.name, trade.registry.root())
    unsigned = Registry(path)
    assert unsigned.root() == again.root()
    with pytest.raises(UsageError, match="registry's key"):
        unsigned.checkpoint()
    with pytest.raises(UsageError, match="no key yet"):
        Registry(tmp_path / "new.db").submit(b"")


def test_parties_are_declared_with_names_roles_and_keys_that_they_can_have(trade: Trade) -> None:
    key = encode_key(ed25519.Ed25519PrivateKey.generate().public_key())
    for party, says in (
        (Party(name="Acme Ltd", roles=("owner",), key=key), "cannot name"),
        (Party(name="acme", roles=("king",), key=key), "roles"),
        (Party(name="acme", roles=("owner",), key=key[:-1]), "P-384 or an Ed25519"),
    ):
        with pytest.raises(CustodyError, match=says):
            trade.registry.statements.declare(party)
    with pytest.raises(UsageError, match="declare it first"):
        trade.registry.statements.party("nobody")
    assert [party.name for party in trade.registry.statements.parties()] == ["acme", "bolt", "fab", "inspectorate"]
