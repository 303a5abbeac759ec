"""Did chips do more work, over their whole logs, than the transcripts that are shown for them account for?

The snapshots of a run are compared with its transcript by `session_work`. What a chip does in sessions that no snapshot
fell into leaves none; but its counters go on, so many short sessions that stay small on their own are large together,
and so are many chips. Most chips do some work that no transcript explains, after their last snapshot for example. So
this accuses only where it adds up to the smallest run that the inspection, or one of its rules, is about: on one chip,
or on those of one owner or one Prover. The report states what stays below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verifier.checks.memory import begins_from_given, replayed
from verifier.model.facts import Explanation, LogFacts, Plan, SnapshotFacts
from verifier.model.peak_flops import peak_by
from verifier.model.policies import SnapshotPolicy
from verifier.model.sessions import ATTACHED, tokens_of, work_of
from verifier.registry import Chip
from weighbridge.attest.tokens import event_name
from weighbridge.attest.work import Work
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.run_facts import RunFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class ChipWork:
    """What one chip did, and how much of it is explained.

    Attributes:
        chip: The chip.
        done: What it counted, over its whole log.
        sessions: How often a workload was attached.
        peak: FLOPs that it can do a second.
        explained: FLOPs that its transcripts explain, with what set-up, recording and evaluation may take.
    """

    chip: Chip
    done: Work
    sessions: int
    peak: float
    explained: float

    @property
    def at_most(self) -> float:
        """FLOPs that it did, where unknown work went on at its peak."""
        return self.done.flops_at_most(self.peak)

    @property
    def unexplained(self) -> float:
        """FLOPs that nothing explains."""
        return max(0.0, self.at_most - self.explained)


def account(
    log: LogFacts, snapshots: Iterable[SnapshotFacts], plan: Plan, examined: Mapping[str, RunFacts | WeighbridgeError]
) -> ChipWork:
    """Compares a chip's counters with the transcripts of its snapshots.

    Args:
        log: The chip's log.
        snapshots: Its snapshots, once they were replayed.
        plan: Says what may be unexplained. Where the chip's peak is not known, its FLOPs a day stand for it.
        examined: What was counted in each transcript: of one that was shown, the rest is explained too.
    """
    return ChipWork(
        chip=log.chip,
        done=work_of(log),
        sessions=sum(event_name(token) == ATTACHED for token in tokens_of(log)),
        peak=peak_by(log.chip.chip_type, plan),
        explained=explained_flops(snapshots, plan.snapshots, examined),
    )


def threshold(plan: Plan, least: float | None = None) -> float:
    """Returns from how many FLOPs on unexplained work is asked about.

    Args:
        plan: The inspection's.
        least: The smallest H that one of its rules needs; None without such a rule.
    """
    return max(min(plan.flops_threshold, math.inf if least is None else least), plan.snapshots.unexplained_flops)


def check(chips: Sequence[ChipWork], plan: Plan, least: float | None = None) -> list[Finding]:
    """Reports chips whose unexplained work adds up to a run, and parties whose chips' does.

    Args:
        chips: What `account` returned of each.
        plan: The inspection's.
        least: As for `threshold`.
    """
    from_ = threshold(plan, least)
    alone = [each for each in chips if each.unexplained >= from_]
    rest = [each for each in chips if 0 < each.unexplained < from_]
    return [*map(_finding, alone), *(_many(name, group) for name, group in parties(rest) if _sum(group) >= from_)]


def parties(chips: Iterable[ChipWork]) -> list[tuple[str, list[ChipWork]]]:
    """Returns the chips of each party, with its name: those that share an owner or a Prover belong together."""
    groups: list[tuple[set[tuple[str, str]], list[ChipWork]]] = []
    for each in chips:
        keys = {("owner", each.chip.owner), ("Prover", each.chip.prover_address)} - {("owner", ""), ("Prover", "")}
        joined = [group for group in groups if group[0] & keys or (not keys and not group[0])]
        for group in joined:
            keys |= group[0]
            groups.remove(group)
        groups.append((keys, [*(one for _, own in joined for one in own), each]))
    return [
        (", ".join(f"{kind} {name}" for kind, name in sorted(keys)) or "no party declared", own) for keys, own in groups
    ]


def _sum(chips: Iterable[ChipWork]) -> float:
    return math.fsum(each.unexplained for each in chips)


def _finding(found: ChipWork) -> Finding:
    done = found.done
    busy_s, unknown_s = done.busy_ns / 1e9, done.unknown_ns / 1e9
    return Finding(
        id="chip.work.unexplained",
        message="over all its sessions the chip did more work than the transcripts shown for it account for, and "
        "it adds up to a run that matters; ask what it was",
        expected=f"at most {found.explained:.3g} FLOPs, with what set-up and recording may take",
        found=f"up to {found.at_most:.3g} FLOPs in {found.sessions} sessions: {done.flops:.3g} counted, and "
        f"{unknown_s:.3g} s of unknown work at {found.peak:.3g} FLOPs a second; {busy_s:.3g} s in all",
        subject=f"chip {found.chip.ueid.hex()}",
        severity="warning",
        evidence={"unexplained_flops": found.unexplained, "explained_flops": found.explained, **done.to_json()},
    )


def _many(name: str, chips: Sequence[ChipWork]) -> Finding:
    total, most = _sum(chips), max(chips, key=lambda each: each.unexplained)
    return Finding(
        id="chip.work.unexplained.many",
        message="on none of these chips is it enough for a run that matters, but together they did more work than the "
        "transcripts shown for them account for, and it adds up to one; ask what it was",
        expected=f"at most {math.fsum(each.explained for each in chips):.3g} FLOPs",
        found=f"{total:.3g} FLOPs more on {len(chips)} chips, up to {most.unexplained:.3g} on one",
        subject=name,
        severity="warning",
        evidence={"unexplained_flops": total, "chips": {each.chip.ueid.hex(): each.unexplained for each in chips}},
    )


def explained_flops(
    snapshots: Iterable[SnapshotFacts], policy: SnapshotPolicy, examined: Mapping[str, RunFacts | WeighbridgeError]
) -> float:
    """Returns the FLOPs that transcripts explain, with what a policy allows beside them, each transcript once.

    What its resumptions did again is explained too, but no more than the whole transcript.

    Args:
        snapshots: The snapshots of one chip.
        policy: What it allows.
        examined: What was counted in each transcript.
    """
    most: dict[str, float] = {}
    for snapshot in snapshots:
        result, claim = replayed(snapshot), snapshot.explanation
        if result is None or result.flops is None or not isinstance(claim, Explanation):
            continue
        counted = examined.get(claim.transcript_id)
        total, again = (counted.total, counted.repeated) if isinstance(counted, RunFacts) else (None, 0)
        flops = max(result.flops, total or 0)
        again = min(again, flops)
        narrow = result.narrow * ((flops + again) / result.flops if result.flops else 1.0)
        setup = policy.setup_flops if begins_from_given(snapshot) else 0
        allowed = setup + policy.recording_flops * narrow + again + flops * (1 + policy.work_share)
        most[claim.transcript_id] = max(most.get(claim.transcript_id, 0.0), allowed)
    return sum(most.values())
