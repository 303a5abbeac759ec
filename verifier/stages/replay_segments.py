"""Replays whole segments of the transcripts that explain snapshots, unless the plan asks for none."""

from __future__ import annotations

from verifier.model.collected import Collected
from verifier.model.facts import Explanation
from verifier.model.segments import Replayed, select
from verifier.model.training import draw_seed
from verifier.stages.replay_runner import replayed, task
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Chooses segments of each transcript and replays them; those of ranks of a job need all ranks and are left out."""
    policy = setting.plan.segments
    if not policy:
        return
    for transcript, steps in explaining(collected).values():
        selection = select(
            transcript,
            sampled=steps,
            seed=setting.plan.seed,
            random=policy.random,
            largest=policy.largest,
            secret=setting.secret,
        )
        tasks = {
            chosen.begin: task(
                setting,
                transcript,
                steps=(chosen.begin, chosen.end),
                recognise=(policy.recognise, draw_seed(setting.plan.seed, transcript.draft_digest.hex(), chosen.begin)),
                sensitivity=policy.sensitivity,
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


def explaining(collected: Collected) -> dict[str, tuple[OpenedTranscript, list[int]]]:
    """Returns each transcript that explains snapshots, with the steps in which they were taken."""
    out: dict[str, tuple[OpenedTranscript, list[int]]] = {}
    for snapshot in collected.snapshots:
        claim, facts = snapshot.explanation, snapshot.transcript
        if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
            continue
        if snapshot.shard is None and facts.opened.steps and claim.step >= 0:
            out.setdefault(facts.id, (facts.opened, []))[1].append(claim.step)
    return out
