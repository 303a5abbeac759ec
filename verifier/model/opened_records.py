"""Records of data sets that the Verifier asked to see, drawn so that the Prover could not know which."""

from __future__ import annotations

from dataclasses import dataclass, field

from blake3 import blake3

from verifier.model import seeded_draw
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.record_opening import MAX_RECORDS, OpenedRecord

_DOMAIN = b"weighbridge/records/1\x00"


@dataclass(kw_only=True, slots=True)
class RecordFacts:
    """The records of one transcript's data set that were asked for.

    Attributes:
        id: The transcript.
        root: Root over the record digests, from the draft (32 bytes).
        count: Number of records.
        asked: Ids, in the order drawn.
        used: Those of them that a step of the transcript used.
        opened: What the Prover showed, or why it showed nothing.
    """

    id: str
    root: bytes
    count: int
    asked: list[int]
    used: set[int]
    opened: list[OpenedRecord] | WeighbridgeError = field(default_factory=list)


def asked(transcript: OpenedTranscript, seed: bytes, count: int) -> RecordFacts | None:
    """Draws records of a transcript's data set, as chips are drawn; None if its data were not committed to.

    The population are the ids as 8 bytes big-endian; the seed is BLAKE3(`weighbridge/records/1` || 0x00 || plan's seed
    || transcript's identifier).

    Args:
        transcript: A verified transcript.
        seed: The plan's seed.
        count: How many to draw; all if there are fewer.
    """
    data = transcript.data
    if data is None or not count:
        return None
    own = blake3(_DOMAIN + seed + bytes.fromhex(transcript.digest)).digest()
    population = [record.to_bytes(8, "big") for record in range(data.count)]
    drawn = seeded_draw.draw(population, min(count, data.count, MAX_RECORDS), own)
    wanted = [int.from_bytes(each, "big") for each in drawn]
    return RecordFacts(
        id=transcript.digest, root=data.root, count=data.count, asked=wanted, used=transcript.used(wanted)
    )
