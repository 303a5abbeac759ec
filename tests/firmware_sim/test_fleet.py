"""Many chips in one process: each is a chip of its own, and a Verifier checks which one answered."""

from __future__ import annotations

import json
import resource
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.drawn_inspection import inspect_drawn

from firmware_sim import fleet as fleets
from firmware_sim.fleet import Fleet, FleetServicer, chips_in, provision_fleet
from firmware_sim.service import ALLOW
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from verifier.contact.clients import ChipClient
from verifier.registry import Chip, Registry
from weighbridge.attest import tlog
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.tlog import NoteError
from weighbridge.attest.tokens import entry_digest, is_confidential, verify, verify_log
from weighbridge.core.errors import ChipError, UsageError
from weighbridge.core.merkle import leaf_hash, verify_inclusion
from weighbridge.rpc import endpoints

COUNT, SAMPLES = 200, 20


@dataclass(frozen=True)
class Site:
    """A fleet that runs, and what a Verifier needs."""

    path: Path
    manufacturer: CertificateAuthority
    authority: CertificateAuthority
    address: str
    ueids: list[bytes]

    def client(self, ueid: bytes = b"") -> ChipClient:
        return ChipClient(self.address, self.authority.issue_role("verifier", "verifier"), ueid)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("fleet")
    manufacturer, authority = CertificateAuthority.create("Manufacturer"), CertificateAuthority.create("Site")
    manufacturer.save(path / "manufacturer")
    authority.issue_role("chip", "fleet").save(path / "credentials")
    address_file = path / "address"
    command = [sys.executable, "-m", "weighbridge.cli", "chip", "fleet", "--dir", str(path / "chips")]
    command += ["--count", str(COUNT), "--manufacturer", str(path / "manufacturer"), "--rate", "1", "--json"]
    command += ["--credentials", str(path / "credentials"), "--address-file", str(address_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert said["address"] == address_file.read_text()
        yield Site(path, manufacturer, authority, said["address"], [bytes.fromhex(each) for each in said["ueids"]])
        process.terminate()
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()


def inspect(site: Site, path: Path, address: str, ueids: list[bytes], samples: int) -> dict[str, object]:
    """Registers chips at one address and inspects some of them, as a Verifier does."""
    registry = Registry(path / "registry.db")
    for ueid in ueids:
        registry.register(Chip(ueid=ueid, address=address))
    report = inspect_drawn(
        registry, samples, cache=path / "cache", image=site.path / "chips" / "firmware.img",
        verifier=site.authority.issue_role("verifier", "verifier"), manufacturer=site.manufacturer,
    )  # fmt: skip
    registry.close()
    return report


def test_every_chip_is_its_own(site: Site) -> None:
    """Heads of all chips over one port: each signed by its own key, over its own nonce, about its own log."""
    assert len(set(site.ueids)) == COUNT == len(list((site.path / "chips").glob("*/idevid.der")))

    def identify(ueid: bytes) -> tuple[bytes, bytes, bytes]:
        with site.client(ueid) as client:
            verified = client.identity(secrets.token_bytes(16), site.manufacturer.certificate)
        token = verified.token
        assert (token.body["size"], token.boot_count) == (1, 1)
        return token.ueid, bytes(token.body["log_key"]), token.boot_seed  # type: ignore[arg-type]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(identify, site.ueids[:50]))
    assert [ueid for ueid, _, _ in found] == site.ueids[:50]
    assert len({key for _, key, _ in found}) == len({seed for _, _, seed in found}) == 50


def test_an_inspection_draws_from_the_fleet(site: Site, tmp_path: Path) -> None:
    """Registered, drawn, read and verified over mutual TLS; nothing is found, each drawn chip counts as verified."""
    report = inspect(site, tmp_path, site.address, site.ueids, SAMPLES)
    assert report["findings"] == []
    counts = report["counts"]
    assert isinstance(counts, dict)
    assert (counts["registered"], counts["sampled"], counts["verified"]) == (COUNT, SAMPLES, SAMPLES)


def test_a_log_with_its_proofs(site: Site) -> None:
    root = site.manufacturer.certificate
    ueid = site.ueids[-1]
    with site.client(ueid) as client:
        note, token = client.checkpoint(b"n" * 16)
        head = verify(token, root).token
        entries = list(client.entries(int(head.body["size"])))
        proof = client.inclusion_proof(0, len(entries))
    assert [each.token.ueid for each in verify_log(entries, root)] == [ueid] * len(entries)
    assert entry_digest(entries[-1]) == head.body["last"]
    key = tlog.NoteKey(tlog.origin(ueid), tlog.LOG, bytes(head.body["log_key"]))  # type: ignore[arg-type]
    checkpoint, _ = tlog.open_checkpoint(note, key)
    verify_inclusion(leaf_hash(entries[0]), 0, checkpoint.size, proof, checkpoint.root)


def test_a_call_must_name_a_chip_of_the_fleet(site: Site) -> None:
    for ueid in (b"", b"\x01" + bytes(16), bytes(4000)):
        with site.client(ueid) as client, pytest.raises(UsageError, match="fleet"):
            client.head(b"n" * 16)
    with endpoints.channel(site.address, site.authority.issue_role("verifier", "v"), "chip") as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]
        twice = [(endpoints.CHIP, site.ueids[0]), (endpoints.CHIP, site.ueids[1])]
        with pytest.raises(UsageError, match="name one chip"):
            endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=b"n" * 16), metadata=twice)


