"""Each finding about a draw, alone: a Verifier cheats at one place, and `weighbridge inspect verify-draw` names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.console import command, refused
from support.draws import House, beacon_key, fleet, heads_of, ueid
from support.exactly import exactly

from verifier.draw.derivation import DrawCommitment, close_draw, open_draw
from verifier.draw.log_entries import Abandonment, Closing, entry_digest, seed_of
from verifier.draw.record import DrawRecord, write_files
from verifier.model.strata import Heads, Population
from verifier.registry import Chip, Registry, load_key, published
from weighbridge.attest import tlog
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.tlog import NoteSigner

PAST = 1_700_000_000
"""Everything happened in 2023, so that for the command, which has the real clock, nothing is still to come."""
FLEET = fleet()
HEADS = heads_of(FLEET, without={3, 17})
FEWER = {each: head for each, head in HEADS.items() if each != ueid(9)}
OTHER = bytes(31) + b"\x07"

Shown = tuple[DrawRecord, list[str | Path]]
"""A record of a draw, and options for its reader."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, time=PAST)
    house.beacon = LocalBeacon(beacon_key(), period_s=3, genesis_s=PAST - 900, clock=lambda: house.time)
    yield house
    house.close()


def save(house: House, record: DrawRecord) -> Path:
    """Writes a record, with the whole log as the house shows it now."""
    path = house.path / "draw"
    write_files(path, [*record.files(), *((f"log/{name}", data) for name, data in house.log.files())])
    return path


def trusted(house: House) -> list[str | Path]:
    """Options with everything that can be known by other ways than the record, but for the registry's log."""
    known = {
        "--log-key": str(house.log.key), "--witness": str(house.witness.key),
        "--registry-root": "00" * 32, "--beacon": house.beacon.info.chain.hex(),
    }  # fmt: skip
    return [word for pair in known.items() for word in pair]


def closed(committed: DrawCommitment, heads: Heads = HEADS) -> Closing:
    """Returns a closing with the date of the cut-off, whatever the time is; it is not logged."""
    return close_draw(committed.commitment, FLEET, heads, committed.commitment.cutoff_ms)[0]


def opened(
    house: House, committed: DrawCommitment, shut: Closing, places: tuple[int, int], heads: Heads = HEADS, **cheat: Any
) -> DrawRecord:
    """Opens a draw of which commitment and closing are logged at these places, with some fields of it changed."""
    value = house.value(committed.commitment.round)
    drawn = open_draw(committed, shut, FLEET, heads, house.beacon.info, value)
    drawn = replace(drawn, opening=replace(drawn.opening, **cheat))
    return house.recorded(drawn, (*places, house.log.append(drawn.opening.encode())), FLEET, heads, value)


def test_an_honest_draw_has_none(house: House) -> None:
    status, out, _ = command(
        "inspect", "verify-draw", save(house, house.record(FLEET, HEADS)), *trusted(house), "--json"
    )
    assert (status, json.loads(out)["findings"]) == (0, [])


# What is wrong with the record.


def unlogged(house: House) -> Shown:
    record = house.record(FLEET, HEADS)
    assert record.opening is not None
    forged = replace(record.opening.proof, hashes=(bytes(32),))
    return replace(record, opening=replace(record.opening, proof=forged)), []


def unwitnessed(house: House) -> Shown:
    return replace(house.record(FLEET, HEADS), witnesses=()), []


def another_population(house: House) -> Shown:
    """A chip is shown at another site than it was when the draw was committed to."""
    record = house.record(FLEET, HEADS)
    moved = record.population.replace(b"site 0", b"site 9", 1)
    return replace(record, population=moved), trusted(house)


def another_value(house: House) -> Shown:
    record = house.record(FLEET, HEADS)
    assert record.value is not None
    return replace(record, value=replace(record.value, signature=bytes(256))), trusted(house)


def another_sample(house: House) -> Shown:
    """A chip is spared."""
    record = house.record(FLEET, HEADS)
    return replace(record, drawn=record.drawn[1:]), trusted(house)


def another_log(house: House) -> Shown:
    """The Verifier keeps two logs under one key, and shows the other one, which is in order, too."""
    record, now = house.record(FLEET, HEADS), PAST
    house.log, house.time = house.new_log(), now
    house.record(FLEET, HEADS, inspection="other")
    return record, trusted(house)


# What is wrong with the draw.


