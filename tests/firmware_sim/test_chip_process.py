"""The chip as a process: restarts, power cuts, damage, roles, and its randomness."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.chip_station import ChipStation

from firmware_sim import ChipProcess
from firmware_sim.frames import Connection, encode
from firmware_sim.link import Interrupts
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest import tokens
from weighbridge.core.errors import ChipError, IdentityError, UsageError
from weighbridge.rpc import endpoints


@pytest.fixture
def station(tmp_path: Path) -> ChipStation:
    return ChipStation.create(tmp_path)


def attach(chip: ChipProcess) -> Connection:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(str(chip.socket))
    return Connection(end)


def ask(connection: Connection, message: dict[str, object]) -> dict[str, object]:
    connection.send(message)
    answer = connection.receive()
    assert answer is not None
    return answer


def hello(connection: Connection) -> list[dict[str, object]]:
    """Attaches a workload; returns the interrupts that came before the chip's answer."""
    connection.send({"do": "hello"})
    before: list[dict[str, object]] = []
    while (message := connection.receive()) is not None and "interrupt" in message:
        before.append(message)
    assert message is not None
    assert message["ok"] is True
    return before


def snapshot(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        **dict.fromkeys(["held", "stall_us", "unobserved"], 0),
        **{"do": "snapshot", "leaves": b"", "weights": b"", "safepoint": False},
        **{"head": b"", "running": b"", "step": -1, "op": -1},
    }
    return {**fields, **changes}


def test_a_restart_continues_the_log(station: ChipStation) -> None:
    with station.chip() as chip:
        ask(connection := attach(chip), {"do": "event", "name": "one", "digest": bytes(32)})
        connection.close()
        first = station.log(chip)
        chip.stop()
        chip.start()
        second = station.log(chip)
    assert [token.kind for token in second] == ["boot", "event", "boot"]
    assert second[:2] == first
    assert [token.boot_count for token in second] == [1, 1, 2]


def test_a_power_cut_loses_nothing_acknowledged(station: ChipStation) -> None:
    with station.chip() as chip:
        connection = attach(chip)
        for number in range(5):
            ask(connection, {"do": "event", "name": f"event {number}", "digest": bytes(32)})
        chip.kill()
        with (station.path / "chip" / "nvram" / "log.bin").open("ab") as file:
            file.write(b"\x40\x04\x00\x00" + bytes(50))  # A record that the power cut tore.
        chip.start()
        log = station.log(chip)
    assert [token.body.get("name") for token in log] == [None, *(f"event {n}" for n in range(5)), None]


def test_damage_below_the_counter_stops_the_chip(station: ChipStation) -> None:
    with station.chip() as chip:
        chip.stop()
        chip.start()  # A second entry: the newest would be mended.
        chip.stop()
        path = station.path / "chip" / "nvram" / "log.bin"
        content = bytearray(path.read_bytes())
        content[100] ^= 4
        path.write_bytes(content)
        with pytest.raises(ChipError, match=r"chip\.log\.damaged") as caught:
            chip.start()
    assert caught.value.reason == "chip.start"


def test_damage_while_running_reaches_the_verifier_as_one_error(station: ChipStation) -> None:
    with station.chip() as chip:
        path = station.path / "chip" / "nvram" / "log.bin"
        content = bytearray(path.read_bytes())
        content[100] ^= 4
        path.write_bytes(content)
        with pytest.raises(ChipError) as caught:
            station.log(chip)
        assert caught.value.reason == "chip.log.damaged"
        assert caught.value.details == {"index": "0"}


def test_one_process_for_one_chip(station: ChipStation) -> None:
    with station.chip() as chip, pytest.raises(ChipError, match="Another process"):
        station.chip().start()
    chip.stop()


def test_an_unprovisioned_chip_does_not_start(station: ChipStation) -> None:
    chip = ChipProcess(station.path / "none", station.path / "credentials")
    with pytest.raises(ChipError, match="provision"):
        chip.start()


def test_asked_to_stop_it_stops(station: ChipStation) -> None:
    with station.chip() as chip:
        process = chip._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_wrong_options_are_refused(station: ChipStation) -> None:
    with pytest.raises(ChipError, match="usage"):
        station.chip(clock_speed=-1.0).start()


def test_a_dead_chip_is_unreachable(station: ChipStation) -> None:
    with station.chip() as chip:
        chip.kill()
        with pytest.raises(ChipError) as caught:
            station.log(chip)
    assert caught.value.reason == "chip.unreachable"


def test_identity_over_the_wire(station: ChipStation) -> None:
    with station.chip() as chip, endpoints.channel(chip.address, station.verifier(), "chip") as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)
        answer = endpoints.call(stub.GetIdentity, chip_pb2.GetIdentityRequest(nonce=b"12345678"))
        verified = tokens.verify(answer.token, station.manufacturer.certificate)
        assert verified.token.nonce == b"12345678"
        assert verified.identity.ueid == answer.ueid
        assert verified.identity.tcb.measurement == answer.firmware_digest
        assert verified.identity.tcb.version == answer.firmware_version
        with pytest.raises(UsageError):
            endpoints.call(stub.GetIdentity, chip_pb2.GetIdentityRequest(nonce=b"short"))
        with pytest.raises(UsageError):
            list(endpoints.stream(stub.ListEntries, chip_pb2.ListEntriesRequest(start=0, end=1 << 40)))


