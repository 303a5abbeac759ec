"""Repeats what an inspection did with one snapshot: opens it, replays to it, and runs the same checks over it.

The checks are those of the inspection (`verifier.checks.SNAPSHOT`), over the same facts, so the same findings must come
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from verifier import checks
from verifier.checks import commitment, memory
from verifier.checks.snapshot_status import status as status_of
from verifier.model import fact_codec
from verifier.model.check_runner import Given, Judgement, judge
from verifier.model.facts import Explanation, Opening, Plan, SnapshotFacts, Status, TranscriptFacts, digest
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.sessions import since_attached
from verifier.registry import Chip
from weighbridge.attest import tokens
from weighbridge.attest.chip_log import Directory
from weighbridge.attest.tokens import event_name, shown
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.errors import Finding, TranscriptError, WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.execution.worker_process import Limits

_DIFFERENCE = ("step", "op", "operation")


def repeat(
    *,
    report: Mapping[str, Any],
    chip: Mapping[str, Any],
    row: Mapping[str, Any],
    log: Directory,
    manufacturer: Certificate,
    opening: bytes | None,
    transcript: Path | None,
    limits: Limits,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SnapshotFacts, Judgement, Status]:
    """Opens and replays a snapshot and judges it anew.

    Args:
        report: The inspection's.
        chip: The report's row of the chip.
        row: Its row of the snapshot.
        log: The chip's log, which verified.
        manufacturer: Root certificate of device identities.
        opening: The chip's opening of the snapshot, as CBOR; None without one.
        transcript: Directory of the transcript that explains it; None if none was claimed.
        limits: Of the replay.
        progress: Told of steps done and in all.

    Raises:
        WeighbridgeError: The transcript does not verify, or is not the one that the report names.
    """
    plan = Plan.from_json(report["plan"])
    facts = _facts(chip, row, log, manufacturer)
    if opening is not None:
        facts.opening = fact_codec.opening_of(decode_cbor(opening))
    if transcript is not None:
        opened = open_confined(transcript)
        if opened.digest != row["transcript"]:
            raise TranscriptError(
                "this is not the transcript that the report names; get the right one", code="transcript.fetch.id"
            )
        facts.explanation = Explanation(transcript_id=opened.digest, step=row["step"], op=row["op"])
        facts.transcript = TranscriptFacts(id=opened.digest, opened=opened)
        if isinstance(facts.opening, Opening):
            _replay(facts, opened, plan, limits, progress)
    given = Given(plan=plan, firmware=FirmwarePolicy(), witness=None)
    found = judge(checks.SNAPSHOT, facts, given, subject=facts.subject)
    return facts, found, status_of(facts, found, plan.snapshots)


def _facts(chip: Mapping[str, Any], row: Mapping[str, Any], log: Directory, manufacturer: Certificate) -> SnapshotFacts:
    """Returns what the chip's log says of the snapshot, as the inspection read it."""
    before = [tokens.verify(entry, manufacturer) for entry in log.entries[: row["index"] + 1]]
    drafts = [
        (each.token.index, digest(each.token, "digest"))
        for each in before
        if event_name(each.token) == commitment.EVENT
    ]
    known = Chip(
        ueid=bytes.fromhex(chip["ueid"]), address=chip["address"], prover_address=chip["prover_address"],
        owner=chip["owner"], site=chip["site"], chip_type=chip["chip_type"],
    )  # fmt: skip
    work = since_attached([each.token for each in before])
    return SnapshotFacts(chip=known, index=row["index"], verified=before[-1], drafts=drafts, work=work)


def _replay(
    facts: SnapshotFacts,
    opened: OpenedTranscript,
    plan: Plan,
    limits: Limits,
    progress: Callable[[int, int], None] | None,
) -> None:
    claim, opening = facts.explanation, facts.opening
    assert isinstance(claim, Explanation)
    assert isinstance(opening, Opening)
    try:
        facts.replayed = replay(
            opened.path, stop=(claim.step, claim.op), salt=opening.salt, limits=limits,
            progress=progress,
        )  # fmt: skip
    except WeighbridgeError as error:
        facts.replayed = error
        return
    reached = memory.replayed(facts)
    if reached is not None and reached.touched and not shown(facts.verified.token)["safepoint"]:
        after = replay(opened.path, stop=(claim.step, claim.op + 1), salt=opening.salt, limits=limits)
        facts.after = after if after.verdict == "match" else None
    try:
        facts.batches = opened.batches(claim.step, opening.salt)
    except WeighbridgeError:
        facts.batches = []


def differences(
    report: Mapping[str, Any], row: Mapping[str, Any], facts: SnapshotFacts, found: Judgement, status: Status
) -> list[Finding]:
    """Returns what differs between the report and what came of the snapshot here; nothing if it is the same.

    Notes (`info`) are left aside: some of them say what a machine did.
    """
    out = []
    if status != row["status"]:
        out.append(_differs(facts, "status", row["status"], status))
    again, stated = facts.replayed, row["replay"]
    if isinstance(again, ReplayResult) and stated is not None:
        if again.verdict != stated["verdict"]:
            out.append(_differs(facts, "verdict of the replay", stated["verdict"], again.verdict))
        elif _place(again.first_difference) != _place(stated["first_difference"]):
            out.append(_differs(facts, "first difference", stated["first_difference"], again.first_difference))
    accounted = memory.accounting(facts, Plan.from_json(report["plan"]).snapshots)
    if accounted is not None and row["memory"] is not None:
        here = {name: getattr(accounted, name) for name in row["memory"]}
        if here != row["memory"]:
            out.append(_differs(facts, "memory", row["memory"], here))
    said = {(each["id"], each["subject"]) for each in report["findings"]}
    for each in found.findings:
        if each.severity != "info" and (each.id, each.subject) not in said:
            out.append(
                replace(_differs(facts, "findings", "none like it", each.id), evidence={"message": each.message})
            )
    return out


def _place(difference: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    return None if difference is None else tuple(difference.get(name) for name in _DIFFERENCE)


def _differs(facts: SnapshotFacts, what: str, expected: object, found: object) -> Finding:
    return Finding(
        id="evidence.replay.differs",
        message=f"{what}: what came of the snapshot here is not what the report says; ask the Verifier why",
        expected=str(expected)[:300],
        found=str(found)[:300],
        subject=facts.subject,
    )
