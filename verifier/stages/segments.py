"""Replays whole segments of the transcripts that explain snapshots, if the plan asks for that."""

from __future__ import annotations

import time

from verifier.collected import Collected
from verifier.facts import Explanation
from verifier.segments import Replayed, select
from verifier.stages.setting import Setting
from weighbridge.errors import WeighbridgeError
from weighbridge.replay import ReplayResult, replay
from weighbridge.transcript import Transcript


def run(setting: Setting, collected: Collected) -> None:
    """Chooses segments of each transcript and replays them; those of ranks of a job need all ranks and are left out."""
    policy = setting.plan.segments
    if not policy:
        return
    for transcript, steps in _explaining(collected).values():
        selection = select(
            transcript,
            sampled=steps,
            seed=setting.plan.seed,
            random=policy.random,
            largest=policy.largest,
            secret=setting.secret,
        )
        found = Replayed(selection=selection)
        started = time.monotonic()
        for done, chosen in enumerate(selection.chosen):
            name, count = transcript.manifest.name, len(selection.chosen)
            setting.progress("segments", done, count, f"replaying steps {chosen.begin} to {chosen.end - 1} of {name}")
            found.results[chosen.begin] = _replay(setting, transcript, (chosen.begin, chosen.end))
        found.seconds = time.monotonic() - started
        collected.segments.append(found)


def _explaining(collected: Collected) -> dict[str, tuple[Transcript, list[int]]]:
    """Returns each transcript that explains snapshots, with the steps in which they were taken."""
    out: dict[str, tuple[Transcript, list[int]]] = {}
    for snapshot in collected.snapshots:
        claim, facts = snapshot.explanation, snapshot.transcript
        if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
            continue
        if snapshot.shard is None and facts.opened.steps and claim.step >= 0:
            out.setdefault(facts.id, (facts.opened, []))[1].append(claim.step)
    return out


def _replay(setting: Setting, transcript: Transcript, steps: tuple[int, int]) -> ReplayResult | WeighbridgeError:
    name = transcript.manifest.name
    try:
        return replay(
            transcript.path,
            steps=steps,
            device=setting.plan.replay_device,
            limits=setting.limits,
            env=setting.plan.replay_env,
            progress=lambda done, total: setting.progress("segments", done, total, f"replaying {name}"),
        )
    except WeighbridgeError as error:
        return error
