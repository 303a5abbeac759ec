"""`weighbridge chip log ...` against a real chip's log, whole and altered in every way."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import weighbridge
from support.damage import flipped

from benchmarks.soak_chip import Rig, ask, connect
from verifier.contact.log_reading import acknowledge, read_log
from verifier.registry import Chip
from weighbridge.attest import tiles, tlog
from weighbridge.attest.tokens import MAX_TOKEN_BYTES

EVENTS = 5


@dataclass(frozen=True)
class House:
    path: Path
    rig: Rig

    @property
    def root(self) -> list[str]:
        return ["--manufacturer", str(self.path / "manufacturer" / "authority.pem")]

    @property
    def witness(self) -> list[str]:
        return ["--witness-key", str(self.path / "witness-key.pub")]

    @property
    def chip(self) -> Path:
        return self.path / "chip"

    @property
    def log(self) -> Path:
        return self.path / "exported"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A chip with a cosigned log that was exported twice, the second time after one more event; it does not run now."""
    path = tmp_path_factory.mktemp("house")
    rig = Rig(path)
    rig.manufacturer.save(path / "manufacturer")
    rig.credentials.save(path / "verifier")
    house = House(path, rig)
    with rig.chip() as chip:
        connection = connect(chip)
        for number in range(EVENTS):
            ask(connection, {"do": "event", "name": f"event {number}", "digest": bytes(32)})
        rig.registry.register(Chip(ueid=rig.ueid, address=chip.address))
        log = read_log(rig.registry.chip(rig.ueid), rig.credentials, rig.manufacturer.certificate, rig.witness)
        acknowledge(log, rig.credentials, rig.witness)
        options = ["--credentials", str(path / "verifier"), *house.root]
        assert weighbridge("chip", "log", "export", chip.address, str(house.log), *options)[0] == 0
        ask(connection, {"do": "event", "name": "later", "digest": bytes(32)})
        assert weighbridge("chip", "log", "export", chip.address, str(path / "later"), *options)[0] == 0
        code, out, _ = weighbridge("chip", "log", "read", chip.address, *options, "--json")
        assert code == 0
        assert [row["name"] for row in json.loads(out)["entries"]][-1] == "later"
    return house


def found(*arguments: str) -> tuple[int, list[str]]:
    """Runs a command with --json and returns its exit code and the identifiers of its findings."""
    code, out, _ = weighbridge("chip", "log", *arguments, "--json")
    return code, [finding["id"] for finding in json.loads(out)["findings"]]


