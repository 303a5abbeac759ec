"""Recomputing draws: honest ones pass, and each way to steer one is caught by the finding that names it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.draws import House, beacon_key, fleet, heads_of, ueid

from verifier.draw.derivation import DrawCommitment, close_draw, open_draw
from verifier.draw.log_entries import Abandonment, Closing, entry_digest, seed_of
from verifier.draw.own_log import PREFIX
from verifier.draw.recomputation import Trusted, verify_draw
from verifier.draw.record import DrawRecord, read_log, read_record, write_files
from verifier.model.strata import encode_heads
from weighbridge.attest import tlog
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.tlog import NoteSigner

FLEET = fleet()
HEADS = heads_of(FLEET, without={3, 17})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def ids(record: DrawRecord, house: House, **trusted: object) -> set[str]:
    """Returns what `verify_draw` finds, with the house's log at hand."""
    values = {"now_ms": int(house.time * 1000), "whole_log": house.whole_log(), **trusted}
    return {finding.id for finding in verify_draw(record, Trusted(**values))}  # type: ignore[arg-type]


@pytest.mark.parametrize("by", [(), ("owner",), ("site", "type"), ("owner", "site", "type")])
def test_an_honest_draw_passes_with_everything_that_can_be_trusted(house: House, by: tuple[str, ...]) -> None:
    record = house.record(FLEET, HEADS, by=by)
    assert set(record.certain) == {ueid(3), ueid(17)}
    assert len(record.drawn) == 8
    everything = {
        "log": house.log.key, "witnesses": [house.witness.key], "registry": bytes(32),
        "beacon": house.beacon.info.chain,
    }  # fmt: skip
    assert ids(record, house, **everything) == set()
    assert ids(record, house) == set()
    assert ids(record, house, whole_log=None) == set()


def test_a_second_draw_in_the_same_log_passes_too(house: House) -> None:
    house.record(FLEET, HEADS)
    assert ids(house.record(FLEET, HEADS, inspection="two"), house) == set()


def test_a_record_on_disk_is_the_same_whether_its_lines_are_inside_or_beside(house: House, tmp_path: Path) -> None:
    for name, size in (("small", 40), ("large", 3000)):
        population = fleet(size)
        record = house.record(population, heads_of(population, {1}), inspection=name)
        files = record.files()
        assert len(files) == (1 if name == "small" else 3)
        write_files(tmp_path / name, [*files, *((f"log/{path}", data) for path, data in house.log.files())])
        again = read_record(tmp_path / name)
        assert again == record
        assert again.files() == files
        assert read_log(tmp_path / name / "log") == house.whole_log()
        assert ids(again, house, whole_log=read_log(tmp_path / name / "log")) == set()


# What the Verifier might do.


def test_a_secret_chosen_after_the_value_is_caught(house: House) -> None:
    """The Verifier tries secrets until a chip that it dislikes is drawn."""
    committed, first = house.commit(FLEET)
    closing, second = house.shut(committed, FLEET, HEADS)
    value = house.value(committed.commitment.round)
    for number in range(1000):
        other = DrawCommitment(commitment=committed.commitment, secret=number.to_bytes(32, "big"))
        drawn = open_draw(other, closing, FLEET, HEADS, house.beacon.info, value)
        if ueid(7) in drawn.random:
            break
    third = house.log.append(drawn.opening.encode())
    assert ids(house.recorded(drawn, (first, second, third), FLEET, HEADS, value), house) == {"draw.secret.differs"}


def test_a_commitment_made_after_the_value_is_caught_by_its_time(house: House) -> None:
    """The Verifier knows the value, chooses a secret to its liking, and dates the commitment back."""
    now = int(house.time * 1000)
    house.time += 60
    committed, first = house.commit(FLEET, now_ms=now, cutoff_ms=now + 1000, margin_ms=1000)
    made = closed_at_once(committed)
    second = house.log.append(made.encode())
    value = house.value(committed.commitment.round)
    drawn = open_draw(committed, made, FLEET, HEADS, house.beacon.info, value)
    third = house.log.append(drawn.opening.encode())
    record = house.recorded(drawn, (first, second, third), FLEET, HEADS, value)
    assert ids(record, house) == {"draw.commitment.late", "draw.closing.late"}


