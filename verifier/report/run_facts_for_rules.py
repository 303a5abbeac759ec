"""The facts about runs that rules may speak about (`verifier.rules.schema`), from what an inspection collected.

A run is a transcript that explains a snapshot of a sampled chip, or the transcripts of all ranks of a job. What could
not be established is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verifier.model.collected import Collected
from verifier.model.facts import Explanation, SnapshotFacts, TranscriptFacts
from verifier.model.training import Training, of_job
from verifier.report import training
from verifier.report.ledger import CATEGORIES, ChipLedger
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.run_facts import RunFacts
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.job_record import MeshCoordinate

HOUR_MS = 3_600_000
_SHOWN = 8


def build(
    collected: Collected,
    ledger: Sequence[ChipLedger],
    *,
    period_days: float,
    registered: int,
    fleet_bound: float | None,
) -> dict[str, Any]:
    """Returns the facts, JSON-compatible, in the form of `verifier.rules.schema`.

    Args:
        collected: The inspection, once it is judged.
        ledger: The account of each sampled chip.
        period_days: Length of the period.
        registered: Chips in the registry.
        fleet_bound: Bound on undeclared work on all chips, if there is one.
    """
    hours = {category: sum(chip.ms(category) for chip in ledger) / HOUR_MS for category in CATEGORIES}
    account = {f"{category}_hours": value for category, value in hours.items()} | {
        "unexplained_flops": math.fsum(chip.unexplained_flops for chip in ledger),
        "remainder_flops": math.fsum(chip.remainder_flops for chip in ledger),
    }
    if fleet_bound is not None:
        account["fleet_unexplained_flops"] = fleet_bound
    return {
        "period_days": period_days,
        "fleet": {
            "registered": registered,
            "sampled": len(collected.logs),
            "verified": len(collected.verified()),
        },
        "ledger": account,
        "runs": [_run(name, ranks, collected, ledger) for name, ranks in grouped(collected).items()],
        "findings": [
            {"id": each.id, "severity": each.severity, "subject": each.subject[:4000]} for each in collected.findings
        ],
    }


def grouped(collected: Collected) -> dict[str, list[TranscriptFacts]]:
    """Returns the readable transcripts of each run: one, or those of the ranks of a job that are there, by rank."""
    opened = {facts.id: facts for facts in collected.transcripts.values() if isinstance(facts.opened, OpenedTranscript)}
    claimed = {
        snapshot.explanation.transcript_id
        for snapshot in collected.snapshots
        if isinstance(snapshot.explanation, Explanation)
    }
    found: dict[str, list[TranscriptFacts]] = {}
    for identifier in sorted(claimed & set(opened)):
        coordinate = _coordinate(opened[identifier])
        if coordinate is None:
            found[identifier] = [opened[identifier]]
            continue
        job = coordinate.job.id.hex()
        ranks = {
            each.rank: facts for facts in opened.values() if (each := _coordinate(facts)) and each.job == coordinate.job
        }
        found[job] = [ranks[rank] for rank in sorted(ranks)]
    return found


def _coordinate(facts: TranscriptFacts) -> MeshCoordinate | None:
    assert isinstance(facts.opened, OpenedTranscript)
    try:
        return facts.opened.coordinate()
    except WeighbridgeError:
        return None  # the fetch has said so


def _run(
    name: str,
    ranks: Sequence[TranscriptFacts],
    collected: Collected,
    ledger: Sequence[ChipLedger],
) -> dict[str, Any]:
    transcripts = [facts.opened for facts in ranks if isinstance(facts.opened, OpenedTranscript)]
    first, coordinate = transcripts[0], _coordinate(ranks[0])
    ids = {facts.id for facts in ranks}
    count = 1 if coordinate is None else coordinate.job.ranks
    whole = len(transcripts) == count
    out: dict[str, Any] = {
        "id": name,
        "draft": first.draft_digest.hex(),
        "ranks": count,
        "complete": whole and all(transcript.manifest.complete for transcript in transcripts),
        "replayed": _replayed(ids, collected.snapshots),
        "chip_hours": sum(row.ms for chip in ledger for row in chip.rows if row.transcript in ids) / HOUR_MS,
        "declared": first.declared,
        "scores": dict(collected.scores.get(name, {})),
        "data": {"committed": first.data is not None, "matches": _data_matches(ids, collected.findings)},
    }
    if first.data is not None:
        out["data"] |= {"root": first.data.root.hex(), "records": first.data.count}
    counted = [each for facts in ranks if isinstance(each := collected.examined.get(facts.id), RunFacts)]
    if whole and len(counted) == count:
        out |= _counted(counted)
        out["data"] |= {"used": counted[0].used, "seen": counted[0].seen}
    if whole and (known := _training(ranks, count, collected)) is not None:
        out["training"] = training.facts(known, out.get("parameters"))
        outcomes = {each.digest: each.outcome for each in known.programs if each.outcome != "not known"}
        for program in out.get("programs", ()):
            if program["digest"] in outcomes:
                program["training"] = outcomes[program["digest"]]
    return out


def _training(ranks: Sequence[TranscriptFacts], count: int, collected: Collected) -> Training | None:
    """What is known of a run's training, or of a job's if all of its transcripts are there."""
    ids = [facts.id for facts in ranks]
    if count == 1:
        return next((each for each in collected.trainings() if each.transcript == ids[0]), None)
    replayed = [each for each in collected.segments if each.selection.transcript in ids]
    return of_job(replayed, [collected.examined.get(each) for each in ids])


def _counted(ranks: Sequence[RunFacts]) -> dict[str, Any]:
    """What follows from the tapes of all ranks."""
    first = ranks[0]
    out: dict[str, Any] = {
        "steps": first.steps,
        "operations": sorted({name for each in ranks for name in each.operations}),
        "programs_fixed": all(each.fixed for each in ranks),
        "programs": [
            {
                "digest": each.digest,
                "kind": each.kind,
                "first": each.first,
                "count": each.count,
                "operations": each.operations,
            }
            | ({} if each.flops is None else {"flops": float(each.flops)})
            for each in first.programs
        ],
        "hyperparameters": {
            name: {"least": least, "most": most, "last": last}
            for name, (least, most, last) in first.hyperparameters.items()
        },
    }
    if first.passport:
        out["passport"] = first.passport
    flops = [each.flops for each in ranks]
    if all(each is not None for each in flops):
        for kind in ("init", "step", "edit"):
            out[f"{kind}_flops"] = float(sum(each[kind] for each in flops if each is not None))
        out["flops"] = out["init_flops"] + out["step_flops"] + out["edit_flops"]
    if all(each.parameters is not None for each in ranks):
        out["parameters"] = sum(each.parameters or 0 for each in ranks)
    return out


def programs_in_words(run: Mapping[str, Any]) -> str:
    """Returns whether a run's programs were fixed before its first step, else when each was first seen.

    Args:
        run: One of the report's `facts.runs`; empty if its programs were not established.
    """
    if "programs_fixed" not in run:
        return ""
    if run["programs_fixed"]:
        return "fixed in the draft, before the first step"
    seen = [f"{each['kind']} {each['digest'][:12]} in step {each['first']}" for each in run["programs"]]
    before = f"{len(seen) - _SHOWN} others, then " if len(seen) > _SHOWN else ""  # it is the late ones that matter
    return f"not fixed before the first step; first seen: {before}{', '.join(seen[-_SHOWN:])}"


def _replayed(ids: set[str], snapshots: Iterable[SnapshotFacts]) -> bool:
    """Whether a replay matched and none failed."""
    verdicts = {
        "failed" if isinstance(snapshot.replayed, WeighbridgeError) else snapshot.replayed.verdict
        for snapshot in snapshots
        if snapshot.transcript is not None and snapshot.transcript.id in ids and snapshot.replayed is not None
    }
    return bool(verdicts) and verdicts <= {"match", "match given collectives"}


def _data_matches(ids: set[str], findings: Iterable[Finding]) -> bool:
    against = [each for each in findings if each.id.startswith("data.") and each.severity == "violation"]
    return not any(identifier in each.subject for each in against for identifier in ids)
