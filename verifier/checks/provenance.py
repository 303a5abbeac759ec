"""Does the Prover's claim about a snapshot fit what the chip signed?"""

from __future__ import annotations

from dataclasses import replace

from verifier.checks.memory import is_beginning
from verifier.model.facts import Explanation, SnapshotFacts, digest, number
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.attest.tokens import HiddenBody, claims_position, shown
from weighbridge.core.errors import ChipError, Finding, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.resumption_notes import recomputed

_WITHHELD = "snapshot.confidential"


def withheld(snapshot: SnapshotFacts) -> ChipError:
    """Returns what stands for the explanation of a snapshot that its chip opens to sealed workers alone."""
    return ChipError(f"{snapshot.subject} is of a confidential boot", code=_WITHHELD)


def check(snapshot: SnapshotFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Checks that there is a claim, that token and transcript have its position, and that the running heads agree."""
    claim = snapshot.explanation
    if isinstance(snapshot.verified.token.body, HiddenBody) and not isinstance(claim, WeighbridgeError):
        return [confidential(snapshot.chip.ueid)]
    if isinstance(claim, WeighbridgeError):
        if snapshot.confidential and claim.reason == _WITHHELD:  # a Prover's own error may have any reason
            return [confidential(snapshot.chip.ueid)]
        return [claim.finding(subject=f"prover of chip {snapshot.chip.ueid.hex()}")]
    if claim is None:
        return [_empty(snapshot) if is_empty(snapshot, policy) else _unexplained(snapshot)]
    return [*([*_position(snapshot, claim), *_head(snapshot, claim)] or _tail(snapshot)), *_shard(snapshot)]


def is_tail(snapshot: SnapshotFacts) -> bool:
    """Whether a snapshot was taken in the step that ended an incomplete transcript, which cannot be replayed."""
    claim, facts = snapshot.explanation, snapshot.transcript
    if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
        return False
    return claim.step == facts.opened.steps and not facts.opened.manifest.complete


def is_empty(snapshot: SnapshotFacts, policy: SnapshotPolicy) -> bool:
    """Whether a program had no more than begun: it held no memory and had done no work worth mentioning."""
    return number(snapshot.verified.token, "leaves") == 0 and is_beginning(snapshot, policy)


def lacks_ranks(snapshot: SnapshotFacts) -> bool:
    """Whether a snapshot is of one rank of a job whose other ranks' transcripts are not there, or are of others."""
    return snapshot.shard is not None and isinstance(snapshot.shard.job, WeighbridgeError)


def _shard(snapshot: SnapshotFacts) -> list[Finding]:
    """Reports why a job cannot be replayed. Of one that never ended, some ranks may not have been written down."""
    if snapshot.shard is None or not isinstance(snapshot.shard.job, WeighbridgeError) or snapshot.transcript is None:
        return []
    finding = snapshot.shard.job.finding(subject=f"transcript {snapshot.transcript.id}")
    opened = snapshot.transcript.opened
    ended = isinstance(opened, WeighbridgeError) or opened.manifest.complete
    return [finding if ended or finding.id != "job.incomplete" else replace(finding, severity="info")]


def _tail(snapshot: SnapshotFacts) -> list[Finding]:
    if not is_tail(snapshot):
        return []
    return [
        Finding(
            id="snapshot.tail",
            message="the snapshot was taken in a step that was never finished, so it cannot be replayed; not verified",
            expected="a finished step",
            found=f"operation {number(snapshot.verified.token, 'op')} of the step after the last one",
            subject=snapshot.subject,
            severity="info",
        )
    ]


def _empty(snapshot: SnapshotFacts) -> Finding:
    return Finding(
        id="snapshot.empty",
        message="a program had begun on the chip and held no memory yet, so there is nothing to explain; not verified",
        expected="memory, or no program",
        found=f"0 bytes, {number(snapshot.verified.token, 'flops')} FLOPs so far",
        subject=snapshot.subject,
        severity="info",
    )


def confidential(ueid: bytes) -> Finding:
    """Says of a chip that an inspection which is not sealed verifies nothing of its confidential boots."""
    return Finding(
        id=_WITHHELD,
        message="the chip was started in a confidential boot, so it opens its snapshots to no Verifier and hides what "
        "its workload did, and nothing of that is verified here; have a sealed inspection made",
        expected="snapshots that the chip opens",
        found="withheld: confidential boot",
        subject=f"chip {ueid.hex()}",
        severity="warning",
    )


def _unexplained(snapshot: SnapshotFacts) -> Finding:
    token = snapshot.verified.token
    size, storages, root = number(token, "bytes"), number(token, "leaves"), digest(token, "root")
    asked = (
        "the Prover explains it by no transcript" if snapshot.chip.prover_address else "no Prover is declared for it"
    )
    return Finding(
        id="snapshot.unexplained",
        message=f"the chip was at work and {asked}; demand the transcript of this run",
        expected="a transcript and a position",
        found=f"{size} bytes in {storages} storages, root {root.hex()}",
        subject=snapshot.subject,
        evidence={"time_ms": token.time_ms, "safepoint": bool(shown(token)["safepoint"])},
    )


def _position(snapshot: SnapshotFacts, claim: Explanation) -> list[Finding]:
    token = snapshot.verified.token
    position = (number(token, "step"), number(token, "op"))
    if not claims_position(token) or position == (claim.step, claim.op):
        return []
    return [
        Finding(
            id="snapshot.position.mismatch",
            message="the Prover claims another position than the workload claimed when the snapshot was taken",
            expected=f"step {position[0]} operation {position[1]}",
            found=f"step {claim.step} operation {claim.op}",
            subject=snapshot.subject,
        )
    ]


def _head(snapshot: SnapshotFacts, claim: Explanation) -> list[Finding]:
    if snapshot.transcript is None or isinstance(snapshot.transcript.opened, WeighbridgeError):
        return []
    transcript, token = snapshot.transcript.opened, snapshot.verified.token
    complete = transcript.manifest.complete
    if not 0 <= claim.step <= transcript.steps or (claim.step == transcript.steps and complete and claim.op):
        return [
            Finding(
                id="snapshot.position.mismatch",
                message="the Prover claims a position that its transcript does not have",
                expected=f"a step below {transcript.steps}, or what came right after the last one",
                found=f"step {claim.step} operation {claim.op}",
                subject=snapshot.subject,
            )
        ]
    if not _named(transcript, snapshot, claim):
        return [
            Finding(
                id="snapshot.position.mismatch",
                message="the transcript's own record of that step does not name this snapshot, so it is of another run",
                expected=f"entry {snapshot.index} of this chip at step {claim.step} operation {claim.op}",
                found="no such snapshot",
                subject=snapshot.subject,
            )
        ]
    head = transcript.head(claim.step - 1)
    if not claims_position(token) or digest(token, "head") == head:
        return []
    return [
        Finding(
            id="transcript.head.mismatch",
            message="the snapshot was taken in another history than this transcript tells up to that step",
            expected=digest(token, "head").hex(),
            found=head.hex(),
            subject=snapshot.subject,
            evidence={"transcript": claim.transcript_id, "step": claim.step},
        )
    ]


def _named(transcript: OpenedTranscript, snapshot: SnapshotFacts, claim: Explanation) -> bool:
    """Whether the transcript names the snapshot; else a position would explain those of other chips and times too.

    A crash may come between the chip's signature and the Recorder's note of it, and after the last step nothing more is
    noted. So a snapshot that claims a position needs no name in a step that was recomputed after a crash, or after the
    last one, if this chip had been told of this run.
    """
    if (snapshot.chip.ueid, snapshot.index, claim.op) in transcript.snapshots(claim.step):
        return True
    if not claims_position(snapshot.verified.token):
        return False
    told = any(draft == transcript.draft_digest for _, draft in snapshot.drafts)
    crashed = any(recomputed(r.begin, r.step, claim.step, claim.op) for r in transcript.resumptions)
    return told and (crashed or claim.step == transcript.steps)
