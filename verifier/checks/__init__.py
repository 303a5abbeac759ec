"""The checks of an inspection, one file each: functions over `verifier.model.facts` that return findings.

A check fetches nothing, changes nothing and raises nothing on bad facts; so none can stop another. It is registered
here, in the list of what it looks at. All checks of a list run, in this order (`verifier.model.check_runner.judge`).

To add one: write `verifier/checks/NAME.py` with `check(facts, ...) -> list[Finding]`, add a line to the list below with
the facts that it needs, add its findings to docs/findings.md, and test it with an attacker who is caught and an honest
party who passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.checks import (
    cell_openings,
    chip_clock,
    chip_counters,
    chip_custody,
    chip_firmware,
    chip_fork,
    chip_identity,
    chip_log,
    chip_options,
    chip_proven_time,
    chip_rate,
    chip_time,
    chip_witness,
    chip_work,
    commitment,
    committed_data,
    data_records,
    hidden_fields,
    inconclusive_replays,
    interrupts,
    memory,
    order,
    parent_runs,
    positions,
    provenance,
    recognised_training,
    regenerated_logs,
    repeated_segments,
    replay_outcome,
    segment_replays,
    session_work,
    tapes,
    unexplained_work,
    unobserved_memory,
    unread_fields,
    weights,
)
from verifier.model.check_runner import Check, Given
from verifier.model.collected import Collected
from verifier.model.facts import CustodyFacts, LogFacts, Plan, SnapshotFacts, TranscriptFacts
from verifier.model.peak_flops import peak_of
from weighbridge.core.errors import Finding

CUSTODY: Sequence[Check[CustodyFacts]] = (
    Check("chip_custody", lambda facts, given: chip_custody.check(facts), "reported_only"),
)
"""Over what the registry knows of each drawn chip."""

LOG: Sequence[Check[LogFacts]] = (
    Check("chip_identity", lambda log, given: chip_identity.check(log)),
    Check("chip_firmware", lambda log, given: chip_firmware.check(log, given.firmware)),
    Check("chip_log", lambda log, given: chip_log.check(log)),
    Check("chip_counters", lambda log, given: chip_counters.check(log)),
    Check("hidden_fields", lambda log, given: hidden_fields.check(log)),
    Check("chip_options", lambda log, given: chip_options.check(log, given.firmware.limits)),
    Check("chip_clock", lambda log, given: chip_clock.check(log, given.firmware.limits)),
    Check(
        "chip_proven_time",
        lambda log, given: chip_proven_time.check(log, given.plan.period_days, given.firmware.limits),
    ),
    Check("chip_rate", lambda log, given: chip_rate.check(log, given.plan)),
    Check("chip_work", lambda log, given: chip_work.check(log, peak_of(log.chip.chip_type, given.plan.peak_flops))),
    Check("chip_witness", lambda log, given: chip_witness.check(log, given.witness), "reported_only"),
    Check("unread_fields", lambda log, given: unread_fields.check(log), "not_sampled"),
    Check("interrupts", lambda log, given: interrupts.check(log, given.plan.snapshots), "not_sampled"),
)
"""Over each chip's log, right after it was read."""

LOGS: Sequence[Check[Sequence[LogFacts]]] = (Check("chip_fork", lambda logs, given: chip_fork.check(logs)),)
"""Over all logs together. `chips` in a finding's evidence names the chips whose logs are worth nothing then."""

TRANSCRIPT: Sequence[Check[TranscriptFacts]] = (
    Check("committed_data", lambda facts, given: committed_data.check(facts), "reported_only"),
    Check("order", lambda facts, given: order.check(facts, given.plan.transcripts), "reported_only"),
)
"""Over each transcript that a Prover named, right after it was fetched."""

SNAPSHOT: Sequence[Check[SnapshotFacts]] = (
    Check("provenance", lambda snapshot, given: provenance.check(snapshot, given.plan.snapshots)),
    Check("cell_openings", lambda snapshot, given: cell_openings.check(snapshot)),
    Check("replay_outcome", lambda snapshot, given: replay_outcome.check(snapshot)),
    Check("memory", lambda snapshot, given: memory.check(snapshot, given.plan.snapshots)),
    Check("weights", lambda snapshot, given: weights.check(snapshot)),
    Check("commitment", lambda snapshot, given: commitment.check(snapshot), "not_sampled"),
    Check("tapes", lambda snapshot, given: tapes.check(snapshot), "reported_only"),
    Check(
        "unobserved_memory",
        lambda snapshot, given: unobserved_memory.check(snapshot, given.plan.snapshots),
        "reported_only",
    ),
)
"""Over each snapshot, once it was explained, opened and replayed as far as that could be done."""

CHIP: Sequence[Check[Sequence[SnapshotFacts]]] = (
    Check("positions", lambda snapshots, given: positions.check(snapshots, given.plan.snapshots), "reported_only"),
    Check("chip_time", lambda snapshots, given: chip_time.check(snapshots, _peak(snapshots, given)), "reported_only"),
)
"""Over all snapshots of one chip, in the order of its log."""

INSPECTION: Sequence[Check[Collected]] = (
    Check("parent_runs", lambda all_, given: _parentage(all_, given), "reported_only"),
    Check(
        "data_records",
        lambda all_, given: [f for one in all_.records for f in data_records.check(one)],
        "reported_only",
    ),
    Check("regenerated_logs", lambda all_, given: regenerated_logs.check(all_), "reported_only"),
    Check("repeated_segments", lambda all_, given: repeated_segments.check(all_.repeats), "reported_only"),
    Check("segment_replays", lambda all_, given: _segments(all_), "reported_only"),
    Check("recognised_training", lambda all_, given: recognised_training.check(all_.trainings()), "reported_only"),
    Check("session_work", lambda all_, given: _session_work(all_, given), "reported_only"),
    Check("unexplained_work", lambda all_, given: _beside(all_, given), "reported_only"),
    Check(
        "inconclusive_replays",
        lambda all_, given: inconclusive_replays.check(all_, given.plan.snapshots),
        "reported_only",
    ),
)
"""Over everything that the inspection collected, at its end."""


def _parentage(collected: Collected, given: Given) -> list[Finding]:
    return [found for line in collected.lineages for found in parent_runs.check(line, given.plan.transcripts)]


def _segments(collected: Collected) -> list[Finding]:
    return [found for segment in collected.segments for found in segment_replays.check(segment)]


def _session_work(collected: Collected, given: Given) -> list[Finding]:
    own = collected.by_chip()
    return [
        found
        for log in collected.logs
        for found in session_work.check(log, own.get(log.chip.ueid, ()), given.plan, collected.examined)
    ]


def _beside(collected: Collected, given: Given) -> list[Finding]:
    return unexplained_work.check(works(collected, given.plan), given.plan, given.least)


def works(collected: Collected, plan: Plan) -> list[unexplained_work.ChipWork]:
    """Returns what each chip did, and how much of it is explained."""
    own = collected.by_chip()
    return [
        unexplained_work.account(log, own.get(log.chip.ueid, ()), plan, collected.examined) for log in collected.logs
    ]


def _peak(snapshots: Sequence[SnapshotFacts], given: Given) -> float | None:
    """The peak of the chip that took some snapshots."""
    return peak_of(snapshots[0].chip.chip_type if snapshots else "", given.plan.peak_flops)
