"""Asks Provers to open random records of the data sets behind their transcripts, if the plan asks for that."""

from __future__ import annotations

from verifier.contact.clients import ProverClient
from verifier.model.collected import Collected
from verifier.model.opened_records import asked
from verifier.stages.replay_segments import explaining
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.record_opening import OpenedRecord


def run(setting: Setting, collected: Collected) -> None:
    """Asks for the records of each transcript that explains snapshots."""
    count = setting.plan.segments.records
    if not count:
        return
    provers = {facts.id: prover for (prover, _), facts in collected.transcripts.items()}
    for transcript, _, _ in explaining(collected, sharded="none").values():
        facts = asked(transcript, setting.plan.seed, count)
        if facts is None:
            continue
        setting.progress("records", 0, len(facts.asked), f"asking for {len(facts.asked)} records of {facts.id[:16]}")
        facts.opened = _open(setting, collected, provers[facts.id], facts.id, facts.asked)
        collected.records.append(facts)


def _open(
    setting: Setting, collected: Collected, prover: str, transcript_id: str, records: list[int]
) -> list[OpenedRecord] | WeighbridgeError:
    if prover in collected.silent:
        return collected.silent[prover]
    try:
        with ProverClient(prover, setting.credentials) as client:
            return client.records(transcript_id, records)
    except WeighbridgeError as error:
        collected.remember_silence(prover, error)
        return error
