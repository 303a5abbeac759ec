"""Checkpoints, counter, clock and witness of a chip: an honest chip passes, every tampering is caught."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from support.chip_logs import LogBuilder, anchor, facts, make_device

from firmware_sim.device import Device
from verifier.checks import chip_clock, chip_log, chip_witness
from verifier.model.facts import Held, LogFacts
from verifier.model.reference_values import ChipLimits
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tlog import WITNESS, NoteSigner
from weighbridge.core import merkle
from weighbridge.core.errors import ProofError, WeighbridgeError

MANUFACTURER = CertificateAuthority.create("Manufacturer")
NONCE = b"n" * 32


HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return make_device(tmp_path_factory.mktemp("chip"), MANUFACTURER)


@pytest.fixture
def log(device: Device) -> LogBuilder:
    builder = LogBuilder(device).boot()
    for number in range(4):
        builder.event(f"event {number}", bytes(32))
    return builder


def held(log: LogBuilder, size: int) -> Held:
    root = merkle.root([merkle.leaf_hash(entry) for entry in log.entries[:size]])
    return Held(size=size, root=root, checkpoint=log.checkpoint(), chip_ms=log.time_ms, read_ms=log.time_ms)


def read(log: LogBuilder, before: Held, **changes: object) -> LogFacts:
    """The facts of a log, with the reason why it does not continue what was held, if it does not."""
    history: WeighbridgeError | None = None
    root = merkle.root([merkle.leaf_hash(entry) for entry in log.entries[: before.size]])
    if root != before.root:
        history = ProofError("another root")
    known = facts(log, MANUFACTURER.certificate, nonce=NONCE)
    return replace(known, held=before, history=history, read_ms=log.time_ms, **changes)  # type: ignore[arg-type]


def ids(log: LogFacts) -> list[str]:
    return [finding.id for finding in (*chip_log.check(log), *chip_clock.check(log, ChipLimits()))]


def test_an_honest_log_that_grew_has_no_finding(log: LogBuilder) -> None:
    before = held(log, 5)
    log.event("later", bytes(32))
    log.boot()
    assert ids(read(log, before)) == []
    assert ids(read(log, Held())) == []


def test_a_counter_ahead_of_the_log_is_a_roll_back(log: LogBuilder) -> None:
    """A genuine chip on an older image signs how far its counter is; it cannot say otherwise."""
    ahead = log.head(NONCE, counter=8)
    found = facts(log, MANUFACTURER.certificate, head=ahead, nonce=NONCE)
    (finding,) = chip_log.check(found)
    assert (finding.id, finding.found) == ("chip.log.rolled_back", "5 entries")


def test_a_counter_that_was_reset_with_the_log_is_a_roll_back(log: LogBuilder) -> None:
    """Both stores were set back, so the chip knows nothing; the witness does."""
    before = held(log, 5)
    del log.entries[2:]
    (finding,) = chip_log.check(read(log, before))
    assert finding.id == "chip.log.rolled_back"
    assert finding.evidence["held"] == before.checkpoint.decode()


def test_another_history_of_the_same_length_is_caught(log: LogBuilder) -> None:
    before = held(log, 5)
    log.entries.pop()
    log.event("another", bytes(32))
    assert ids(read(log, before)) == ["chip.log.changed"]


def test_a_root_over_other_entries_is_caught(log: LogBuilder) -> None:
    """The entries are a good chain that ends as signed, but the tree is over something else."""
    head = log.head(NONCE, root=bytes(32))
    assert ids(facts(log, MANUFACTURER.certificate, head=head, nonce=NONCE)) == ["chip.log.head"]


def test_a_checkpoint_that_is_not_the_chips_is_a_finding(log: LogBuilder) -> None:
    reason = WeighbridgeError("not signed", code="chip.note.signature")
    found = replace(facts(log, MANUFACTURER.certificate, nonce=NONCE), history=reason)
    assert ids(found) == ["chip.note.signature"]


def test_a_clock_that_runs_as_the_verifiers_does_has_no_finding(log: LogBuilder) -> None:
    before = held(log, 5)
    log.time_ms += 30 * 86_400_000
    log.event("a month later", bytes(32))
    assert ids(read(log, before)) == []
    drifted = replace(before, read_ms=before.read_ms - 3_600_000)  # an hour a month
    assert ids(read(log, drifted)) == []
    fast = replace(before, chip_ms=before.chip_ms - 10**12)
    assert ids(read(log, fast)) == []


@pytest.mark.parametrize("lost_ms", [120_000, 86_400_000])
def test_a_paused_clock_is_caught(log: LogBuilder, lost_ms: int) -> None:
    before = held(log, 5)
    log.event("later", bytes(32))
    paused = replace(read(log, before), read_ms=log.time_ms + lost_ms)
    assert ids(paused) == ["chip.clock.slow"]


def test_a_clock_that_was_set_back_is_caught(log: LogBuilder) -> None:
    """Below the newest entry's time it shows in the log; between two contacts it shows to the Verifier."""
    before = replace(held(log, 5), chip_ms=log.time_ms + 3_600_000)
    assert ids(read(log, before)) == ["chip.clock.slow"]
    log.time_ms -= 3_600_000
    log.event("earlier", bytes(32))
    assert "chip.log.clock" in ids(read(log, Held()))