def closed_at_once(committed: DrawCommitment) -> Closing:
    """Returns a closing with the date of the cut-off, whatever the time is."""
    return close_draw(committed.commitment, FLEET, HEADS, committed.commitment.cutoff_ms)[0]


def test_a_population_changed_after_the_commitment_is_caught(house: House) -> None:
    """The Verifier takes a chip out of the registry's export, and draws from the rest."""
    record = house.record(FLEET, HEADS)
    left = record.drawn[0]
    fewer = b"".join(
        line for line in record.population.splitlines(keepends=True) if not line.startswith(left.hex().encode())
    )
    found = ids(replace(record, population=fewer), house)
    assert {"draw.population.differs", "draw.strata.differs", "draw.sample.differs"} == found


def test_a_chip_moved_to_another_stratum_is_caught(house: House) -> None:
    record = house.record(FLEET, HEADS, by=("owner",))
    moved = record.population.replace(ueid(5).hex().encode() + b"\towner 1", ueid(5).hex().encode() + b"\towner 0")
    assert "draw.strata.differs" in ids(replace(record, population=moved), house)


def test_heads_changed_after_the_cut_off_are_caught(house: House) -> None:
    """The Verifier chooses among heads once it knows the value: each choice is another seed."""
    committed, first = house.commit(FLEET)
    closing, second = house.shut(committed, FLEET, HEADS)
    value = house.value(committed.commitment.round)
    fewer = {each: head for each, head in HEADS.items() if each != ueid(9)}
    made, _ = house.shut(committed, FLEET, fewer)
    drawn = open_draw(committed, made, FLEET, fewer, house.beacon.info, value)
    drawn = replace(drawn, opening=replace(drawn.opening, closing=entry_digest(closing)))
    third = house.log.append(drawn.opening.encode())
    found = ids(house.recorded(drawn, (first, second, third), FLEET, fewer, value), house)
    assert {"draw.heads.differs", "draw.entry.repeated"} <= found


def test_two_closings_to_choose_from_are_caught_by_the_whole_log_only(house: House) -> None:
    committed, first = house.commit(FLEET)
    fewer = {each: head for each, head in HEADS.items() if each != ueid(9)}
    house.shut(committed, FLEET, HEADS)
    closing, second = house.shut(committed, FLEET, fewer)
    value = house.value(committed.commitment.round)
    drawn = open_draw(committed, closing, FLEET, fewer, house.beacon.info, value)
    third = house.log.append(drawn.opening.encode())
    record = house.recorded(drawn, (first, second, third), FLEET, fewer, value)
    assert ids(record, house) == {"draw.entry.repeated"}
    assert ids(record, house, whole_log=None) == set()


def test_heads_closed_after_the_value_are_caught_by_their_time(house: House) -> None:
    committed, first = house.commit(FLEET)
    value = house.value(committed.commitment.round)
    made = closed_at_once(committed)
    second = house.log.append(made.encode())
    drawn = open_draw(committed, made, FLEET, HEADS, house.beacon.info, value)
    third = house.log.append(drawn.opening.encode())
    assert ids(house.recorded(drawn, (first, second, third), FLEET, HEADS, value), house) == {"draw.closing.late"}


def test_heads_closed_before_the_cut_off_are_caught(house: House) -> None:
    committed, first = house.commit(FLEET)
    made = closed_at_once(committed)
    second = house.log.append(made.encode())
    value = house.value(committed.commitment.round)
    drawn = open_draw(committed, made, FLEET, HEADS, house.beacon.info, value)
    third = house.log.append(drawn.opening.encode())
    assert ids(house.recorded(drawn, (first, second, third), FLEET, HEADS, value), house) == {"draw.closing.early"}