def copy(source: Path, tmp_path: Path) -> Path:
    shutil.copytree(source, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_whole_log_has_no_finding(house: House) -> None:
    assert found("fsck", str(house.log), *house.root, *house.witness) == (0, [])
    assert found("fsck", str(house.path / "later"), *house.root) == (0, [])
    assert found("fsck", str(house.chip)) == (0, [])
    code, out, _ = weighbridge("chip", "log", "fsck", str(house.chip))
    assert (code, out) == (0, f"{EVENTS + 2} entries, 0 findings\n")


def test_altered_directories_are_found_out(house: House, tmp_path: Path) -> None:
    log = copy(house.log, tmp_path)
    bundle = log / tiles.tile_path(None, 0, EVENTS + 1)
    entries = tiles.decode_bundle(bundle.read_bytes())
    swapped = [entries[0], entries[2], entries[1], *entries[3:]]
    bundle.write_bytes(tiles.encode_bundle(swapped))
    code, ids = found("fsck", str(log), *house.root)
    assert (code, ids) == (1, ["chip.tiles", "chip.log.head", "chip.log.counter"])
    bundle.write_bytes(tiles.encode_bundle(entries[:-1]))
    assert found("fsck", str(log), *house.root) == (1, ["chip.tiles"])
    bundle.write_bytes(tiles.encode_bundle(entries))
    tile = log / tiles.tile_path(0, 0, EVENTS + 1)
    tile.write_bytes(flipped(tile.read_bytes()))
    assert found("fsck", str(log), *house.root) == (1, ["chip.tiles"])
    later = (house.path / "later" / "checkpoint").read_bytes()
    (log / "checkpoint").write_bytes(later)  # not the one that the head binds
    assert found("fsck", str(log), *house.root) == (1, ["chip.log.head"])
    assert found("fsck", str(house.path / "later"), *house.root, *house.witness) == (1, ["chip.note.signature"])


def test_a_damaged_chip_is_found_out_and_left_as_it_is(house: House, tmp_path: Path) -> None:
    chip = copy(house.chip, tmp_path)
    path = chip / "nvram" / "log.bin"
    good = path.read_bytes()
    path.write_bytes(good + b"\x40\x04\x00\x00torn")
    code, out, _ = weighbridge("chip", "log", "fsck", str(chip), "--json")
    assert (code, json.loads(out)["torn_bytes"], json.loads(out)["findings"]) == (0, 8, [])
    for altered, reason in (
        (flipped(good, 200), "chip.log.damaged"),
        (good[:8], "chip.log.rolled_back"),
        (b"", "chip.log.rolled_back"),
    ):
        path.write_bytes(altered)
        assert found("fsck", str(chip)) == (1, [reason])
        assert path.read_bytes() == altered


def test_entries_that_are_no_tokens_are_found(house: House, tmp_path: Path) -> None:
    """A Prover who rewrites records and counter together cannot sign."""
    from firmware_sim.nvlog import NonVolatileLog

    chip = copy(house.chip, tmp_path)
    with NonVolatileLog(chip) as log:
        log.append(b"forged")
    assert found("fsck", str(chip)) == (1, ["chip.token"])


def test_a_proof_is_verified_offline(house: House, tmp_path: Path) -> None:
    proof = tmp_path / "entry.tlog-proof"
    assert weighbridge("chip", "log", "prove", str(house.log), "3", *house.root, "--out", str(proof))[0] == 0
    entry = proof.with_suffix(".token")
    code, out, _ = weighbridge("chip", "log", "verify", str(proof), str(entry), *house.root, *house.witness, "--json")
    assert code == 0
    assert json.loads(out)["entries"][0] | {"time_ms": 0} == {
        **{"index": 3, "kind": "event", "boot": 1, "time_ms": 0, "name": "event 2"},
    }
    assert len(entry.read_bytes()) <= MAX_TOKEN_BYTES
    content, good = proof.read_bytes(), entry.read_bytes()
    parsed = tlog.parse_proof(content)
    attempts: list[tuple[bytes, bytes, str]] = [
        (content.replace(b"index 3", b"index 4"), good, "merkle.proof"),
        (content, tiles.decode_bundle((house.log / "tile/entries/000.p/6").read_bytes())[2], "merkle.proof"),
        (content, flipped(good), "chip.token"),
        (content[:-1], good, "chip.note"),
        (tlog.Proof(3, parsed.hashes, parsed.checkpoint).encode(), good, "chip.token"),
        (tlog.Proof(3, parsed.hashes, parsed.checkpoint, good).encode(), good, "chip.token"),
    ]
    for data, token, reason in attempts:
        proof.write_bytes(data)
        entry.write_bytes(token)
        assert found("verify", str(proof), str(entry), *house.root) == (1, [reason])
    assert weighbridge("chip", "log", "prove", str(house.log), "3", *house.root, "--out", str(proof))[0] == 2
    assert weighbridge("chip", "log", "prove", str(house.log), "99", *house.root, "--out", str(proof) + "2")[0] == 2


def test_two_histories_come_out_when_checkpoints_are_exchanged(house: House, tmp_path: Path) -> None:
    """One Verifier has the later log, the other a checkpoint: of the same history, or of one forged with the key."""
    later, early = str(house.path / "later"), house.log / "checkpoint"
    assert found("compare", later, str(early), *house.root) == (0, [])
    code, _, err = weighbridge("chip", "log", "compare", str(house.log), later + "/checkpoint", *house.root)
    assert (code, "longer log" in err) == (2, True)
    signer = fork_signer(house)
    text = tlog.Checkpoint(tlog.origin(house.rig.ueid), EVENTS, bytes(32)).text
    (tmp_path / "fork").write_bytes(tlog.Note(text, (signer.sign(text),)).encode())
    code, out, _ = weighbridge("chip", "log", "compare", later, str(tmp_path / "fork"), *house.root, "--json")
    (finding,) = json.loads(out)["findings"]
    assert (code, finding["id"]) == (1, "chip.log.fork")
    assert finding["evidence"]["other"] == (tmp_path / "fork").read_text()


def fork_signer(house: House) -> tlog.NoteSigner:
    """The chip's own log key, as a second copy of the chip would have it."""
    from firmware_sim import device
    from firmware_sim.outbox import log_seed

    return tlog.NoteSigner(tlog.origin(house.rig.ueid), tlog.LOG, log_seed(device.boot(house.chip).key))


def test_bad_input_is_exit_code_2(house: House, tmp_path: Path) -> None:
    attempts: list[list[Any]] = [
        ["fsck", house.log],
        ["fsck", tmp_path, *house.root],
        ["fsck", house.log, "--manufacturer", tmp_path / "none.pem"],
        ["fsck", house.log, *house.root, "--witness-key", tmp_path / "none"],
        ["export", "127.0.0.1:9", tmp_path / "x", "--credentials", house.path / "verifier", *house.root],
        ["verify", tmp_path / "none", tmp_path / "none", *house.root],
    ]
    for arguments in attempts:
        code, out, err = weighbridge("chip", "log", *map(str, arguments))
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
