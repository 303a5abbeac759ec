"""The firmware: what it signs, what it keeps, and how its log continues over restarts."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from firmware_sim import device
from firmware_sim.firmware import Clock, Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.snapshot_report import Report
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.digests import Leaf, region_digest, salt_digest, snapshot_root
from weighbridge.core.errors import ChipError, TokenError, UsageError


@pytest.fixture(scope="module")
def root() -> CertificateAuthority:
    return CertificateAuthority.create("Manufacturer")


@pytest.fixture
def directory(root: CertificateAuthority, tmp_path: Path) -> Path:
    device.provision(tmp_path, root)
    return tmp_path


def start(directory: Path, log: NonVolatileLog, *, clock_speed: float = 1.0) -> Firmware:
    return Firmware(directory, device.boot(directory), log, rate_per_day=2.5, clock_speed=clock_speed, hold=9)


def report(salt: bytes, *contents: bytes) -> Report:
    regions: list[Leaf] = [(len(each), region_digest(each, salt)) for each in contents]
    return Report(
        leaves=regions,
        weights=regions[:1],
        safepoint=True,
        head=b"h" * 32,
        running=b"r" * 32,
        step=3,
        op=14,
        held=2,
        stall_us=7,
        unobserved=8,
    )


def verified(firmware: Firmware, root: CertificateAuthority, size: int) -> list[tokens.Token]:
    entries = [data for _, data in firmware.entries(0, size)]
    return [each.token for each in tokens.verify_log(entries, root.certificate)]


def test_a_boot_is_logged(directory: Path, root: CertificateAuthority) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        (boot,) = verified(firmware, root, 1)
    assert (boot.kind, boot.index, boot.boot_count, boot.previous) == ("boot", 0, 1, tokens.GENESIS)
    assert boot.body == {
        **{"salt_digest": salt_digest(firmware.salt), "rate_milli": 2500, "hold": 9},
        **{"clock_milli": 1000, "forced": False, "reporting": "log", "witness": bytes(32), "unserved": False},
        "confidential": False,
    }


def test_a_snapshot_is_logged_and_opened(directory: Path, root: CertificateAuthority) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        assert firmware.event("manifest-draft", bytes(32)) == 1
        seen = report(firmware.salt, b"weights", b"other", b"other")
        assert firmware.snapshot(seen) == 2
        token = verified(firmware, root, 3)[2]
        salt, opened, weights = firmware.open_snapshot(2)
    assert (salt, opened, weights) == (firmware.salt, sorted(seen.leaves), seen.weights)
    assert token.body["root"] == snapshot_root(seen.leaves, salt)
    assert token.body["weights_root"] == snapshot_root(seen.weights, salt)
    assert (token.body["leaves"], token.body["bytes"], token.body["weights_bytes"]) == (3, 17, 7)
    assert token.body["salt_digest"] == salt_digest(salt)
    for name in ("safepoint", "head", "running", "step", "op", "held", "stall_us", "unobserved"):
        assert token.body[name] == getattr(seen, name)


def test_weights_outside_memory_are_refused(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        seen = report(firmware.salt, b"a", b"b")
        for weights in ([(9, b"w" * 32)], [*seen.leaves, seen.leaves[0]]):
            with pytest.raises(ChipError) as caught:
                firmware.snapshot(replace(seen, weights=weights))
            assert caught.value.reason == "chip.snapshot.leaves"
        assert len(log) == 1


def test_what_is_no_snapshot_cannot_be_opened(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        for index in (0, 1):
            with pytest.raises(UsageError):
                firmware.open_snapshot(index)


def test_an_interrupt_that_stands_at_a_boot_is_in_its_entry(directory: Path, root: CertificateAuthority) -> None:
    """Once: the next boot knows nothing of it. One that a snapshot or an event closed is in neither."""
    for closed in (False, True):
        with NonVolatileLog(directory) as log:
            firmware = start(directory, log)
            assert firmware.raise_interrupt() == 1 + closed
            if closed:
                firmware.snapshot(report(firmware.salt, b"a"))
                firmware.raise_interrupt()
                firmware.interrupt_unserved()
                firmware.interrupt_idle()
    with NonVolatileLog(directory) as log:
        said = [each for each in verified(start(directory, log), root, len(log)) if each.kind == "boot"]
        assert log.counter.raised == 4
    assert [token.body["unserved"] for token in said] == [False, True, False]


def test_options_are_signed_at_each_boot(directory: Path, root: CertificateAuthority) -> None:
    with NonVolatileLog(directory) as log:
        booted = device.boot(directory)
        firmware = Firmware(directory, booted, log, rate_per_day=1, clock_speed=0.01, hold=10**12, forced=True)
        (boot,) = verified(firmware, root, 1)
    assert (boot.body["clock_milli"], boot.body["hold"], boot.body["forced"]) == (10, 10**12, True)


def test_damaged_leaves_are_noticed(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        index = firmware.snapshot(report(firmware.salt, b"a", b"b"))
        path = next((directory / "snapshots").iterdir())
        good = path.read_bytes()
        for altered in (good[:-1], good[:-40], b"", bytes([good[0] ^ 1]) + good[1:], good + good[-40:]):
            path.write_bytes(altered)
            with pytest.raises(ChipError) as caught:
                firmware.open_snapshot(index)
            assert caught.value.reason == "chip.snapshot.leaves"
        path.unlink()
        with pytest.raises(ChipError):
            firmware.open_snapshot(index)


def test_heads_are_fresh(directory: Path, root: CertificateAuthority) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        first = tokens.verify(firmware.head(b"nonce-01"), root.certificate).token
        assert (first.kind, first.nonce, first.index) == ("head", b"nonce-01", 1)
        assert {name: first.body[name] for name in ("size", "last", "root", "counter")} == {
            **{"size": 1, "last": log.last, "root": log.tree.root(), "counter": 1},
        }
        firmware.event("something", bytes(32))
        second = tokens.verify(firmware.head(b"nonce-02"), root.certificate).token
        assert (second.nonce, second.body["size"]) == (b"nonce-02", 2)
        assert len(log) == 2  # Asking for the head logs nothing.
        for nonce in (b"", b"short", bytes(65)):
            with pytest.raises(UsageError):
                firmware.head(nonce)


def test_entries_beyond_the_log_are_a_usage_error(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        for start_, end in ((0, 2), (1, 0), (2, 2)):
            with pytest.raises(UsageError):
                list(firmware.entries(start_, end))


def test_a_claim_out_of_range_is_not_logged(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log)
        for name, digest in (("", bytes(32)), ("x" * 101, bytes(32)), ("ok", bytes(31)), ("new\nline", bytes(32))):
            with pytest.raises(TokenError):
                firmware.event(name, digest)
        assert len(log) == 1


def test_a_restart_continues_the_log(directory: Path, root: CertificateAuthority) -> None:
    """Counter and hash chain go on, boots count up, salt and seed are new, time does not run backwards."""
    salts = []
    for _ in range(3):
        with NonVolatileLog(directory) as log:
            firmware = start(directory, log, clock_speed=1e6)
            firmware.event("here", bytes(32))
            salts.append(firmware.salt)
            history = verified(firmware, root, len(log))
    assert [token.index for token in history] == list(range(6))
    assert [token.boot_count for token in history] == [1, 1, 2, 2, 3, 3]
    assert [token.kind for token in history] == ["boot", "event"] * 3
    assert len({token.boot_seed for token in history}) == len(set(salts)) == 3
    assert [token.time_ms for token in history] == sorted(token.time_ms for token in history)


def test_snapshots_of_earlier_boots_can_be_opened(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        first = start(directory, log)
        index = first.snapshot(report(first.salt, b"a"))
    with NonVolatileLog(directory) as log:
        assert start(directory, log).open_snapshot(index)[0] == first.salt


def test_another_devices_log_is_refused(directory: Path, root: CertificateAuthority, tmp_path: Path) -> None:
    with NonVolatileLog(directory) as log:
        start(directory, log)
    other = tmp_path / "other"
    device.provision(other, root)
    (other / "nvram").mkdir()
    for name in ("nvram/log.bin", "counter"):
        (other / name).write_bytes((directory / name).read_bytes())
    with NonVolatileLog(other) as log, pytest.raises(ChipError) as caught:
        start(other, log)
    assert caught.value.reason == "chip.log.damaged"


def test_a_forged_record_is_refused_at_boot(directory: Path) -> None:
    """Rewriting a record together with its digest still breaks the form of the token or the chain."""
    with NonVolatileLog(directory) as log:
        start(directory, log)
        log.append(b"not a token")
    with NonVolatileLog(directory) as log, pytest.raises(TokenError):
        start(directory, log)


def test_the_clock_can_run_fast() -> None:
    clock = Clock(speed=1e6, not_before_ms=1 << 50)
    time.sleep(0.01)
    uptime, now = clock.now_ms()
    assert uptime >= 10_000
    assert now == (1 << 50) + uptime