def test_a_head_that_was_left_out_is_caught_by_the_chip_that_had_it_cosigned(house: House) -> None:
    log = NoteSigner(tlog.origin(ueid(9)), tlog.LOG, bytes(31) + b"\x09")
    text = tlog.Checkpoint(log.key.name, 10, bytes(32)).text
    note = tlog.Note(text, (log.sign(text), house.witness.sign(text, int(house.time)))).encode()
    assert ids(house.record(FLEET, HEADS), house, cosigned=[note]) == set()
    fewer = {each: head for each, head in HEADS.items() if each != ueid(9)}
    assert ids(house.record(FLEET, fewer, inspection="two"), house, cosigned=[note]) == {"draw.head.omitted"}
    later = {**HEADS, ueid(9): (3, bytes(32))}
    assert ids(house.record(FLEET, later, inspection="three"), house, cosigned=[note]) == {"draw.head.omitted"}


def test_another_round_than_the_committed_one_is_caught(house: House) -> None:
    """The Verifier waits for a value that it likes better."""
    record = house.record(FLEET, HEADS)
    commitment = record.committed()
    value = house.value(commitment.round + 1)
    closing = record.closed()
    opening = record.opened()
    assert closing is not None
    assert opening is not None
    later = replace(commitment, round=commitment.round + 1)
    drawn = open_draw(
        DrawCommitment(commitment=later, secret=opening.secret), closing, FLEET, HEADS, house.beacon.info, value
    )
    drawn = replace(drawn, opening=replace(drawn.opening, commitment=entry_digest(commitment)))
    third = house.log.append(drawn.opening.encode())
    places = (record.commitment.proof.index, record.closing.proof.index, third)  # type: ignore[union-attr]
    found = ids(house.recorded(drawn, places, FLEET, HEADS, value), house)
    assert found == {"draw.beacon.differs", "draw.entry.repeated"}


def test_a_value_that_the_beacon_never_gave_is_caught(house: House) -> None:
    record = house.record(FLEET, HEADS)
    assert record.value is not None
    forged = replace(record.value, randomness=bytes(32))
    assert "draw.beacon.value" in ids(replace(record, value=forged), house)
    other = LocalBeacon(beacon_key(1), period_s=3, genesis_s=house.beacon.info.genesis_s, clock=lambda: house.time)
    value = other.value(record.value.number)
    assert "draw.beacon.value" in ids(replace(record, value=value), house)
    assert {"draw.beacon.differs"} <= ids(replace(record, value=value, beacon=other.info), house)
    assert "draw.beacon.differs" in ids(record, house, beacon=other.info.chain)


def test_a_seed_that_follows_from_nothing_is_caught(house: House) -> None:
    committed, first = house.commit(FLEET)
    closing, second = house.shut(committed, FLEET, HEADS)
    value = house.value(committed.commitment.round)
    drawn = open_draw(committed, closing, FLEET, HEADS, house.beacon.info, value)
    other = seed_of(committed.secret, bytes(32), bytes(32), value.randomness)
    third = house.log.append(replace(drawn.opening, seed=other).encode())
    assert ids(house.recorded(drawn, (first, second, third), FLEET, HEADS, value), house) == {"draw.seed.differs"}


def test_a_draw_that_leaves_out_a_chip_is_caught(house: House) -> None:
    record = house.record(FLEET, HEADS)
    spared, victim = record.drawn[0], next(each for each in FLEET.ueids if each not in record.drawn)
    for drawn in (record.drawn[1:], (victim, *record.drawn[1:]), record.drawn[::-1]):
        findings = verify_draw(replace(record, drawn=drawn), Trusted(now_ms=int(house.time * 1000)))
        assert [finding.id for finding in findings] == ["draw.sample.differs"]
        if drawn != record.drawn[::-1]:
            assert findings[0].expected == spared.hex()


def test_a_silent_chip_that_is_left_out_is_caught(house: House) -> None:
    record = house.record(FLEET, HEADS)
    assert ids(replace(record, certain=record.certain[1:]), house) == {"draw.sample.differs"}