def opened_first(house: House) -> Shown:
    """The beacon told the Verifier its value, so the opening was ready before the closing was logged."""
    committed, first = house.commit(FLEET)
    closing, value = closed(committed), house.value(committed.commitment.round)
    house.time = committed.commitment.cutoff_ms / 1000 + 1
    drawn = open_draw(committed, closing, FLEET, HEADS, house.beacon.info, value)
    third, second = house.log.append(drawn.opening.encode()), house.log.append(closing.encode())
    return house.recorded(drawn, (first, second, third), FLEET, HEADS, value), trusted(house)


def closing_of_another(house: House) -> Shown:
    committed, first = house.commit(FLEET)
    house.time = committed.commitment.cutoff_ms / 1000 + 1
    closing = replace(closed(committed), commitment=bytes(32))
    return opened(house, committed, closing, (first, house.log.append(closing.encode()))), trusted(house)


def two_closings(house: House) -> Shown:
    committed, first = house.commit(FLEET)
    house.shut(committed, FLEET, HEADS)
    closing, second = house.shut(committed, FLEET, FEWER)
    return opened(house, committed, closing, (first, second), FEWER), trusted(house)


def committed_late(house: House) -> Shown:
    """The commitment is dated back to before its cut-off; the beacon's value is still to come."""
    now = int(house.time * 1000)
    house.time += 2
    committed, first = house.commit(FLEET, now_ms=now, cutoff_ms=now + 1000)
    closing, second = house.shut(committed, FLEET, HEADS)
    return opened(house, committed, closing, (first, second)), trusted(house)


def closed_late(house: House) -> Shown:
    committed, first = house.commit(FLEET)
    house.value(committed.commitment.round)
    closing = closed(committed)
    return opened(house, committed, closing, (first, house.log.append(closing.encode()))), trusted(house)


def closed_early(house: House) -> Shown:
    committed, first = house.commit(FLEET)
    closing = closed(committed)
    return opened(house, committed, closing, (first, house.log.append(closing.encode()))), trusted(house)


def unopened(house: House) -> Shown:
    """The Verifier did not like a sample, kept silent, and drew again."""
    house.shut(house.commit(FLEET, inspection="disliked")[0], FLEET, HEADS)
    return house.record(FLEET, HEADS, inspection="liked"), trusted(house)


def abandoned(house: House) -> Shown:
    committed, _ = house.commit(FLEET)
    house.shut(committed, FLEET, HEADS)
    digest = entry_digest(committed.commitment)
    house.log.append(Abandonment(commitment=digest, secret=committed.secret, reason="the disk was full").encode())
    return house.record(FLEET, HEADS, inspection="next"), trusted(house)


def another_secret(house: House) -> Shown:
    committed, first = house.commit(FLEET)
    closing, second = house.shut(committed, FLEET, HEADS)
    chosen = DrawCommitment(commitment=committed.commitment, secret=OTHER)
    return opened(house, chosen, closing, (first, second)), trusted(house)


def another_seed(house: House) -> Shown:
    """The seed that was logged is of other heads, which would have drawn others; the sample shown is the right one."""
    committed, first = house.commit(FLEET)
    closing, second = house.shut(committed, FLEET, HEADS)
    seed = seed_of(committed.secret, bytes(32), OTHER, house.value(committed.commitment.round).randomness)
    return opened(house, committed, closing, (first, second), seed=seed), trusted(house)


def other_heads(house: House) -> Shown:
    """One closing is logged, and the draw is made with the heads of another."""
    committed, first = house.commit(FLEET)
    closing, second = house.shut(committed, FLEET, HEADS)
    drawn_with = closed(committed, FEWER)
    return opened(house, committed, drawn_with, (first, second), FEWER, closing=entry_digest(closing)), trusted(house)


def other_strata(house: House) -> Shown:
    """The Verifier says of one owner that he has a chip less and of the other that he has one more."""
    committed, _ = house.commit(FLEET, by=("owner",))
    one, two = committed.commitment.strata
    wrong = replace(committed.commitment, strata=(replace(one, chips=one.chips - 1), replace(two, chips=two.chips + 1)))
    house.log = house.new_log()  # what is logged is the wrong one
    committed = DrawCommitment(commitment=wrong, secret=committed.secret)
    first = house.log.append(wrong.encode())
    closing, second = house.shut(committed, FLEET, HEADS)
    return opened(house, committed, closing, (first, second)), trusted(house)


