"""The report of an inspection: one JSON document. `verifier.report.page` renders it for people."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from analysis.detection import (
    detection_probability_eq1,
    detection_probability_hypergeometric,
    involved_chips,
)
from analysis.domain import DetectionDomainError
from verifier.checks import chip_clock, interrupts
from verifier.checks.memory import accounting, replayed
from verifier.draw import chip_selection
from verifier.model.facts import Cell, Explanation, LogFacts, Plan, SnapshotFacts, TranscriptFacts, by_chip
from verifier.model.policies import SnapshotPolicy
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.segments import segments
from verifier.report import extent, false_accusation, miss_bound, proven_time
from verifier.report.conclusion import Conclusion
from verifier.report.ledger import DAY_MS
from weighbridge.attest.tokens import HiddenBody
from weighbridge.core import bound_failure
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult

SCHEMA = "weighbridge-report/5"
_CURVE_POINTS = 60

MEANING = (
    "p is the probability that an inspection like this one sees a violation of size H, had there been one. "
    "It is never the probability of compliance: it says nothing about how likely a violation was in the first place, "
    "nor about smaller violations, nor about chips that are not in the registry. A drawn chip that did not verify "
    "after the draw was known counts as one that the Prover chose: with w of them, p is the probability that more than "
    "w of the drawn chips show the violation."
)
SAW = (
    "the weights, gradients and optimizer state of every transcript it fetched (there is no confidential mode yet)",
    "the training data in every batch of those transcripts",
    "the programs: every tape, that is each operation of each training step with its arguments",
    "the logs of all sampled chips, and the salted digests of their memory regions",
)
ASSUMPTIONS = (
    "Every chip that could have taken part is in the registry; C counts these.",
    "The violation was fixed before the draw, and the seed of the draw was not known to the Prover.",
    "The violating run used at least H FLOPs after it first became incriminating. A run is incriminating only in its "
    "second H FLOPs, so this covers runs of 2H and more (Shavit 2023, section 3.2).",
    "The run was spread over as few chips as possible: full use and perfect scaling. More chips are easier to catch.",
    "Chips take snapshots at random moments of a Poisson process with the stated rate, independently of each other "
    "and of the work that they do; firmware, keys and clock of a chip are beyond the Prover's reach.",
    "Unhooking the shim, through which the simulated firmware sees memory and stops kernels, is outside the "
    "simulation: on real hardware no such shim exists.",
    "BLAKE3, SHA-256 and the signature schemes are not broken.",
    "Where no two contacts of one boot prove that a chip's clock ran, the chip was switched off, or its clock ran all "
    "the same. `probability.proven` says what p is without this assumption.",
    "A chip that did not verify after the draw was known was chosen by a Prover who knew which chips were drawn, and "
    "which of them would show the violation.",
    "The run lasted one monitoring period (T = T_m), and the logs were read at the end of it.",
    "What the plan tolerates is small: the caps on unexplained bytes, temporary buffers and work beside a transcript.",
    "The counters of chips count every number that is computed, as the tapes do. What moves numbers only shows in "
    "neither; code that is no kernel counts as its time at the chip's peak.",
)
NOT_OBSERVABLE = (
    "memory that no kernel ever read or wrote, free blocks, and the host's memory outside of tensors",
    "what happened between snapshots, beyond what the running head and the replayed steps fix",
    "whether a replayed program is the training that its name says, beyond the steps that were recognised; the report "
    "lists the programs that ran",
)


def build(
    *,
    inspection: str,
    created_at: str,
    finished_at: str,
    plan: Plan,
    firmware: FirmwarePolicy,
    population: int,
    logs: Sequence[LogFacts],
    snapshots: Sequence[SnapshotFacts],
    transcripts: Sequence[TranscriptFacts],
    findings: Sequence[Finding],
    verified: Sequence[bytes],
    conclusion: Conclusion,
    draw: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None,
    parents: Sequence[ReplayResult] = (),
) -> dict[str, Any]:
    """Builds the report as JSON-compatible data.

    Args:
        inspection: Identifier of the inspection.
        created_at: UTC time of the start, RFC 3339.
        finished_at: UTC time of the end, RFC 3339.
        plan: What was to be done.
        firmware: Which firmware chips were allowed to run.
        population: Registered chips at the draw (C).
        logs: What was read of each sampled chip, in the order drawn.
        snapshots: Every snapshot in those logs.
        transcripts: Every transcript that a Prover named, once for each Prover.
        findings: All findings, with their final severities.
        verified: UEIDs of the chips that count as verified.
        conclusion: The ledger, what became of the rules, and the policy.
        draw: The section about the draw; by default that of one with a given seed. See `verifier.draw.chip_selection`.
        evidence: What `verifier.report.statistical_evidence.build` returned.
        parents: Replays that led to a state with which a run began.
    """
    severities = Counter(finding.severity for finding in findings)
    own, counted = by_chip(snapshots), set(verified)
    draw = chip_selection.given(plan.seed) if draw is None else draw
    chips = [_chip(log, own.get(log.chip.ueid, ()), log.chip.ueid in counted, plan) for log in logs]
    charged = {each["transcript"]: each["charged"] for each in (evidence or {}).get("training", ())}
    named = [_transcript(facts, snapshots, charged.get(facts.id)) for facts in transcripts]
    replayed = extent.replayed(chips, named, (evidence or {}).get("segments", ()))
    silence = extent.silence(chips, draw.get("certain", ()))
    p = probability(
        plan, population=population, drawn=len(logs), unverified=silence["unverified_after_draw"], draw=draw
    )
    proven = proven_time.section(chips, p["inputs"], draw.get("detection"))
    return {
        "schema": SCHEMA,
        "inspection": inspection,
        "created_at": created_at,
        "finished_at": finished_at,
        "software": {"weighbridge": version("weighbridge"), "torch": version("torch"), "machine": platform.machine()},
        "verdict": extent.verdict(
            violations=severities["violation"],
            warnings=severities["warning"],
            undecided=len(extent.undecided({"rules": conclusion.rules})),
            replayed=extent.replayed_anything(chips, replayed),
            unverified=extent.unverified(chips),
        ),
        "counts": {
            "registered": population,
            "sampled": len(logs),
            "verified": len(verified),
            **silence,
            "snapshots": len(snapshots),
            "explained": sum(1 for snapshot in snapshots if snapshot.status == "explained"),
            "explained_given_collectives": sum(1 for s in snapshots if s.status == "explained given collectives"),
            "violations": severities["violation"],
            "warnings": severities["warning"],
            "notes": severities["info"],
        },
        "plan": plan.to_json(),
        "firmware": firmware.to_json(),
        "chips": chips,
        "transcripts": named,
        "findings": [finding.to_json() for finding in findings],
        "probability": {**p, "proven": proven},
        "draw": dict(draw),
        "observed": extent.observed(conclusion.ledger, {ueid.hex() for ueid in counted}, population=population),
        "miss": miss_bound.bound(p, chunks=conclusion.chunks),
        "false_accusation": false_accusation.section(
            chips,
            (evidence or {}).get("segments", ()),
            {name: sum(getattr(each, name) for each in parents) for name in false_accusation.NONE},
        ),
        **conclusion.to_json(),
        "replayed": replayed,
        "replayed_in_all": extent.replayed_in_all(replayed),
        "evidence": dict(evidence or {}),
        "assumptions": [*ASSUMPTIONS, *draw["assumptions"]],
        "saw": list(SAW),
        "not_verifiable": [*_not_verified(logs, snapshots), *extent.not_looked_at(replayed), *NOT_OBSERVABLE],
    }


def probability(
    plan: Plan, *, population: int, drawn: int, unverified: int, draw: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the detection probability both ways, with every input; None and a note where a formula does not apply.

    Of a draw that was committed to, both are over the random sample alone, and `strata` is p against the worst spread
    over strata and over chips that were drawn with certainty.

    Args:
        plan: Sizes and rates.
        population: Registered chips (C).
        drawn: Chips that were drawn (s).
        unverified: Those of them that did not verify after the draw was known (w).
        draw: The report's section about a draw that was committed to.
    """
    notes: list[str] = []
    worth = (draw or {}).get("detection")
    if worth is not None:
        population, drawn, unverified = worth["chips"], worth["drawn"], worth["unverified"]
        if worth["certain"]:
            notes.append(f"{worth['certain']} chips were drawn with certainty: they are no part of s and C")
    if unverified:
        notes.append(
            f"{unverified} of {drawn} drawn chips did not verify after the draw was known: p is the probability that "
            f"more than {unverified} drawn chips show the violation"
        )
    eq1 = _eq1(plan, population, drawn, unverified, notes)
    exact = _hypergeometric(plan, population, drawn, unverified, notes)
    try:
        involved: int | None = int(
            involved_chips(
                flops_threshold=plan.flops_threshold,
                chip_flops_per_day=plan.chip_flops_per_day,
                chips=population,
                run_days=plan.period_days,
            )
        )
    except DetectionDomainError:
        involved = None
    most = population if population <= _CURVE_POINTS else min(population, max(_CURVE_POINTS, 5 * plan.samples))
    steps = sorted({round(most * place / _CURVE_POINTS) for place in range(_CURVE_POINTS + 1)})
    return {
        "eq1": eq1,
        "hypergeometric": exact,
        "strata": None if worth is None else worth["p"],
        "inputs": {
            "s": drawn,
            "w": unverified,
            "C": population,
            "H": plan.flops_threshold,
            "a": plan.chip_flops_per_day,
            "T": plan.period_days,
            "T_m": plan.period_days,
            "f": plan.snapshot_rate_per_day,
            "involved_chips": involved,
        },
        "meaning": MEANING,
        "notes": sorted(set(notes)),
        "curve": [
            {
                "samples": samples,
                "eq1": _eq1(plan, population, samples, unverified, []),
                "hypergeometric": _hypergeometric(plan, population, samples, unverified, []),
            }
            for samples in steps
        ],
    }


