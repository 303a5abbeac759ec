"""Work against time: honest counters pass; a slowed clock, invented work and time that is claimed twice are caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.chip_logs import LogBuilder, facts
from support.snapshot_facts import make
from support.untrained_transcripts import write_transcript

from analysis.catalog import load_chips
from firmware_sim.device import Device
from verifier.checks import chip_time, chip_work
from verifier.model.facts import Explanation, SnapshotFacts, TranscriptFacts
from verifier.model.peak_flops import peak_of
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import Finding
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.resumption_notes import Resumption

PEAK = 1e6
LEAF = [(8, b"a" * 32)]


def worked(
    device: Device, manufacturer: CertificateAuthority, *counts: tuple[int, int], peak: float | None = PEAK
) -> list[Finding]:
    """A boot at 0 s, then a snapshot each second with these counters of FLOPs and kernels."""
    log = LogBuilder(device).boot()
    for flops, kernels in counts:
        log.snapshot(LEAF, flops=flops, kernels=kernels)
    return chip_work.check(facts(log, manufacturer.certificate), peak)


def test_a_chip_at_full_use_passes(device: Device, manufacturer: CertificateAuthority) -> None:
    assert worked(device, manufacturer, (1_000_000, 100), (2_000_000, 200), (2_000_000, 201)) == []


def test_a_new_workload_begins_to_count_anew(device: Device, manufacturer: CertificateAuthority) -> None:
    assert worked(device, manufacturer, (900_000, 100), (10, 1), (1_000_000, 50)) == []


def test_a_slowed_clock_shows_in_the_work(device: Device, manufacturer: CertificateAuthority) -> None:
    """Half a second by the chip's clock in which it did what takes it two."""
    (found,) = worked(device, manufacturer, (1_000_000, 100), (3_000_000, 200))
    assert (found.id, found.severity) == ("chip.work.impossible", "violation")
    assert found.subject.endswith("entry 2")
    assert found.evidence["done"] == 2_000_000
    (start,) = worked(device, manufacturer, (5_000_000, 100))
    assert start.subject.endswith("entry 1")


def test_kernels_need_no_catalogue(device: Device, manufacturer: CertificateAuthority) -> None:
    assert worked(device, manufacturer, (10**18, 100), peak=None) == []
    (found,) = worked(device, manufacturer, (10**18, 10**9), peak=None)
    assert found.evidence["counter"] == "kernels"


def test_another_boot_counts_its_own_time(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device).boot()
    log.snapshot(LEAF, flops=900_000)
    log.boot()
    log.snapshot(LEAF, flops=1_000_000)
    assert chip_work.check(facts(log, manufacturer.certificate), PEAK) == []


def test_a_boot_that_does_not_count_up_is_no_work_in_no_time(
    device: Device, manufacturer: CertificateAuthority
) -> None:
    """Its uptime begins anew all the same; what the chip does after it still has to fit."""
    log = LogBuilder(device).boot()
    log.snapshot(LEAF, flops=900_000)
    log.boot_count -= 1
    log.boot()
    assert chip_work.check(facts(log, manufacturer.certificate), PEAK) == []
    log.snapshot(LEAF, flops=5_000_000)
    (found,) = chip_work.check(facts(log, manufacturer.certificate), PEAK)
    assert found.subject.endswith("entry 3")


def test_peaks_come_from_the_catalogue_unless_the_plan_gives_one() -> None:
    chip = load_chips()[0]
    assert peak_of(f"  {chip.name.upper()} ") == chip.flops_per_second
    assert peak_of(chip.name, 5.0) == 5.0
    assert peak_of("a type that nobody has heard of") is None
    assert peak_of("") is None


# -- claims on a chip's time -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, device: Device) -> dict[str, OpenedTranscript]:
    root = tmp_path_factory.mktemp("runs")
    for name in ("a", "b"):
        write_transcript(root / name, name=name, steps=4, ueid=device.ueid)
    return {name: open_confined(root / name) for name in ("a", "b")}


