"""Records of data sets that the Verifier asked to see, drawn so that nobody could know which."""

from __future__ import annotations

from dataclasses import dataclass, field

from blake3 import blake3

from verifier import sampling
from weighbridge.errors import WeighbridgeError
from weighbridge.recordopening import MAX_RECORDS, OpenedRecord
from weighbridge.transcript import Transcript

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


def asked(transcript: Transcript, seed: bytes, count: int) -> RecordFacts | None:
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
    population = [record.to_bytes(8, "big") for record in range(len(data))]
    drawn = sampling.draw(population, min(count, len(data), MAX_RECORDS), own)
    wanted = [int.from_bytes(each, "big") for each in drawn]
    used = {record for step in transcript.records() for record in step.records}
    return RecordFacts(
        id=transcript.digest, root=data.root(), count=len(data), asked=wanted, used=used & set(wanted)
    )  # fmt: skip
