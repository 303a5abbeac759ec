"""Replays whole segments of the transcripts that explain snapshots, unless the plan asks for none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from verifier.model.collected import Collected
from verifier.model.facts import Explanation
from verifier.model.replay_task import Task
from verifier.model.segments import Replayed, select
from verifier.model.training import draw_seed
from verifier.stages import supplement_requests
from verifier.stages.replay_runner import replayed, task
from verifier.stages.setting import Setting
from verifier.units import key_of
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Chooses segments of each transcript and replays them; those of a rank with all ranks of its job."""
    policy = setting.plan.segments
    if not policy:
        return
    for transcript, sampled, job in explaining(collected, setting.plan.sharded).values():
        selection = select(
            transcript,
            sampled=sampled,
            seed=setting.plan.seed,
            random=policy.random,
            largest=policy.largest,
            secret=setting.secret,
            unrepeated=[
                each.begin
                for run in collected.repeats
                if run.transcript == transcript.digest
                for each in run.unrepeated
            ],
        )
        for chosen in selection.chosen:
            steps = chosen.begin, chosen.end
            if job is None:
                supplement_requests.ask(setting, collected, transcript, steps)
            else:
                supplement_requests.ask_ranks(setting, collected, job[0], job[1], steps)
        tasks = {
            chosen.begin: _of_job(
                task(
                    setting,
                    transcript,
                    steps=(chosen.begin, chosen.end),
                    recognise=(
                        policy.recognise,
                        draw_seed(setting.plan.seed, transcript.draft_digest.hex(), chosen.begin),
                    ),
                    sensitivity=0 if job else policy.sensitivity,
                ),
                job,
            )
            for chosen in selection.chosen
        }
        name = transcript.manifest.name
        setting.progress("segments", 0, len(tasks), f"replaying {len(tasks)} segments of {name}")
        outcomes = replayed(setting, "segments", list(tasks.values()))
        found = Replayed(selection=selection, recognise=policy.recognise)
        for begin, each in tasks.items():
            found.results[begin] = outcomes[each.key].result
        found.seconds = sum(outcome.seconds for outcome in outcomes.values())
        collected.segments.append(found)


def _of_job(alone: Task, job: Job | None) -> Task:
    """Returns the replay of all ranks for that of one."""
    if job is None:
        return alone
    path, ranks, rank = job
    return replace(alone, key=key_of("job-steps", list(ranks), rank, alone.steps), path=path, rank=rank)


Job = tuple[Path, tuple[str, ...], int]
"""Directory of a job, the transcripts of its ranks, and one of them."""


def explaining(collected: Collected, sharded: str = "all") -> dict[str, tuple[OpenedTranscript, list[int], Job | None]]:
    """Returns each transcript that explains snapshots, with the steps in which they were taken, and its job.

    Args:
        collected: What was collected.
        sharded: How jobs are replayed; ranks that are replayed alone have no segments. `each` takes every rank for
            itself, whether or not its job could be put together.
    """
    out: dict[str, tuple[OpenedTranscript, list[int], Job | None]] = {}
    for snapshot in collected.snapshots:
        claim, facts, shard = snapshot.explanation, snapshot.transcript, snapshot.shard
        if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
            continue
        job: Job | None = None
        if shard is not None and sharded != "each":
            if sharded != "all" or isinstance(shard.job, WeighbridgeError):
                continue
            job = shard.job, tuple(claim.ranks), shard.coordinate.rank
        if facts.opened.steps and claim.step >= 0:
            out.setdefault(facts.id, (facts.opened, [], job))[1].append(claim.step)
    return out
