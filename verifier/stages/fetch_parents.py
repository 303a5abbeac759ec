"""Finds out where each run began, and fetches the parents that runs declare."""

from __future__ import annotations

import secrets
from functools import partial

from verifier.model import lineage
from verifier.model.collected import Collected
from verifier.model.facts import TranscriptFacts
from verifier.model.replay_task import Task
from verifier.stages import fetch, supplement_requests
from verifier.stages.replay_runner import replayed, task
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Traces every transcript that was fetched; replays states that no checkpoint holds, and the steps before them."""
    provers = {facts.id: prover for (prover, _), facts in collected.transcripts.items()}

    def parent(child: TranscriptFacts, identifier: str) -> TranscriptFacts:
        prover = provers[child.id]
        provers.setdefault(identifier, prover)
        return fetch.transcript(setting, collected, prover, identifier, parent=True)

    known = list(collected.transcripts.values())
    setting.progress("lineage", 0, len(known), f"finding out where {len(known)} runs began")
    salt = setting.units.once("lineage", "salt", lambda: secrets.token_bytes(32), to=bytes, of=bytes)
    collected.lineages = lineage.trace(
        known, parent, partial(_replay_to, setting, collected), partial(_replay_steps, setting, collected), salt=salt
    )


def _replay_to(
    setting: Setting, collected: Collected, transcript: OpenedTranscript, step: int, salt: bytes
) -> ReplayResult | WeighbridgeError:
    supplement_requests.ask(setting, collected, transcript, (step - 1, step))
    return _replayed(setting, collected, transcript, task(setting, transcript, stop=(step, 0), salt=salt))


def _replay_steps(
    setting: Setting, collected: Collected, transcript: OpenedTranscript, steps: tuple[int, int]
) -> ReplayResult | WeighbridgeError:
    supplement_requests.ask(setting, collected, transcript, steps)
    return _replayed(setting, collected, transcript, task(setting, transcript, steps=steps))


def _replayed(
    setting: Setting, collected: Collected, transcript: OpenedTranscript, each: Task
) -> ReplayResult | WeighbridgeError:
    result = replayed(setting, "lineage", [each])[each.key].result
    collected.lineage_replays.append((transcript.digest, result))
    return result
