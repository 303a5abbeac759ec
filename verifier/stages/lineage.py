"""Finds out where each run began, and fetches the parents that runs declare."""

from __future__ import annotations

from functools import partial

from verifier import lineage
from verifier.collected import Collected
from verifier.facts import TranscriptFacts
from verifier.stages import fetch
from verifier.stages.setting import Setting
from weighbridge.errors import WeighbridgeError
from weighbridge.replay import ReplayResult, replay
from weighbridge.transcript import Transcript


def run(setting: Setting, collected: Collected) -> None:
    """Traces every transcript that was fetched; what it replays are the states that no checkpoint holds."""
    provers = {facts.id: prover for (prover, _), facts in collected.transcripts.items()}

    def parent(child: TranscriptFacts, identifier: str) -> TranscriptFacts:
        prover = provers[child.id]
        provers.setdefault(identifier, prover)
        return fetch.transcript(setting, collected, prover, identifier)

    known = list(collected.transcripts.values())
    setting.progress("lineage", 0, len(known), f"finding out where {len(known)} runs began")
    collected.lineages = lineage.trace(known, parent, partial(_replay_to, setting))


def _replay_to(setting: Setting, transcript: Transcript, step: int, salt: bytes) -> ReplayResult | WeighbridgeError:
    name = transcript.manifest.name
    setting.progress("lineage", 0, 0, f"replaying {name} to the state before step {step}")
    try:
        return replay(
            transcript.path,
            device=setting.plan.replay_device,
            stop=(step, 0),
            salt=salt,
            limits=setting.limits,
            env=setting.plan.replay_env,
            progress=lambda done, steps: setting.progress("lineage", done, steps, f"replaying {name}"),
        )
    except WeighbridgeError as error:
        return error