@contextmanager
def served(site: Site, servicer: FleetServicer) -> Iterator[str]:
    server, address = endpoints.server(Credentials.load(site.path / "credentials"), allow=ALLOW)
    chip_pb2_grpc.add_ChipServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    server.start()
    yield address
    server.stop(grace=1).wait()


def test_a_host_that_answers_with_another_chip_is_caught(site: Site, tmp_path: Path) -> None:
    """A host with one clean chip cannot pass it off as all of them."""
    provision_fleet(tmp_path / "chips", 4, site.manufacturer, (site.path / "chips" / "firmware.img").read_bytes())

    class Lying(FleetServicer):
        def _chosen(self, context: object) -> fleets.Firmware:
            return self._fleet.firmware(self._fleet.ueids[0])

    with Fleet(tmp_path / "chips", rate_per_day=1.0) as fleet:
        for servicer, caught in ((FleetServicer(fleet), 0), (Lying(fleet), 3)):
            with served(site, servicer) as address:
                path = tmp_path / str(caught)
                path.mkdir()
                report = inspect(site, path, address, fleet.ueids, 4)
            findings = report["findings"]
            assert isinstance(findings, list)
            assert {each["id"] for each in findings} == ({"chip.identity.mismatch"} if caught else set())
            blamed = {each["subject"].split()[1] for each in findings}
            assert blamed == {ueid.hex() for ueid in fleet.ueids[1:][:caught]}


def test_chips_boot_when_they_are_asked_for_and_only_once(tmp_path: Path) -> None:
    manufacturer = CertificateAuthority.create("Manufacturer")
    provision_fleet(tmp_path, 3, manufacturer)
    with Fleet(tmp_path) as fleet:
        assert fleet.booted == 0
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: id(fleet.firmware(fleet.ueids[1])), range(16)))
        assert (len(found), fleet.booted) == (1, 1)
        with pytest.raises(UsageError, match="Another process"), Fleet(tmp_path) as second:
            second.firmware(fleet.ueids[1])
    with Fleet(tmp_path) as fleet:  # Restarted, each chip goes on where its log ended.
        sizes = [verify(fleet.firmware(ueid).head(b"n" * 16), manufacturer.certificate).token for ueid in fleet.ueids]
    assert [(each.body["size"], each.boot_count) for each in sizes] == [(1, 1), (2, 2), (1, 1)]


def test_a_broken_chip_costs_no_other(tmp_path: Path) -> None:
    provision_fleet(tmp_path, 2, CertificateAuthority.create("Manufacturer"))
    with Fleet(tmp_path) as fleet:
        (tmp_path / fleet.ueids[0].hex() / "secret.bin").write_bytes(bytes(32))
        with pytest.raises(ChipError, match="belong together"):
            fleet.firmware(fleet.ueids[0])
        assert fleet.firmware(fleet.ueids[1]).device.ueid == fleet.ueids[1]


def test_missing_chips_are_made_and_the_others_kept(tmp_path: Path) -> None:
    """Also after a fleet was cut off while it was made."""
    manufacturer = CertificateAuthority.create("Manufacturer")
    provision_fleet(tmp_path, 2, manufacturer)
    before = set(chips_in(tmp_path))
    (tmp_path / before.copy().pop().hex()).rename(tmp_path / "new-0")
    kept = set(chips_in(tmp_path))
    provision_fleet(tmp_path, 3, manufacturer)
    assert len(kept) == 1
    assert kept < set(chips_in(tmp_path))
    assert len(set(chips_in(tmp_path))) == 3
    assert not list(tmp_path.glob("new-*"))