@pytest.mark.parametrize(
    ("uptime_ms", "speed_milli", "found"),
    [
        (HOUR_MS, 1000, []),
        (HOUR_MS - 90_000, 1000, []),  # one per cent, and a minute
        (HOUR_MS - 120_000, 1000, ["chip.clock.slow"]),
        (HOUR_MS // 100, 1000, ["chip.clock.slow"]),
        (HOUR_MS, 60_000, ["chip.clock.slow"]),  # it says that it runs sixty times as fast
        (60 * HOUR_MS, 60_000, []),
    ],
)
def test_a_clock_within_a_boot(device: Device, uptime_ms: int, speed_milli: int, found: list[str]) -> None:
    """An hour goes by between two heads. The time of day is right all the while: it says nothing about the speed."""
    log = LogBuilder(device, options={"clock_milli": speed_milli}).boot()
    begin_ms, before = log.time_ms, anchor(log)
    log.uptime_ms += uptime_ms
    log.time_ms += max(uptime_ms, HOUR_MS)
    shown = facts(log, MANUFACTURER.certificate, anchors=[before], now_ms=begin_ms + HOUR_MS)
    assert [each.id for each in chip_clock.check(shown, ChipLimits())] == found
    lenient = chip_clock.check(shown, ChipLimits(clock_slack_s=3600.0))
    assert lenient == []


def test_a_reboot_begins_anew(device: Device) -> None:
    """Nothing is known of the time between, in which the chip may have been off. What was known is not forgotten."""
    log = LogBuilder(device).boot()
    begin_ms, before = log.time_ms, anchor(log)
    slowed = anchor(log, begin_ms + HOUR_MS)  # reported to the witness, and no time had gone by
    log.time_ms += HOUR_MS
    log.boot()
    shown = facts(log, MANUFACTURER.certificate, anchors=[before], now_ms=begin_ms + HOUR_MS)
    assert chip_clock.check(shown, ChipLimits()) == []
    assert list(chip_clock.anchored(shown)) == []
    (finding,) = chip_clock.check(replace(shown, anchors=[before, slowed]), ChipLimits())
    assert (finding.id, finding.subject[-6:]) == ("chip.clock.slow", "boot 1")


@pytest.mark.parametrize(("behind_ms", "found"), [(-HOUR_MS, []), (500_000, []), (700_000, ["chip.clock.behind"])])
def test_a_clock_that_is_behind_at_the_first_contact(device: Device, behind_ms: int, found: list[str]) -> None:
    log = LogBuilder(device).boot()
    shown = facts(log, MANUFACTURER.certificate, now_ms=log.time_ms + behind_ms)
    assert [(each.id, each.severity) for each in chip_clock.check(shown, ChipLimits())] == [
        (each, "warning") for each in found
    ]


def test_a_chip_that_reports_to_somebody_else_is_noticed(device: Device) -> None:
    own = NoteSigner("w", WITNESS, b"w" * 32).key
    log = LogBuilder(device).boot()
    assert chip_witness.check(facts(log, MANUFACTURER.certificate), own) == []
    trusting = copy.deepcopy(log)
    trusting.resign(0, body={**_body(log), "witness": own.public})
    assert chip_witness.check(facts(trusting, MANUFACTURER.certificate), own) == []
    for other in (own, None):
        foreign = copy.deepcopy(log)
        foreign.resign(0, body={**_body(log), "witness": b"f" * 32})
        (finding,) = chip_witness.check(facts(foreign, MANUFACTURER.certificate), other)
        assert (finding.id, finding.severity) == ("chip.witness.unknown", "warning")


def test_a_history_that_was_reported_once_is_not_forgotten(log: LogBuilder) -> None:
    """By now the chip shows the honest log again; what it reported in between is reported all the same."""
    before = held(log, 5)
    assert chip_witness.check(read(log, before), None) == []
    shown = read(log, before, refused=[("chip.log.rolled_back", b"one"), ("merkle.proof", b"two")])
    assert [each.id for each in chip_witness.check(shown, None)] == ["chip.log.rolled_back", "chip.log.changed"]


def _body(log: LogBuilder) -> dict[str, object]:
    found = facts(log, MANUFACTURER.certificate).entries[0].verified
    assert not isinstance(found, WeighbridgeError)
    return dict(found.token.body)