def _eq1(plan: Plan, population: int, samples: int, unverified: int, notes: list[str]) -> float | None:
    try:
        return float(
            detection_probability_eq1(
                samples=samples,
                flops_threshold=plan.flops_threshold,
                chip_flops_per_day=plan.chip_flops_per_day,
                chips=population,
                run_days=plan.period_days,
                period_days=plan.period_days,
                snapshot_rate_per_day=plan.snapshot_rate_per_day,
                withheld=unverified,
            )
        )
    except DetectionDomainError as error:
        notes.append(f"equation 1: {error}")
        return None


def _hypergeometric(plan: Plan, population: int, samples: int, unverified: int, notes: list[str]) -> float | None:
    try:
        return float(
            detection_probability_hypergeometric(
                samples=samples,
                flops_threshold=plan.flops_threshold,
                chip_flops_per_day=plan.chip_flops_per_day,
                chips=population,
                run_days=plan.period_days,
                snapshot_rate_per_day=plan.snapshot_rate_per_day,
                withheld=unverified,
            )
        )
    except DetectionDomainError as error:
        notes.append(f"exact: {error}")
        return None


def _chip(log: LogFacts, snapshots: Sequence[SnapshotFacts], verified: bool, plan: Plan) -> dict[str, Any]:
    tokens = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    return {
        "ueid": log.chip.ueid.hex(),
        "name": log.chip.name,
        "owner": log.chip.owner,
        "site": log.chip.site,
        "chip_type": log.chip.chip_type,
        "address": log.chip.address,
        "prover_address": log.chip.prover_address,
        "registered_at": log.chip.registered_at,
        "reachable": not isinstance(log.head, WeighbridgeError),
        "verified": verified,
        "entries": len(log.entries),
        "boots": len({token.boot_seed for token in tokens}),
        "firmware": sorted({token.firmware_version for token in tokens}),
        "proven_days": chip_clock.proven_ms(log, round(plan.period_days * DAY_MS)) / DAY_MS,
        "interrupts": interrupts.evidence(log),
        "snapshots": [_snapshot(snapshot, plan.snapshots) for snapshot in snapshots],
    }


