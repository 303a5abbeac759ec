"""The Verifier's own log: durable, provable, and the same after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.draws import House

from verifier.draw.own_log import PREFIX, OwnLog
from verifier.draw.record import read_log, write_files
from weighbridge.attest import tlog
from weighbridge.core import merkle
from weighbridge.core.errors import ProofError, UsageError


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def test_every_entry_is_proved_by_the_checkpoint_of_its_own_time(house: House) -> None:
    for number in range(20):
        house.time += 10
        assert house.log.append(b"entry %d" % number) == number
    for number in range(20):
        proof = house.log.prove(number)
        checkpoint = tlog.verify_proof(proof, b"entry %d" % number, house.log.key, [house.witness.key])
        assert (checkpoint.size, checkpoint.origin) == (number + 1, PREFIX + "example")
        assert proof.checkpoint.verify(house.witness.key) == [int(house.time) - 10 * (19 - number)]
        with pytest.raises(ProofError):
            tlog.verify_proof(proof, b"another", house.log.key)


def test_an_entry_is_added_once(house: House) -> None:
    assert [house.log.append(data) for data in (b"a", b"b", b"a", b"c", b"b")] == [0, 1, 0, 2, 1]
    assert house.log.entries() == [b"a", b"b", b"c"]


def test_the_log_goes_on_after_a_restart(house: House) -> None:
    signer = tlog.NoteSigner(PREFIX + "example", tlog.LOG, bytes(31) + b"\x01")
    for number in range(9):
        # Every time as another process would open it.
        OwnLog(house.logs[0].session, signer, [house.witness]).append(bytes([number + 1]))
    last = house.log.prove(8)
    checkpoint = tlog.verify_proof(last, bytes([9]), signer.key, [house.witness.key])
    assert checkpoint.root == merkle.root([merkle.leaf_hash(bytes([n + 1])) for n in range(9)])


def test_the_log_is_a_directory_of_tiles(house: House, tmp_path: Path) -> None:
    for number in range(300):
        house.log.append(number.to_bytes(2))
    write_files(tmp_path / "log", list(house.log.files()))
    checkpoint, entries = read_log(tmp_path / "log")
    assert entries == [number.to_bytes(2) for number in range(300)]
    opened, _ = tlog.open_checkpoint(checkpoint, house.log.key)
    assert opened.root == merkle.root(list(map(merkle.leaf_hash, entries)))


def test_wrong_sizes_and_places_are_refused(house: House) -> None:
    for data in (b"", bytes(65_536)):
        with pytest.raises(UsageError, match="65535"):
            house.log.append(data)
    for ask in (house.log.entry, house.log.prove):
        with pytest.raises(UsageError, match="no entry 0"):
            ask(0)
    assert list(house.log.files()) == []
