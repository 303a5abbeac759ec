"""One snapshot and all that an inspection would know of it, honest unless a test tampers with it."""

from __future__ import annotations

from typing import Any

from support.chip_logs import SALT, LogBuilder

from firmware_sim.device import Device
from verifier.model.facts import Explanation, Opening, SnapshotFacts, TranscriptFacts
from verifier.registry import Chip
from weighbridge.attest.identity import CertificateAuthority, verify_device_chain
from weighbridge.attest.tokens import Verified
from weighbridge.attest.work import Work
from weighbridge.core.digests import Leaf, salt_digest, snapshot_root
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript

LEAVES: list[Leaf] = [(8, b"a" * 32), (8, b"a" * 32), (100, b"b" * 32)]


def make(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript, **claims: Any
) -> SnapshotFacts:
    """A snapshot at step 2, operation 4, explained, opened and replayed, of a committed transcript.

    `claims` replace what the chip signed; the last storage is the model's weights.
    """
    log = LogBuilder(device).boot()
    log.event("manifest-draft", transcript.draft_digest)
    body = {
        "root": snapshot_root(LEAVES, SALT),
        "leaves": 3,
        "bytes": 116,
        "weights_root": snapshot_root(LEAVES[2:], SALT),
        "weights_bytes": 100,
        "salt_digest": salt_digest(SALT),
        "head": transcript.head(1),
        "running": b"r" * 32,
        "step": 2,
        "op": 4,
        "safepoint": True,
        "held": 0,
        "kernels": 1,
        "flops": 1,
        "stall_us": 1,
        "unobserved": 1,
    }
    identity = verify_device_chain(device.chain, manufacturer.certificate)
    return SnapshotFacts(
        chip=Chip(ueid=device.ueid, address="localhost:1", prover_address="localhost:2"),
        index=12,
        verified=Verified(token=log.token("snapshot", body | claims), identity=identity),
        drafts=[(1, transcript.draft_digest)],
        work=Work(kernels=claims.get("kernels", 1), busy_ns=1000, flops=claims.get("flops", 1)),
        explanation=Explanation(transcript_id=transcript.digest, step=2, op=4),
        transcript=TranscriptFacts(id=transcript.digest, opened=transcript),
        opening=Opening(salt=SALT, leaves=list(LEAVES), weights=LEAVES[2:]),
        replayed=ReplayResult(
            verdict="match",
            steps=(2, 3),
            state="00" * 32,
            live=[(size, digest.hex()) for size, digest in reversed(LEAVES)],
            running="72" * 32,
            head=transcript.head(1).hex(),
            weights=[(size, digest.hex()) for size, digest in LEAVES[2:]],
            flops=1,
        ),
    )