def _snapshot(snapshot: SnapshotFacts, policy: SnapshotPolicy) -> dict[str, Any]:
    token, claim = snapshot.verified.token, snapshot.explanation
    body: Mapping[str, Any] = defaultdict(lambda: None) if isinstance(token.body, HiddenBody) else token.body
    out: dict[str, Any] = {
        "index": snapshot.index,
        "status": snapshot.status,
        "time_ms": token.time_ms,
        "uptime_ms": token.uptime_ms,
        "boot_count": token.boot_count,
        "safepoint": body["safepoint"],
        "bytes": body["bytes"],
        "storages": body["leaves"],
        "weights_bytes": body["weights_bytes"],
        "kernels": body["kernels"],
        "flops": body["flops"],
        "flops_explained": result.flops if (result := replayed(snapshot)) is not None else None,
        "held": body["held"],
        "stall_us": body["stall_us"],
        "unobserved": body["unobserved"],
        "transcript": None,
        "step": None,
        "op": None,
        "shard": None,
        "cell": None,
        "memory": None,
        "replay": None,
    }
    if isinstance(claim, Explanation):
        out |= {"transcript": claim.transcript_id, "step": claim.step, "op": claim.op}
    if snapshot.shard is not None:
        at = snapshot.shard.coordinate
        out["shard"] = {"job": at.job.id.hex(), "rank": at.rank, "ranks": at.job.ranks}
    if isinstance(cell := snapshot.cell, Cell):
        out["cell"] = {
            "steps": list(cell.steps),
            "chunks": cell.chunks,
            "drawn": cell.drawn,
            "share_found": cell.found_share,
            "findings": len(cell.findings),
        }
    if (memory := accounting(snapshot, policy)) is not None:
        out["memory"] = asdict(memory)
    answer = snapshot.replayed
    if answer is not None and not isinstance(answer, WeighbridgeError):
        out["replay"] = {
            "verdict": answer.verdict,
            "steps": list(answer.steps),
            "followed": answer.followed,
            "logged": answer.logged,
            "rounded": answer.rounded,
            "calibrated": answer.calibrated,
            "probable": answer.probable,
            "probable_elsewhere": _elsewhere(answer, snapshot.after),
            "false_accusation": bound_failure.false_accusation(answer.probable + _elsewhere(answer, snapshot.after)),
            "evidence": answer.evidence,
            "first_difference": answer.first_difference,
            "seconds": round(snapshot.seconds, 3),
        }
    return out


