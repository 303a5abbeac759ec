"""Asks Provers for the rounding logs of steps that are about to be replayed, of runs that have their logs on demand.

They are asked for whether or not the replay would match without. Else a Prover could tell by the Verifier's hardware
when it will need them, and a run whose logs no Prover can make would look like any other until it matters.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from verifier.contact.clients import ProverClient
from verifier.contact.supplement_receiving import receive
from verifier.contact.supplement_records import SupplementRecords
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.supplement_facts import LATE, Asked, Steps
from verifier.stages.setting import Setting
from verifier.units import key_of
from weighbridge.core.errors import Finding, ProverError, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.supplements import folder_of


def ask(setting: Setting, collected: Collected, transcript: OpenedTranscript, steps: Steps) -> None:
    """Asks for the logs on the way from the checkpoint before some steps to their end, each once in an inspection.

    A Prover who let a deadline pass, or does not answer, is not asked again in this inspection, as each further
    request could cost another deadline. It counts as asked.
    """
    if not transcript.on_demand:
        return
    begin = max((c for c in transcript.checkpoint_steps if c <= steps[0]), default=0)
    known = [each.steps for each in collected.supplements if each.transcript == transcript.digest]
    missing = [n for n in range(begin, steps[1]) if not any(first <= n < last for first, last in known)]
    if not missing:
        return
    prover = next((address for address, name in collected.transcripts if name == transcript.digest), "")
    wanted = missing[0], missing[-1] + 1
    setting.progress("supplements", 0, 0, f"asking for the rounding logs of steps {wanted[0]} to {wanted[1] - 1}")
    if not collected.supplements:
        collected.earlier.update(SupplementRecords(setting.registry.session).earlier(setting.id))
    asked = setting.units.once(
        "supplements",
        key_of(prover, transcript.digest, list(wanted)),
        partial(_asked, setting, collected, prover, transcript, wanted),
        to=fact_codec.asked_to,
        of=partial(_read, transcript),
    )
    if prover and asked.why is not None:
        collected.remember_silence(prover, asked.why)
    collected.supplements.append(asked)


def _read(transcript: OpenedTranscript, raw: Any) -> Asked:
    """Reads a request that was stored; one whose logs are gone is done anew."""
    asked = fact_codec.asked_of(raw)
    if asked.came:
        folder_of(transcript.path).stat()
    return asked


def _asked(setting: Setting, collected: Collected, prover: str, transcript: OpenedTranscript, steps: Steps) -> Asked:
    records, begun = SupplementRecords(setting.registry.session), time.monotonic()
    deadline, key = setting.plan.regeneration_s, transcript.manifest.public
    came, findings = 0, list[Finding]()
    why: WeighbridgeError | None = _not_asked(collected, prover)
    if why is None:
        got = receive(
            setting.cache,
            partial(ProverClient, prover, setting.credentials),
            transcript,
            steps,
            records.known(transcript.draft_digest, key, steps),
            deadline_s=deadline,
            progress=lambda done, of: setting.transient(
                "supplements", done, of, f"the Prover makes rounding logs: {done} of {of} steps"
            ),
        )
        records.keep(got.signed)
        came, findings, why = len(got.steps), got.findings, got.why
    asked = Asked(
        prover=prover, transcript=transcript.digest, steps=steps, came=came, deadline_s=deadline,
        seconds=time.monotonic() - begun, why=why, findings=findings,
    )  # fmt: skip
    records.note(setting.id, asked)
    return asked


def _not_asked(collected: Collected, prover: str) -> ProverError | None:
    """Returns why a Prover is not asked; None if it is."""
    if not prover:
        return ProverError("the transcript was uploaded, and no Prover's service is known that makes its logs")
    if prover in collected.silent:
        return ProverError(collected.silent[prover].message)
    if any(each.prover == prover and each.why and each.why.reason == LATE for each in collected.supplements):
        return ProverError("it let a deadline pass in this inspection, and is not asked again in it", code=LATE)
    return None
