"""Does the order of the data, and with it the seed of W_0, follow from the data themselves?

Choi, Shavit and Duvenaud (2023) derive one seed from all records, and from it W_0 and the order. That rules out seed
grinding (trying many seeds and keeping one whose run comes out as wished), and data made up to lead from one given
state to another.
Whether the transcript used the committed order is a matter of `data`; here it is asked who chose it.
"""

from __future__ import annotations

from typing import Literal

from verifier.model.facts import TranscriptFacts
from verifier.model.policies import TRANSCRIPTS_AS_DESIGNED, TranscriptPolicy
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript

Order = Literal["verifiable", "seeded", "listed", "uncommitted"]
"""`verifiable`: its seed follows from the data. `seeded`: from a seed that the Prover chose. `listed`: the Prover gave
it record by record. `uncommitted`: there was no commitment before training, as with data that come while it runs."""


def order_of(transcript: OpenedTranscript) -> Order:
    """Returns who chose the order of a transcript's data."""
    return "uncommitted" if transcript.data is None else transcript.data.order


def seed_follows(transcript: OpenedTranscript) -> bool:
    """Whether the seed of all randomness inside steps, W_0's too, is the one that follows from the data."""
    return transcript.data is not None and transcript.data.seed_follows


def check(facts: TranscriptFacts, policy: TranscriptPolicy = TRANSCRIPTS_AS_DESIGNED) -> list[Finding]:
    """Reports an order or a seed that the Prover chose, if the policy does not accept that.

    Data without a commitment are reported by `data`, whatever the policy says.
    """
    transcript = facts.opened
    if policy.order == "accepted" or isinstance(transcript, WeighbridgeError) or transcript.data is None:
        return []
    order, follows = order_of(transcript), seed_follows(transcript)
    if order == "verifiable" and follows:
        return []
    return [
        Finding(
            id="data.order.chosen",
            message="the Prover chose the order of its data, or the seed of its weights; have it derive both from the "
            "data (VerifiableOrder)",
            expected="order and seed that follow from the data",
            found=f"{order} order, {'derived' if follows else 'chosen'} seed",
            subject=f"transcript {facts.id}",
            severity=policy.order,
            evidence={"order": order, "seed_follows": follows},
        )
    ]