def _elsewhere(answer: ReplayResult, after: ReplayResult | None) -> int:
    """Returns what other ranks rounded within probabilistic bounds, and a second replay one operation further."""
    most = max(each.probable + each.probable_elsewhere for each in (answer, after) if each is not None)
    return most - answer.probable


def _transcript(
    facts: TranscriptFacts, snapshots: Sequence[SnapshotFacts], charged: Mapping[str, Any] | None
) -> dict[str, Any]:
    replays = [
        snapshot.replayed
        for snapshot in snapshots
        if snapshot.transcript is facts
        and snapshot.replayed is not None
        and not isinstance(snapshot.replayed, WeighbridgeError)
    ]
    tapes: dict[str, Any] = {}
    for result in replays:
        for digest, tape in result.tapes.items():
            known = tapes.setdefault(digest, dict(tape) | {"count": 0})
            known["count"] += tape["count"]
    chosen: dict[str, Any] = {}
    for result in replays:
        for channel, entry in result.chosen.items():
            if entry["bits"] > chosen.get(channel, {"bits": -1.0})["bits"]:
                chosen[channel] = entry
    if charged is not None:
        chosen["recognition"] = dict(charged)
    out: dict[str, Any] = {
        "id": facts.id,
        "readable": not isinstance(facts.opened, WeighbridgeError),
        "name": "",
        "steps": None,
        "segments": None,
        "complete": None,
        "data_committed": None,
        "replays": len(replays),
        "followed": sum(result.followed for result in replays),
        "logged": sum(result.logged for result in replays),
        "rounded": sum(result.rounded for result in replays),
        "calibrated": sum(result.calibrated for result in replays),
        "probable": sum(result.probable for result in replays),
        "tapes": tapes,
        "chosen": chosen,
    }
    if not isinstance(facts.opened, WeighbridgeError):
        manifest = facts.opened.manifest
        out |= {
            "name": manifest.name,
            "steps": manifest.steps,
            "segments": len(segments(facts.opened)),
            "complete": manifest.complete,
            "data_committed": facts.opened.data is not None,
        }
    return out


def _not_verified(logs: Sequence[LogFacts], snapshots: Sequence[SnapshotFacts]) -> list[str]:
    lines = []
    for log in logs:
        if isinstance(log.head, WeighbridgeError):
            lines.append(f"the log of chip {log.chip.ueid.hex()}, which could not be read")
    for snapshot in snapshots:
        if snapshot.status == "unverified":
            lines.append(f"the snapshot at entry {snapshot.index} of chip {snapshot.chip.ueid.hex()}")
    return lines
