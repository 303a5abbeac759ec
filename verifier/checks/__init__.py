"""The checks of an inspection, one file each: functions over `verifier.facts` that return findings.

A check fetches nothing, changes nothing and raises nothing on bad facts; so none can stop another. It is registered
here, in the list of what it looks at. All checks of a list run, in this order (`verifier.checking.judge`).

To add one: write `verifier/checks/NAME.py` with `check(facts, ...) -> list[Finding]`, add a line to the list below with
the facts that it needs, add its findings to docs/findings.md, and test it with an attacker who is caught and an honest
party who passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.checking import Check, Given
from verifier.checks import (
    cells,
    chip_clock,
    chip_custody,
    chip_firmware,
    chip_fork,
    chip_identity,
    chip_log,
    chip_rate,
    chip_time,
    chip_witness,
    chip_work,
    commitment,
    data,
    interrupts,
    memory,
    order,
    parentage,
    positions,
    provenance,
    records,
    replay,
    segments,
    tapes,
    weights,
    work,
)
from verifier.collected import Collected
from verifier.facts import CustodyFacts, LogFacts, SnapshotFacts, TranscriptFacts
from verifier.peaks import peak_of
from weighbridge.errors import Finding

CUSTODY: Sequence[Check[CustodyFacts]] = (
    Check("chip_custody", lambda facts, given: chip_custody.check(facts), "beside"),
)
"""Over what the registry knows of each drawn chip."""

LOG: Sequence[Check[LogFacts]] = (
    Check("chip_identity", lambda log, given: chip_identity.check(log)),
    Check("chip_firmware", lambda log, given: chip_firmware.check(log, given.firmware)),
    Check("chip_log", lambda log, given: chip_log.check(log)),
    Check("chip_clock", lambda log, given: chip_clock.check(log)),
    Check("chip_rate", lambda log, given: chip_rate.check(log, given.plan)),
    Check("chip_work", lambda log, given: chip_work.check(log, peak_of(log.chip.chip_type, given.plan.peak_flops))),
    Check("chip_witness", lambda log, given: chip_witness.check(log, given.witness), "beside"),
    Check("interrupts", lambda log, given: interrupts.check(log, given.plan.snapshots), "unsampled"),
)
"""Over each chip's log, right after it was read."""

LOGS: Sequence[Check[Sequence[LogFacts]]] = (Check("chip_fork", lambda logs, given: chip_fork.check(logs)),)
"""Over all logs together. `chips` in a finding's evidence names the chips whose logs are worth nothing then."""

TRANSCRIPT: Sequence[Check[TranscriptFacts]] = (
    Check("data", lambda facts, given: data.check(facts), "beside"),
    Check("order", lambda facts, given: order.check(facts, given.plan.transcripts), "beside"),
)
"""Over each transcript that a Prover named, right after it was fetched."""

SNAPSHOT: Sequence[Check[SnapshotFacts]] = (
    Check("provenance", lambda snapshot, given: provenance.check(snapshot, given.plan.snapshots)),
    Check("cells", lambda snapshot, given: cells.check(snapshot)),
    Check("replay", lambda snapshot, given: replay.check(snapshot)),
    Check("memory", lambda snapshot, given: memory.check(snapshot, given.plan.snapshots)),
    Check("weights", lambda snapshot, given: weights.check(snapshot)),
    Check("work", lambda snapshot, given: work.check(snapshot, given.plan.snapshots)),
    Check("commitment", lambda snapshot, given: commitment.check(snapshot), "unsampled"),
    Check("tapes", lambda snapshot, given: tapes.check(snapshot), "beside"),
)
"""Over each snapshot, once it was explained, opened and replayed as far as that could be done."""

CHIP: Sequence[Check[Sequence[SnapshotFacts]]] = (
    Check("positions", lambda snapshots, given: positions.check(snapshots, given.plan.snapshots), "beside"),
    Check("chip_time", lambda snapshots, given: chip_time.check(snapshots, _peak(snapshots, given)), "beside"),
)
"""Over all snapshots of one chip, in the order of its log."""

INSPECTION: Sequence[Check[Collected]] = (
    Check("parentage", lambda all_, given: _parentage(all_, given), "beside"),
    Check("records", lambda all_, given: [f for each in all_.records for f in records.check(each)], "beside"),
    Check("segments", lambda all_, given: [f for each in all_.segments for f in segments.check(each)], "beside"),
)
"""Over everything that the inspection collected, at its end."""


def _parentage(collected: Collected, given: Given) -> list[Finding]:
    return [found for line in collected.lineages for found in parentage.check(line, given.plan.transcripts)]


def _peak(snapshots: Sequence[SnapshotFacts], given: Given) -> float | None:
    """The peak of the chip that took some snapshots."""
    return peak_of(snapshots[0].chip.chip_type if snapshots else "", given.plan.peak_flops)
