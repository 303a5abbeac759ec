"""A report over an honest chip, one with an unexplained snapshot, and a dead one, with all that it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.chip_logs import SALT, LogBuilder, attempt, facts, make_device
from support.untrained_transcripts import write_transcript

from verifier.model.collected import Collected
from verifier.model.facts import Explanation, LogFacts, Opening, Plan, SnapshotFacts, TranscriptFacts
from verifier.model.policies import SegmentPolicy
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.segments import Replayed, select
from verifier.registry import Chip
from verifier.report import document
from verifier.report.conclusion import conclude
from verifier.report.regime import Regime
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import Verified
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ChipError, Finding, TranscriptError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Program, RunFacts
from weighbridge.execution.transcript_facts import open_confined

LEAVES: list[Leaf] = [(8, b"a" * 32), (100, b"b" * 32)]
PLAN = Plan(
    samples=3,
    seed=bytes(range(32)),
    flops_threshold=3.0e6,
    chip_flops_per_day=1.0e6,
    period_days=2.0,
    snapshot_rate_per_day=1.0,
    replay_env={"ATEN_CPU_CAPABILITY": "default"},
    segments=SegmentPolicy(random=1, largest=0),
)
POPULATION = 8


def collect(root: Path, *, text: str = "plain", honest: bool = False) -> Collected:
    """Returns what an inspection would have collected of the three chips; `honest` leaves out the last two.

    Args:
        root: A fresh directory.
        text: Name, site and message wherever another party chooses one.
        honest: Only the chip with nothing against it.
    """
    manufacturer = CertificateAuthority.create("Manufacturer")
    write_transcript(root / "run", name=text)
    transcript = open_confined(root / "run")
    good = TranscriptFacts(id=transcript.digest, opened=transcript)
    bad = TranscriptFacts(id="f" * 64, opened=TranscriptError(text, code="transcript.file.altered"))
    found = Collected()
    for name in ("honest",) if honest else ("honest", text):
        log = LogBuilder(make_device(root / f"chip{len(found.logs)}", manufacturer)).boot()
        log.event("manifest-draft", transcript.draft_digest)
        log.time_ms += 3_600_000
        log.uptime_ms += 3_600_000
        chip = Chip(ueid=log.device.ueid, address="localhost:1", owner=name, site=name, chip_type=name)
        index = log.snapshot(LEAVES)
        found.logs.append(facts(log, manufacturer.certificate, chip=chip))
        verified = attempt(log.entries[index], manufacturer.certificate)
        assert isinstance(verified, Verified)
        found.snapshots.append(SnapshotFacts(chip=chip, index=index, verified=verified, drafts=[]))
    first = found.snapshots[0]
    first.status, first.transcript, first.opening = "explained", good, Opening(salt=SALT, leaves=LEAVES)
    first.explanation = Explanation(transcript_id=transcript.digest, step=1, op=4)
    tapes = {"ab" * 32: {"kind": text[:10], "count": 2, "operations": 30, "free_values": 1}}
    live = [(size, digest.hex()) for size, digest in LEAVES]
    first.replayed = ReplayResult(
        verdict="match",
        steps=(0, 2),
        state="00",
        followed=3,
        logged=9,
        rounded=100,
        live=live,
        tapes=tapes,
        flops=900,
        probable=70,
        calibrated=30,
        probable_elsewhere=4,
    )
    chosen = Replayed(selection=select(transcript, sampled=[1], seed=PLAN.seed, random=PLAN.segments.random))
    for each in chosen.selection.chosen:
        chosen.results[each.begin] = ReplayResult(
            verdict="match", steps=(each.begin, each.end), state="00", rounded=50, probable=50
        )
    found.segments.append(chosen)
    found.sound.add(first.chip.ueid)
    found.transcripts["", good.id] = good
    found.examined[good.id] = RunFacts(
        steps=2, flops={"init": 0, "step": 1000, "edit": 0}, fixed=False,
        programs=(Program("ab" * 32, "step", first=1, count=2, operations=30, flops=500),),
        operations=("aten.mm.default",), parameters=25, used=0, seen=0,
    )  # fmt: skip
    if not honest:
        second = found.snapshots[1]
        second.status, second.explanation, second.transcript = "unexplained", None, bad
        found.transcripts["", bad.id] = bad
        dead = Chip(ueid=b"\x01" + b"d" * 16, address="localhost:9")
        found.logs.append(LogFacts(chip=dead, nonce=b"n" * 32, head=ChipError(text)))
        found.findings.append(
            Finding(id="snapshot.unexplained", message=text, found=text, evidence={text: [text]}, subject=text)
        )
    return found


def build(collected: Collected, regime: Regime | None = None) -> dict[str, Any]:
    """Returns the report over what was collected."""
    plan = replace(PLAN, samples=len(collected.logs))
    concluded = conclude(collected, plan, regime or Regime(), population=POPULATION)
    return document.build(
        inspection="0123456789abcdef",
        created_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:01:00Z",
        plan=plan,
        firmware=FirmwarePolicy(),
        population=POPULATION,
        logs=collected.logs,
        snapshots=collected.snapshots,
        transcripts=list(collected.transcripts.values()),
        findings=concluded.findings,
        verified=collected.verified(),
        conclusion=concluded,
        evidence={"segments": [each.to_json() for each in collected.segments]},
        parents=[ReplayResult(verdict="match", steps=(0, 1), state="00", rounded=7, probable=6, calibrated=1)],
    )