def test_chips_that_are_on_take_interrupts(tmp_path: Path) -> None:
    """20 a second for each chip: that a chip has none in 3 seconds has a chance of 1e-26."""
    provision_fleet(tmp_path, 3, CertificateAuthority.create("Manufacturer"))
    with Fleet(tmp_path, rate_per_day=20.0, clock_speed=86_400.0) as fleet:
        on = [fleet.firmware(ueid) for ueid in fleet.ueids[:2]]
        time.sleep(3)
        assert all(len(list(each.entries(0, 2))) == 2 for each in on)
        assert fleet.booted == 2


def test_the_chips_of_a_fleet_may_trust_a_witness(tmp_path: Path) -> None:
    manufacturer = CertificateAuthority.create("Manufacturer")
    provision_fleet(tmp_path, 1, manufacturer)
    own, other = (tlog.NoteSigner(f"example/{name}", tlog.WITNESS, name.encode() * 32) for name in "ab")
    with Fleet(tmp_path, witness=own.key) as fleet:
        chip = fleet.firmware(fleet.ueids[0])
        ((_, entry),) = chip.entries(0, 1)
        assert verify(entry, manufacturer.certificate).token.body["witness"] == own.key.public
        note = tlog.parse_note(chip.checkpoint(b"n" * 16)[0])
        with pytest.raises(NoteError):
            chip.add_cosignature(note.with_signature(other.sign(note.text, 1)).encode())
        assert chip.cosigned == b""
        chip.add_cosignature(note.with_signature(own.sign(note.text, 1)).encode())
        assert tlog.parse_note(chip.cosigned).verify(own.key) == [1]
    with Fleet(tmp_path) as fleet, pytest.raises(UsageError, match="trusts no witness"):
        fleet.firmware(fleet.ueids[0]).add_cosignature(note.encode())


def test_more_chips_than_open_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provision_fleet(tmp_path, 2, CertificateAuthority.create("Manufacturer"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(fleets, "FILES_PER_CHIP", hard)
    with pytest.raises(UsageError, match="open files"):
        Fleet(tmp_path)
    with pytest.raises(UsageError, match="holds no chips"):
        Fleet(tmp_path / "nothing")
    assert threading.active_count() < 100


def test_the_command_line_reads_one_chip_of_a_fleet(site: Site) -> None:
    operator = site.path / "operator"
    site.authority.issue_role("operator", "o").save(operator)
    common = ["--credentials", str(operator), "--manufacturer", str(site.path / "manufacturer" / "authority.pem")]
    for command, wanted, code, says in (
        (["log", "read"], site.ueids[3].hex(), 0, "boot"),
        (["show"], site.ueids[3].hex(), 0, site.ueids[3].hex()),
        (["log", "read"], "", 2, "fleet"),
        (["show"], "zz", 2, "no UEID"),
    ):
        whole = [sys.executable, "-m", "weighbridge.cli", "chip", *command, site.address, *common, "--ueid", wanted]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert says in (done.stderr if code else done.stdout)


@pytest.mark.parametrize("confidential", [False, True])
def test_a_fleet_boots_confidentially_if_it_is_told_to(tmp_path: Path, confidential: bool) -> None:
    manufacturer, authority = CertificateAuthority.create("Manufacturer"), CertificateAuthority.create("Site")
    manufacturer.save(tmp_path / "manufacturer")
    authority.issue_role("chip", "fleet").save(tmp_path / "credentials")
    command = [sys.executable, "-m", "weighbridge.cli", "chip", "fleet", "--dir", str(tmp_path / "chips")]
    command += ["--count", "1", "--manufacturer", str(tmp_path / "manufacturer"), "--json"]
    command += ["--credentials", str(tmp_path / "credentials"), "--address-file", str(tmp_path / "address")]
    command += ["--confidential"] if confidential else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        (ueid,) = (bytes.fromhex(each) for each in said["ueids"])
        with ChipClient(said["address"], authority.issue_role("verifier", "verifier"), ueid) as client:
            boot = verify(next(iter(client.entries(1))), manufacturer.certificate).token
        assert is_confidential(boot) is confidential
    finally:
        process.kill()
        process.wait()
