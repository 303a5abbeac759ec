"""Runs the checks over snapshots, chips and the whole inspection, and settles what became of each snapshot."""

from __future__ import annotations

from verifier import checks
from verifier.checks.snapshot_status import status
from verifier.model.collected import Collected
from verifier.model.facts import EXPLAINED, Explanation, SnapshotFacts
from verifier.model.training import restated
from verifier.stages import supplement_requests
from verifier.stages.setting import Setting


def run(setting: Setting, collected: Collected) -> None:
    """Judges each snapshot, the snapshots of each chip, and everything together."""
    supplement_requests.settle(setting, collected)
    policy = setting.plan.snapshots
    for done, snapshot in enumerate(collected.snapshots):
        setting.progress("judge", done, len(collected.snapshots), f"judging {snapshot.subject}")
        found = setting.judged("snapshot", snapshot.subject, checks.SNAPSHOT, snapshot, subject=snapshot.subject)
        collected.report(found.findings)
        snapshot.status = status(snapshot, found, policy)
        if snapshot.status in EXPLAINED and _is_unrepeated(collected, snapshot):
            snapshot.status = "unverified"
    snapshots = collected.by_chip()
    for chip in collected.chips:
        name = f"chip {chip.ueid.hex()}"
        found = setting.judged("chip", name, checks.CHIP, snapshots.get(chip.ueid, []), subject=name)
        collected.report(found.findings)
        if found.failed:
            collected.lost.add(chip.ueid)
    everything = setting.judged("inspection", "", checks.INSPECTION, collected, subject="the inspection")
    collected.report(everything.findings)
    collected.findings = restated(collected.findings, collected.trainings())


def _is_unrepeated(collected: Collected, snapshot: SnapshotFacts) -> bool:
    """Whether a snapshot was taken in a segment whose logs were due while the run went on, and are missing or false."""
    claim = snapshot.explanation
    return isinstance(claim, Explanation) and any(
        each.begin <= claim.step < each.end
        for run in collected.repeats
        if claim.transcript_id in (run.transcript, *run.ranks)
        for each in run.unrepeated
    )