def test_only_a_verifier_opens_snapshots(station: ChipStation) -> None:
    with station.chip() as chip:
        operator = station.authority.issue_role("operator", "operator")
        with endpoints.channel(chip.address, operator, "chip") as channel:
            stub = chip_pb2_grpc.ChipServiceStub(channel)
            assert endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=bytes(8))).token
            with pytest.raises(IdentityError):
                list(endpoints.stream(stub.OpenSnapshot, chip_pb2.OpenSnapshotRequest(index=0)))


def test_hostile_shims_harm_nobody(station: ChipStation) -> None:
    """Garbage drops the link, nonsense is refused, and the next shim and the Verifier are served as before."""
    with station.chip(allow_forced=True) as chip:
        for garbage in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", encode({"do": "hello"})[:-2], b""):
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            end.connect(str(chip.socket))
            end.sendall(garbage)
            end.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # What it did not read resets the link.
                assert end.recv(1) == b""
            end.close()
        connection = attach(chip)
        refused: list[tuple[dict[str, object], str]] = [
            ({}, "format.malformed"),
            ({"do": "explode"}, "format.malformed"),
            ({"do": "hello", "more": 1}, "format.malformed"),
            ({"do": "event", "name": 3, "digest": bytes(32)}, "format.malformed"),
            ({"do": "event", "name": "x", "digest": b""}, "chip.token"),
            ({"do": "event", "name": "interrupt-idle", "digest": bytes(32)}, "usage"),
            ({"do": "event", "name": "workload-detached", "digest": bytes(32)}, "usage"),
            (snapshot(), "chip.snapshot.unasked"),
            (snapshot(held=True), "format.malformed"),
            (snapshot(kernels=0), "format.malformed"),
            ({"do": "snapshot"}, "format.malformed"),
        ]
        for message, reason in refused:
            assert ask(connection, message)["error"] == reason
        connection.send({"do": "force"})
        assert connection.receive() == {"interrupt": 1}
        assert connection.receive() == {"ok": True}
        for message, reason in (
            (snapshot(leaves=bytes(39)), "chip.snapshot.leaves"),
            (snapshot(leaves=b"\x01" + bytes(79)), "chip.snapshot.leaves"),
            (snapshot(step=5), "chip.token"),
            (snapshot(held=-1), "chip.token"),
        ):
            assert ask(connection, message)["error"] == reason
        assert ask(connection, snapshot())["ok"] is True
        assert [token.kind for token in station.log(chip)] == ["boot", "snapshot"]


def test_gaps_are_exponential() -> None:
    """Mean and variance of many gaps lie within 7 standard deviations of an exponential's (rate 86,400 a day = 1/s)."""
    interrupts = Interrupts(8640.0, 10.0, lambda: None)
    count = 20_000
    gaps = [interrupts.gap_s() for _ in range(count)]
    mean = sum(gaps) / count
    assert abs(mean - 1) < 7 / count**0.5
    variance = sum((gap - mean) ** 2 for gap in gaps) / count
    assert abs(variance - 1) < 7 * (8 / count) ** 0.5


def test_a_chip_interrupts_at_its_rate(station: ChipStation) -> None:
    """About 8 a second for 4 seconds, each served at once. Below 6 or above 75 has a chance under 1e-7.

    The lower limit leaves room for slow disks: while a snapshot is being logged no other is drawn.
    """
    with station.chip(rate_per_day=8.0, clock_speed=86_400.0) as chip:
        connection = attach(chip)
        before = hello(connection)
        served, idle, end = 0, 0, time.monotonic() + 4
        while time.monotonic() < end:
            message = before.pop() if before else connection.receive()
            assert message is not None
            idle = int(message["interrupt"]) - 1 if not served else idle  # those that came before it was attached
            assert message == {"interrupt": idle + served + 1}
            assert ask(connection, snapshot())["ok"] is True
            served += 1
        connection.close()
        log = station.log(chip)
    assert 6 <= served <= 75
    snapshots = [token for token in log if token.kind == "snapshot"]
    assert len(snapshots) == served
    days = (snapshots[-1].time_ms - log[0].time_ms) / 86_400_000
    assert days == pytest.approx(4, abs=2.5)  # The last gap may reach over the end.


def test_every_interrupt_leaves_an_entry(station: ChipStation) -> None:
    """Idle, then attached to a workload that is killed without serving. 40 a second: none in 2 seconds has 1e-35."""
    with station.chip(rate_per_day=40.0, clock_speed=86_400.0) as chip:
        time.sleep(2)
        connection = attach(chip)
        message = (hello(connection) or [connection.receive() or {}])[0]
        assert int(str(message["interrupt"])) > 1  # Those that found no workload count too.
        connection.close()
        time.sleep(1)
        names = [token.body["name"] for token in station.log(chip) if token.kind == "event"]
    names = [name for name in names if name.startswith("interrupt")]  # of the rest, that a workload came and went
    assert names.count("interrupt-unserved") == 1
    before, after = (names.index("interrupt-unserved"), names[names.index("interrupt-unserved") + 1 :])
    assert set(names[:before]) == set(after) == {"interrupt-idle"}


def test_the_chip_does_not_import_torch(station: ChipStation) -> None:
    """Its process is small, and what it trusts is little."""
    code = "import sys, firmware_sim.chip; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
