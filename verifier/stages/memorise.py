"""Tests whether weights remember the batches of their segments, if the plan asks for that; evidence, no finding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from verifier.model.collected import Collected
from verifier.model.segments import segments
from verifier.model.weight_change import Changes
from verifier.report.memorisation import Memory, remember
from verifier.stages.replay_segments import explaining
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.batch_losses import losses
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Tests those segments of each transcript in which the weights changed most, and that are followed by others."""
    wanted = setting.plan.segments.memorisation
    if not wanted:
        return
    for transcript, _, _ in explaining(collected, sharded="none").values():
        ends = dict(segments(transcript))
        begins = Changes(transcript).largest(list(ends)[:-1], wanted)
        for done, begin in enumerate(sorted(begins)):
            name, end = transcript.manifest.name, ends[begin]
            setting.progress("memorise", done, len(begins), f"what {name} remembers of steps {begin} to {end - 1}")
            found = setting.units.once(
                "memorised",
                f"{transcript.digest} {begin}",
                partial(_test, setting, transcript, begin, end),
                to=lambda told: told,
                of=dict,
            )
            collected.memories.append({"transcript": transcript.digest, **found})


def _test(setting: Setting, transcript: OpenedTranscript, begin: int, end: int) -> dict[str, Any]:
    def evaluate(checkpoints: Sequence[int], steps: Sequence[int]) -> list[list[float]]:
        plan = setting.plan
        return losses(
            transcript.path,
            checkpoints,
            steps,
            device=plan.replay_device,
            limits=setting.limits,
            env=plan.replay_env,
        )

    found = remember(transcript, begin, end, evaluate)
    if isinstance(found, Memory):
        return found.to_json()
    why = found.message if isinstance(found, WeighbridgeError) else "nothing to compare"
    return {"begin": begin, "end": end, "why_not": why}
