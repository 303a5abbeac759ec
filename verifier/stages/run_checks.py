"""Runs the checks over snapshots, chips and the whole inspection, and settles what became of each snapshot."""

from __future__ import annotations

from verifier import checks
from verifier.checks import memory
from verifier.model.check_runner import Given, Judgement
from verifier.model.collected import Collected
from verifier.model.facts import SnapshotFacts, Status
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.given_results import GIVEN


def run(setting: Setting, collected: Collected) -> None:
    """Judges each snapshot, the snapshots of each chip, and everything together."""
    given = setting.given
    for done, snapshot in enumerate(collected.snapshots):
        setting.progress("judge", done, len(collected.snapshots), f"judging {snapshot.subject}")
        found = setting.judged("snapshot", snapshot.subject, checks.SNAPSHOT, snapshot, subject=snapshot.subject)
        collected.report(found.findings)
        snapshot.status = status(snapshot, found, given)
    snapshots = collected.by_chip()
    for chip in collected.chips:
        name = f"chip {chip.ueid.hex()}"
        found = setting.judged("chip", name, checks.CHIP, snapshots.get(chip.ueid, []), subject=name)
        collected.report(found.findings)
        if found.failed:
            collected.lost.add(chip.ueid)
    everything = setting.judged("inspection", "", checks.INSPECTION, collected, subject="the inspection")
    collected.report(everything.findings)


def status(snapshot: SnapshotFacts, found: Judgement, given: Given) -> Status:
    """Returns what became of a snapshot."""
    if snapshot.explanation is None:
        return "unexplained" if found.violated else "unverified"
    if isinstance(snapshot.explanation, WeighbridgeError) or snapshot.replayed is None:
        return "mismatch" if found.violated and snapshot.transcript is not None else "unverified"
    if isinstance(snapshot.replayed, WeighbridgeError):
        return "unverified"
    if found.violated:
        return "mismatch"
    accounted = memory.accounting(snapshot, given.plan.snapshots)
    if accounted is None or accounted.temporary or found.not_sampled:
        return "unverified"
    return "explained given collectives" if snapshot.replayed.verdict == GIVEN else "explained"