def test_sample_sizes_changed_after_the_commitment_are_caught(house: House) -> None:
    """The Verifier logs another commitment with fewer samples, and shows that one in place of the first."""
    record = house.record(FLEET, HEADS)
    commitment = record.committed()
    fewer = replace(commitment, strata=tuple(replace(each, samples=each.samples - 1) for each in commitment.strata))
    place = house.log.append(fewer.encode())
    found = ids(replace(record, commitment=house.logged(place), drawn=record.drawn[:-1]), house)
    assert {"draw.entry.order", "draw.entry.differs", "draw.commitment.late"} <= found


def test_an_altered_commitment_is_not_in_the_log(house: House) -> None:
    record = house.record(FLEET, HEADS)
    altered = replace(record.committed(), cutoff_ms=record.committed().cutoff_ms + 1)
    found = ids(replace(record, commitment=replace(record.commitment, data=altered.encode())), house)
    assert "draw.entry.unlogged" in found


def test_two_logs_are_caught(house: House) -> None:
    """The Verifier makes several logs with one key and shows the one with the draw that it likes."""
    record = house.record(FLEET, HEADS)
    now = house.time
    house.log, house.time = house.new_log(), now - 60
    house.record(FLEET, HEADS, inspection="other")
    assert "draw.log.differs" in ids(record, house)


def test_a_log_of_another_verifier_is_caught(house: House) -> None:
    record = house.record(FLEET, HEADS)
    other = NoteSigner(PREFIX + "other", tlog.LOG, bytes(32)).key
    assert ids(record, house, log=other) == ids(record, house, log=other, whole_log=None) == {"draw.log.differs"}


def test_a_witness_that_did_not_cosign_is_missed(house: House) -> None:
    record = house.record(FLEET, HEADS)
    other = NoteSigner("example/other", tlog.WITNESS, bytes(32)).key
    assert ids(record, house, witnesses=[other]) == {"draw.entry.unwitnessed"}
    assert ids(replace(record, witnesses=()), house) == {"draw.entry.unwitnessed"}


def test_an_unopened_commitment_is_reported_once_it_is_overdue(house: House) -> None:
    """The Verifier does not like the sample, keeps silent, and draws again."""
    committed, first = house.commit(FLEET, inspection="disliked")
    house.shut(committed, FLEET, HEADS)
    record = house.record(FLEET, HEADS, inspection="liked")
    assert ids(record, house) == set()
    house.time = committed.commitment.open_by_ms / 1000 + 1
    assert ids(record, house) == {"draw.commitment.unopened"}
    alone = replace(
        record, commitment=house.logged(first), closing=None, opening=None, value=None, certain=(), drawn=(), heads=b""
    )
    assert ids(alone, house, whole_log=None) == {"draw.commitment.unopened"}


def test_a_draw_that_was_given_up_is_reported_with_its_secret(house: House) -> None:
    committed, first = house.commit(FLEET)
    _, second = house.shut(committed, FLEET, HEADS)
    end = Abandonment(
        commitment=entry_digest(committed.commitment), secret=committed.secret, reason="the disk was full"
    )
    third = house.log.append(end.encode())
    record = house.record(FLEET, HEADS, inspection="next")
    assert ids(record, house) == {"draw.abandoned"}
    gone = replace(
        record, commitment=house.logged(first), closing=house.logged(second), opening=house.logged(third), value=None,
        certain=(), drawn=(), heads=encode_heads(HEADS),
    )  # fmt: skip
    (finding,) = verify_draw(gone, Trusted(now_ms=int(house.time * 1000)))
    assert (finding.id, finding.severity, finding.subject) == ("draw.abandoned", "info", "draw one")
    assert finding.evidence["secret"] == committed.secret.hex()


def test_a_registry_of_another_root_is_caught(house: House) -> None:
    assert ids(house.record(FLEET, HEADS), house, registry=b"\x01" * 32) == {"draw.registry.differs"}
