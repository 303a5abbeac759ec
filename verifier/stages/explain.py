"""Asks the Provers where every snapshot came from."""

from __future__ import annotations

from functools import partial

from verifier.checks import provenance
from verifier.contact.clients import ProverClient
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.facts import Explanation, SnapshotFacts
from verifier.stages.setting import Setting
from weighbridge.core.errors import WeighbridgeError


def run(setting: Setting, collected: Collected) -> None:
    """Asks for each snapshot whose chip has a Prover; a Prover that does not answer is not asked again.

    What a Prover's service does not explain, a transcript that was uploaded may. Of snapshots that chips open to sealed
    workers alone, no party is asked where they came from: explanations name positions and transcripts.
    """
    for done, snapshot in enumerate(collected.snapshots):
        setting.progress("provenance", done, len(collected.snapshots), f"asking where {snapshot.subject} came from")
        place = f"{snapshot.chip.ueid.hex()}/{snapshot.index}"
        if snapshot.confidential and ("opening", place) not in setting.units:  # it is there in a sealed worker
            snapshot.explanation = provenance.withheld(snapshot)
        elif snapshot.chip.prover_address or setting.uploaded is not None:
            snapshot.explanation = answer = setting.units.once(
                "explanation",
                place,
                partial(_ask, setting, collected, snapshot),
                to=fact_codec.explanation_to,
                of=fact_codec.explanation_of,
            )
            if isinstance(answer, WeighbridgeError):
                collected.remember_silence(snapshot.chip.prover_address, answer)


def _ask(setting: Setting, collected: Collected, snapshot: SnapshotFacts) -> Explanation | WeighbridgeError | None:
    answer = _ask_prover(setting, collected, snapshot)
    if isinstance(answer, Explanation) or setting.uploaded is None:
        return answer
    if isinstance(answer, WeighbridgeError):
        collected.remember_silence(snapshot.chip.prover_address, answer)
    return setting.uploaded.explain(snapshot) or answer


def _ask_prover(
    setting: Setting, collected: Collected, snapshot: SnapshotFacts
) -> Explanation | WeighbridgeError | None:
    address = snapshot.chip.prover_address
    if not address:
        return None
    if address in collected.silent:
        return collected.silent[address]
    try:
        with ProverClient(address, setting.credentials) as client:
            return client.explain(snapshot.verified.token)
    except WeighbridgeError as error:
        return error
