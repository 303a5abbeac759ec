"""What each finding about a chip's process, store and services takes to appear: real chips, real processes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.exactly import alone, found, refused
from support.station import Station

from benchmarks.soak_chip import COUNTERS, NOTHING, ask, connect
from firmware_sim import ChipProcess, Shim, provision
from firmware_sim.nvlog import MIN_CAPACITY
from verifier.contact.clients import ChipClient
from verifier.contact.witness import Witness, load_signer
from verifier.registry import Registry
from weighbridge.core.errors import ChipError


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        load_signer(station.root / "witness-key")
        station.chip("well")
        station.chip("small", nvram=MIN_CAPACITY, witness_key=station.root / "witness-key.pub", patience_s=0.2)
        yield station


def log_events(station: Station, name: str, count: int) -> None:
    with Shim.connect(station.chips[name].socket) as shim:
        for number in range(count):
            shim.log_event(f"event {number}", bytes(32))


def test_a_chip_that_is_well_has_no_finding(station: Station) -> None:
    assert found(station.inspect("well")) == set()


@pytest.mark.finding("chip.snapshot.unasked")
def test_a_snapshot_that_nobody_asked_for(station: Station) -> None:
    """The chip takes it once it has asked."""
    with closing(connect(station.chips["well"])) as connection:
        report = {"do": "snapshot", **NOTHING, **COUNTERS}
        assert (ask(connection, report) or {})["error"] == "chip.snapshot.unasked"
        assert (ask(connection, {"do": "force"}) or {})["ok"]
        assert (ask(connection, report) or {})["ok"]


@pytest.mark.finding("identity.role")
def test_a_prover_that_reads_a_chips_log(station: Station) -> None:
    """A Verifier may."""
    address, root = station.chips["well"].address, station.root
    with ChipClient(address, station.verifier) as client:
        assert client.head(bytes(8))
    asked: list[str | Path] = ["--credentials", root / "prover", "--manufacturer", root / "manufacturer.pem"]
    assert refused("chip", "log", "read", address, *asked) == "identity.role"


@pytest.mark.finding("identity.ueid")
def test_a_certificate_that_does_not_name_the_chip(station: Station, tmp_path: Path) -> None:
    """The chip notices before its witness does. With its own certificate it starts."""
    own = tmp_path / "own"
    arguments: list[str | Path] = [
        *("chip", "boot", "--dir", tmp_path / "chip", "--socket", tmp_path / "socket", "--rate", "0"),
        *("--address-file", tmp_path / "address", "--witness", "127.0.0.1:9"),
    ]
    ueid = provision(tmp_path / "chip", station.manufacturer, image=station.image)
    assert refused(*arguments, "--credentials", station.root / "chip") == "identity.ueid"
    station.authority.issue_role("chip", "own", ueids=[ueid]).save(own)
    with (
        ChipProcess(tmp_path / "chip", own, witness="127.0.0.1:9") as chip,
        ChipClient(chip.address, station.verifier) as client,
    ):
        assert client.head(bytes(8))


@pytest.fixture(scope="module")
def refusal(station: Station) -> ChipError:
    """What a program is told by a chip whose NVRAM it filled."""
    with pytest.raises(ChipError) as caught:
        log_events(station, "small", MIN_CAPACITY // 1000)
    return caught.value


@pytest.mark.finding("chip.log.full")
def test_a_program_on_a_chip_that_nobody_reads(refusal: ChipError) -> None:
    assert refusal.reason == "chip.log.full"


@pytest.mark.finding("chip.log.released")
def test_a_verifier_that_comes_after_entries_were_released(
    station: Station, refusal: ChipError, tmp_path: Path
) -> None:
    """The first one witnessed them, so they made room; a second one, with the same key, cannot see them any more."""
    root, signer = station.manufacturer.certificate, load_signer(station.root / "witness-key")
    first = Witness(station.registry, root, signer)
    assert found(station.inspect("small", given={"witness": first})) == set()
    log_events(station, "small", 1)  # there is room again
    before, station.registry = station.registry, Registry(tmp_path / "second.db")
    try:
        station.register("small")
        second = Witness(station.registry, root, signer)
        alone(station.inspect("small", given={"witness": second}), "chip.log.released")
    finally:
        station.registry.close()
        station.registry = before


@pytest.mark.finding("chip.log.write")
def test_a_chip_whose_store_takes_no_more(station: Station) -> None:
    """The program is told so, and what was acknowledged before can still be read."""
    process = station.chip("stuck")
    with Shim.connect(process.socket) as shim:
        shim.log_event("before", bytes(32))
        size = (station.root / "chips" / "stuck" / "nvram" / "log.bin").stat().st_size
        assert process._process is not None
        resource.prlimit(process._process.pid, resource.RLIMIT_FSIZE, (size, size))
        with pytest.raises(ChipError) as caught:
            shim.log_event("after", bytes(32))
        assert caught.value.reason == "chip.log.write"
    assert found(station.inspect("stuck")) == set()


@pytest.mark.finding("chip.log.damaged")
def test_an_entry_that_was_damaged_where_the_chip_keeps_it(station: Station) -> None:
    station.chip("worn")
    path = station.root / "chips" / "worn" / "nvram" / "log.bin"
    content = bytearray(path.read_bytes())
    content[200] ^= 4
    path.write_bytes(content)
    alone(station.inspect("worn"), "chip.log.damaged")


@pytest.mark.finding("chip.unreachable")
def test_a_chip_that_lost_its_power(station: Station) -> None:
    station.chip("dead")
    assert found(station.inspect("dead")) == set()
    station.chips["dead"].kill()
    alone(station.inspect("dead"), "chip.unreachable")
