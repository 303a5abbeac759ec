"""Counts what the tapes of each run say about it: FLOPs, programs, data used, hyperparameters.

Each in a confined process, as many at a time as there are replays.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.report import run_facts_for_rules
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.run_facts import RunFacts, examine
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Examines every transcript of a run that explains a snapshot; why one cannot be is kept in its place."""
    wanted = [
        (facts.id, facts.opened)
        for ranks in run_facts_for_rules.grouped(collected).values()
        for facts in ranks
        if isinstance(facts.opened, OpenedTranscript)
    ]
    with ThreadPoolExecutor(max_workers=setting.farm.slots, thread_name_prefix="examine") as pool:
        begun = {
            opened.digest: pool.submit(_examine, setting, opened)
            for _, opened in wanted
            if ("examined", opened.digest) not in setting.units
        }
        try:
            for done, (name, opened) in enumerate(wanted):
                setting.progress("examine", done, len(wanted), f"counting the FLOPs of {opened.manifest.name}")
                collected.examined[name] = setting.units.once(
                    "examined",
                    opened.digest,
                    begun[opened.digest].result if opened.digest in begun else partial(_examine, setting, opened),
                    to=fact_codec.examined_to,
                    of=fact_codec.examined_of,
                )
        finally:
            pool.shutdown(cancel_futures=True)


def _examine(setting: Setting, transcript: OpenedTranscript) -> RunFacts | WeighbridgeError:
    try:
        return examine(transcript.path, limits=setting.limits, env=setting.plan.replay_env)
    except WeighbridgeError as error:
        return error