def left_out(house: House) -> Shown:
    """A chip has a checkpoint that the Verifier cosigned in time, and was treated as silent."""
    log = NoteSigner(tlog.origin(ueid(9)), tlog.LOG, OTHER)
    text = tlog.Checkpoint(log.key.name, 10, bytes(32)).text
    note = tlog.Note(text, (log.sign(text), house.witness.sign(text, int(house.time))))
    (house.path / "cosigned").write_bytes(note.encode())
    return house.record(FLEET, FEWER), [*trusted(house), "--cosigned", house.path / "cosigned"]


# What else is known.


def another_verifier(house: House) -> Shown:
    other = NoteSigner("other", tlog.LOG, OTHER).key
    return house.record(FLEET, HEADS), [*trusted(house), "--log-key", str(other)]


def another_registry(house: House) -> Shown:
    return house.record(FLEET, HEADS, registry_root=OTHER), trusted(house)


def another_beacon(house: House) -> Shown:
    """The draw was committed to with a beacon of the Verifier's own choice."""
    options = trusted(house)
    house.beacon = LocalBeacon(beacon_key(1), period_s=3, genesis_s=PAST - 900, clock=lambda: house.time)
    return house.record(FLEET, HEADS), options


@pytest.mark.parametrize(
    ("cheat", "identifier"),
    [
        pytest.param(cheat, identifier, marks=pytest.mark.finding(identifier), id=identifier)
        for cheat, identifier in (
            (unlogged, "draw.entry.unlogged"),
            (unwitnessed, "draw.entry.unwitnessed"),
            (opened_first, "draw.entry.order"),
            (closing_of_another, "draw.entry.differs"),
            (two_closings, "draw.entry.repeated"),
            (committed_late, "draw.commitment.late"),
            (closed_late, "draw.closing.late"),
            (closed_early, "draw.closing.early"),
            (unopened, "draw.commitment.unopened"),
            (abandoned, "draw.abandoned"),
            (another_secret, "draw.secret.differs"),
            (another_population, "draw.population.differs"),
            (other_strata, "draw.strata.differs"),
            (another_registry, "draw.registry.differs"),
            (other_heads, "draw.heads.differs"),
            (left_out, "draw.head.omitted"),
            (another_value, "draw.beacon.value"),
            (another_beacon, "draw.beacon.differs"),
            (another_seed, "draw.seed.differs"),
            (another_sample, "draw.sample.differs"),
            (another_log, "draw.log.differs"),
            (another_verifier, "draw.log.differs"),
        )
    ],
)
def test_one_cheat_is_one_finding(house: House, cheat: Callable[[House], Shown], identifier: str) -> None:
    record, options = cheat(house)
    status, out, said = command("inspect", "verify-draw", save(house, record), *options, "--json")
    assert status == (0 if identifier == "draw.abandoned" else 1), said
    exactly(json.loads(out), identifier)


@pytest.mark.finding("draw.population.unregistered")
def test_a_chip_that_is_not_in_the_population_is_in_the_registry(house: House, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db", load_key(tmp_path / "key"))
    for number in range(20):
        registry.register(Chip(ueid=ueid(number), address="localhost:1", owner="acme"))
    published.write(registry, tmp_path / "registry-log")
    everybody = list(registry.population())
    for name, members in (("honest", everybody), ("without one", everybody[1:])):
        population = Population.of(members)
        root, size = registry.root(), registry.tree_size
        record = house.record(population, heads_of(population), registry_root=root, registry_size=size, inspection=name)
        path = save(house, record)
        status, out, said = command(
            "inspect",
            "verify-draw",
            path,
            "--registry",
            tmp_path / "registry-log",
            "--registry-root",
            root.hex(),
            "--json",
        )
        if name == "honest":
            assert (status, json.loads(out)["findings"]) == (0, []), said
        else:
            exactly(json.loads(out), "draw.population.unregistered")
            assert status == 1
    registry.close()


# What cannot be read at all.


def hurt(record: dict[str, Any], identifier: str) -> None:
    """Damages a record in a part that the identifier is about."""
    if identifier == "draw.malformed":
        record["drawn"][0] = "no chip"
    elif identifier == "draw.beacon":
        record["value"]["randomness"] = "00"
    else:
        record["beacon"]["hash"] = "00" * 32


@pytest.mark.parametrize(
    "identifier",
    [
        pytest.param(each, marks=pytest.mark.finding(each))
        for each in ("draw.malformed", "draw.beacon", "draw.beacon.info")
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(house: House, identifier: str) -> None:
    path = save(house, house.record(FLEET, HEADS))
    record = json.loads((path / "draw.json").read_text())
    hurt(record, identifier)
    (path / "draw.json").write_text(json.dumps(record))
    assert refused("inspect", "verify-draw", path) == identifier
