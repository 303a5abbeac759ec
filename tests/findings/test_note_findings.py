"""Each finding about the files in which a chip's log is kept and proved, alone, out of `weighbridge chip log`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.console import command, refused
from support.exactly import exactly

from benchmarks.soak_chip import Rig, ask, connect
from weighbridge.attest import chip_log, tlog
from weighbridge.attest.tlog import NoteSigner

EVENTS = 3


@dataclass(frozen=True)
class House:
    """An exported log, a proof of one of its entries, and what the commands need to check them."""

    path: Path

    @property
    def root(self) -> list[str | Path]:
        """The option with the manufacturer's root."""
        return ["--manufacturer", self.path / "manufacturer" / "authority.pem"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    path = tmp_path_factory.mktemp("house")
    rig, house = Rig(path), House(path)
    rig.manufacturer.save(path / "manufacturer")
    rig.credentials.save(path / "verifier")
    with rig.chip() as chip:
        connection = connect(chip)
        for number in range(EVENTS):
            ask(connection, {"do": "event", "name": f"event {number}", "digest": bytes(32)})
        options = ["--credentials", path / "verifier", *house.root]
        assert command("chip", "log", "export", chip.address, path / "log", *options)[0] == 0
    log = chip_log.read_directory(path / "log", rig.manufacturer.certificate)
    (path / "proof").write_bytes(chip_log.prove(log, 2).encode())
    (path / "entry").write_bytes(log.entries[2])
    return house


def verify(house: House, proof: bytes, path: Path) -> tuple[int, str, str]:
    """Verifies a proof of the entry."""
    (path / "proof").write_bytes(proof)
    return command("chip", "log", "verify", path / "proof", house.path / "entry", *house.root, "--json")


def test_an_honest_log_and_its_proof_have_none(house: House, tmp_path: Path) -> None:
    for status, out, said in (
        command("chip", "log", "fsck", house.path / "log", *house.root, "--json"),
        verify(house, (house.path / "proof").read_bytes(), tmp_path),
    ):
        assert (status, json.loads(out)["findings"]) == (0, []), said


@pytest.mark.finding("merkle.proof")
def test_a_proof_of_another_place(house: House, tmp_path: Path) -> None:
    proof = (house.path / "proof").read_bytes().replace(b"index 2", b"index 1")
    status, out, _ = verify(house, proof, tmp_path)
    exactly(json.loads(out), "merkle.proof")
    assert status == 1


@pytest.mark.finding("chip.note")
def test_a_proof_that_is_cut_off(house: House, tmp_path: Path) -> None:
    status, out, _ = verify(house, (house.path / "proof").read_bytes()[:-1], tmp_path)
    exactly(json.loads(out), "chip.note")
    assert status == 1


def forge(log: Path) -> None:
    """Signs the checkpoint anew, without the chip's key."""
    note = tlog.parse_note((log / "checkpoint").read_bytes())
    forger = NoteSigner(tlog.parse_checkpoint(note.text).origin, tlog.LOG, bytes(32))
    (log / "checkpoint").write_bytes(tlog.Note(note.text, (forger.sign(note.text),)).encode())


def lose_entries(log: Path) -> None:
    (bundle,) = (log / "tile" / "entries").rglob("*.p/*")
    bundle.write_bytes(bundle.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("happens", "identifier"),
    [
        pytest.param(happens, identifier, marks=pytest.mark.finding(identifier), id=identifier)
        for happens, identifier in ((forge, "chip.note.signature"), (lose_entries, "chip.tiles"))
    ],
)
def test_a_log_that_is_not_whole(
    house: House, tmp_path: Path, happens: Callable[[Path], None], identifier: str
) -> None:
    shutil.copytree(house.path / "log", tmp_path / "log")
    happens(tmp_path / "log")
    assert refused("chip", "log", "fsck", tmp_path / "log", *house.root) == identifier