class Claims:
    """Makes snapshots of one chip, a second after each other."""

    def __init__(self, device: Device, manufacturer: CertificateAuthority) -> None:
        self._device, self._manufacturer = device, manufacturer
        self.made: list[SnapshotFacts] = []

    def take(self, run: OpenedTranscript, step: int, *, flops: int = 0) -> None:
        """One more snapshot: what the run had done by then, by its replay, is `flops`."""
        snapshot = make(self._device, self._manufacturer, run, step=step)
        index = 10 + len(self.made)
        token = replace(snapshot.verified.token, index=index, time_ms=1_700_000_000_000 + 1000 * len(self.made))
        assert isinstance(snapshot.replayed, ReplayResult)
        self.made.append(
            replace(
                snapshot,
                index=index,
                verified=replace(snapshot.verified, token=token),
                explanation=Explanation(transcript_id=run.digest, step=step, op=4),
                replayed=replace(snapshot.replayed, flops=flops),
            )
        )

    def check(self, peak: float | None = None) -> list[Finding]:
        return chip_time.check(reversed(self.made), peak)


@pytest.fixture
def claims(device: Device, manufacturer: CertificateAuthority) -> Claims:
    return Claims(device, manufacturer)


def test_one_run_after_another_passes(claims: Claims, runs: dict[str, OpenedTranscript]) -> None:
    for step in range(3):
        claims.take(runs["a"], step)
    for step in range(3):
        claims.take(runs["b"], step)
    assert claims.check() == []


def test_time_that_two_runs_claim_is_caught(claims: Claims, runs: dict[str, OpenedTranscript]) -> None:
    claims.take(runs["a"], 1)
    claims.take(runs["b"], 1)
    claims.take(runs["a"], 3)
    (found,) = claims.check()
    assert (found.id, found.severity) == ("chip.time.twice", "violation")
    assert found.evidence["transcripts"] == [runs["a"].digest, runs["b"].digest]


def test_a_run_that_was_cut_off_and_resumed_passes(
    claims: Claims, runs: dict[str, OpenedTranscript], device: Device, tmp_path: Path
) -> None:
    """The first run ended in a crash after step 1; another had the chip; the first was resumed at step 2."""
    write_transcript(tmp_path / "again", name="again", steps=4, ueid=device.ueid)
    again = open_confined(tmp_path / "again")
    again.resumptions = [Resumption(2, 1, ())]
    claims.take(again, 1)
    claims.take(runs["b"], 1)
    claims.take(again, 3)
    assert claims.check() == []
    again.resumptions = [Resumption(1, 0, ())]  # a crash before either of them explains nothing
    claims.made = []
    claims.take(again, 2)
    claims.take(runs["b"], 1)
    claims.take(again, 3)
    assert [found.id for found in claims.check()] == ["chip.time.twice"]


def test_work_that_fits_the_time_passes(claims: Claims, runs: dict[str, OpenedTranscript]) -> None:
    claims.take(runs["a"], 1, flops=5_000_000)
    claims.take(runs["a"], 2, flops=6_000_000)
    assert claims.check(PEAK) == []
    assert claims.check(None) == []


def test_work_that_does_not_fit_the_time_is_caught(claims: Claims, runs: dict[str, OpenedTranscript]) -> None:
    claims.take(runs["a"], 1, flops=5_000_000)
    claims.take(runs["a"], 2, flops=7_000_000)
    (found,) = claims.check(PEAK)
    assert (found.id, found.severity) == ("transcript.work.impossible", "violation")
    assert found.evidence["entries"] == [10, 11]
    assert claims.check(None) == []


def test_what_nobody_explains_claims_nothing(claims: Claims, runs: dict[str, OpenedTranscript]) -> None:
    claims.take(runs["a"], 1)
    claims.take(runs["b"], 1)
    claims.take(runs["a"], 3)
    claims.made[1] = replace(claims.made[1], explanation=None, transcript=None)
    assert claims.check() == []
    claims.made[1] = replace(claims.made[0], transcript=TranscriptFacts(id="x", opened=runs["a"]), index=11)
    assert claims.check() == []
