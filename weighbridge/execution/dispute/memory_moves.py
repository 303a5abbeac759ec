"""What the parties to a dispute about a chip's memory send: each from the bytes that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weighbridge.core.digests import Leaf, bytes_digest, region_digest
from weighbridge.core.errors import UsageError
from weighbridge.core.memory_map import Held
from weighbridge.core.treehash import descent
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.dispute.asking import split
from weighbridge.execution.dispute.confidential import ConfidentialDisputeError
from weighbridge.execution.dispute.leaves import first_difference
from weighbridge.execution.dispute.memory_claim import KeyedLeaf, Source
from weighbridge.execution.dispute.memory_game import MemoryGame
from weighbridge.execution.dispute.memory_messages import Doubt, Equality, Granted, Layer
from weighbridge.execution.dispute.messages import Shown
from weighbridge.transcript.confidential_runs import is_confidential
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import checkpoint_digest
from weighbridge.transcript.tensor_file import raw_bytes


@dataclass(frozen=True)
class Named:
    """Bytes that a party holds, and what names them."""

    data: bytes
    source: Source


def of_state(run: Path, step: int, region: str) -> Named:
    """Returns a storage of the state before a step, out of a checkpoint of a transcript.

    Raises:
        ConfidentialDisputeError: The run is confidential.
        UsageError: The state has no such storage.
        WeighbridgeError: There is no such checkpoint, or it cannot be read.
    """
    transcript = Transcript.open(run)
    if is_confidential(transcript.draft):
        raise ConfidentialDisputeError(
            "The run is confidential, and a claim about its memory would show digests of it; nothing is written."
        )
    checkpoint = transcript.checkpoint(step)
    if region not in checkpoint.storages:
        known = ", ".join(sorted(checkpoint.storages)[:8])
        raise UsageError(f"the state before step {step} has no storage {region!r}; it has {known}")
    contents = {name: bytes(raw_bytes(each)) for name, each in checkpoint.storages.items()}
    source = Source(
        kind="state", digest=checkpoint_digest(checkpoint), step=step, region=region,
        regions={name: Held(len(data), bytes_digest(data)) for name, data in contents.items()}, rng=checkpoint.rng,
    )  # fmt: skip
    return Named(contents[region], source)


def of_bytes(data: bytes) -> Named:
    """Returns bytes that are named by their digest alone."""
    return Named(data, Source(kind="bytes", digest=bytes_digest(data), size=len(data)))


def storage_of(leaves: Sequence[Leaf], salt: bytes, data: bytes) -> int | None:
    """Returns the place of the storage that held these bytes, in ascending order; None if none did."""
    held = (len(data), region_digest(data, salt))
    return sorted(leaves).index(held) if held in leaves else None


def claim(token: bytes, salt: bytes, leaves: Sequence[Leaf], place: int, named: Named) -> Equality:
    """Returns the message that opens a dispute.

    Args:
        token: The snapshot, as the chip's log has it.
        salt: Of its boot.
        leaves: All storages that the chip opened.
        place: The storage that is to have held the bytes, in ascending order.
        named: The bytes.
    """
    return Equality(
        token=token, salt=salt, leaf=KeyedLeaf.among(leaves, place).to_cbor(), source=named.source.to_cbor(),
        keyed=descent.layer(named.data, (), salt), plain=descent.layer(named.data, ()),
    )  # fmt: skip


def reply(game: MemoryGame, data: bytes) -> Granted | Doubt | Layer | Shown:
    """Returns what is due from the party that holds these bytes.

    Args:
        game: How far the dispute has come.
        data: What the party says the storage held, or the bytes that are claimed.

    Raises:
        UsageError: These are not the bytes of either, or nothing is due.
    """
    salt, size, turn = game.claim.salt, game.claim.size, game.due()[1]
    if len(data) != size:
        raise UsageError(f"the dispute is about {size} bytes, and these are {len(data)}; give those that are disputed")
    if turn == "layer":
        return Layer(keyed=descent.layer(data, game.path, salt), plain=descent.layer(data, game.path))
    if turn == "opening":
        return Shown(opening=_chunk(data, game.path))
    if turn == "nothing":
        raise UsageError("nothing is due from either party; have the referee rule (`weighbridge dispute judge`)")
    ours = region_digest(data, salt) == game.claim.leaf.digest, bytes_digest(data) == game.claim.source.held().content
    if all(ours):
        return Granted()
    if not any(ours):
        raise UsageError(
            "these bytes are neither those of the chip's storage nor those that are claimed, so they refute nothing; "
            "give one of both"
        )
    return _doubt(game, data)


def contents(game: MemoryGame, place: Path) -> bytes:
    """Returns the bytes that a dispute is about, out of a party's transcript or file.

    Raises:
        UsageError: It is a transcript where a file is asked for, another state, of another size, or cannot be read.
        WeighbridgeError: The checkpoint cannot be read.
    """
    source = game.claim.source
    if place.is_file():
        try:
            if (found := place.stat().st_size) != game.claim.size:
                raise UsageError(f"the dispute is about {game.claim.size} bytes, and {place} has {found}; name another")
            return place.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {place} ({error.strerror}); name the file with the bytes") from None
    if source.kind != "state":
        raise UsageError("the dispute is about bytes and not about a state; name the file with the bytes")
    named = of_state(place, source.step, source.region)
    if named.source.digest != source.digest:
        raise UsageError(
            f"the claim names another state than the one before step {source.step} of {place}; answer with the run "
            "that it is about, or with --decline"
        )
    return named.data


def _doubt(game: MemoryGame, data: bytes) -> Doubt:
    keyed = descent.layer(data, game.path, game.claim.salt), game.keyed
    plain = descent.layer(data, game.path), game.plain
    found = [at for one, other in (keyed, plain) if (at := first_difference(split(one), split(other))) is not None]
    if not found:
        raise UsageError("below this node these bytes have the values that were shown; give those that you gave before")
    path = (*game.path, min(found))
    last = len(path) == descent.height(game.claim.size)
    return Doubt(node=path[-1], chunk=_chunk(data, path) if last else b"")


def _chunk(data: bytes, path: Sequence[int]) -> bytes:
    at = CHUNK * descent.chunk_number(len(data), path)
    return data[at : at + CHUNK]
