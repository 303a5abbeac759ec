"""Counts what the tapes of each run say about it: FLOPs, programs, data used, hyperparameters."""

from __future__ import annotations

from functools import partial

from verifier import records, runs
from verifier.collected import Collected
from verifier.stages.setting import Setting
from weighbridge.errors import WeighbridgeError
from weighbridge.runfacts import RunFacts, examine
from weighbridge.transcript import Transcript


def run(setting: Setting, collected: Collected) -> None:
    """Examines every transcript of a run that explains a snapshot; why one cannot be is kept in its place."""
    wanted = [facts for ranks in runs.grouped(collected).values() for facts in ranks]
    for done, facts in enumerate(wanted):
        if isinstance(facts.opened, Transcript):
            setting.progress("examine", done, len(wanted), f"counting the FLOPs of {facts.opened.manifest.name}")
            collected.examined[facts.id] = setting.units.once(
                "examined",
                facts.opened.digest,
                partial(_examine, setting, facts.opened),
                to=records.examined_to,
                of=records.examined_of,
            )


def _examine(setting: Setting, transcript: Transcript) -> RunFacts | WeighbridgeError:
    try:
        return examine(transcript.path, limits=setting.limits, env=setting.plan.replay_env)
    except WeighbridgeError as error:
        return error
