"""`weighbridge dispute memory`: that a storage of a chip held exactly these bytes, and the way down to one chunk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, read_file, signing_key, write_file
from weighbridge.core.errors import UsageError, WeighbridgeError

if TYPE_CHECKING:
    from weighbridge.core.digests import Leaf
    from weighbridge.execution.dispute.memory_game import MemoryGame
    from weighbridge.execution.dispute.messages import Content, Message

_MOST_BYTES = 8 << 30


def memory(
    source: Annotated[Path, typer.Argument(help="Transcript directory with a checkpoint, or a file with the bytes.")],
    evidence: Annotated[Path, typer.Option("--evidence", help="Bundle of evidence about the snapshot.")],
    manufacturer: Annotated[Path, typer.Option("--manufacturer", help="Root certificate of the chips, as PEM.")],
    key: Annotated[Path, typer.Option("--key", help="Your private key (`weighbridge rules key FILE` makes one).")],
    step: Annotated[int | None, typer.Option("--step", help="Of a transcript: the state before this step.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Of a transcript: the storage's name.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File of the dispute; it must not exist yet.")] = None,
    defender: Annotated[
        str | None, typer.Option("--defender", help="With a referee: the defender's public key, in hex.")
    ] = None,
    referee: Annotated[
        str | None, typer.Option("--referee", envvar="WEIGHBRIDGE_REFEREE", help="The referee's host:port.")
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option("--credentials", envvar="WEIGHBRIDGE_CREDENTIALS", help="With a referee: directory of your own."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Open a dispute about a chip's memory: claim that a storage in a snapshot held exactly these bytes.

    They are a storage of a state, or a file. `answer` goes on from there: down both trees of digests, to one chunk.
    """
    from weighbridge.cli import dispute
    from weighbridge.execution.dispute import memory_moves
    from weighbridge.execution.dispute.memory_game import MemoryGame
    from weighbridge.execution.dispute.messages import START, signed

    if (out is None) == (referee is None):
        raise UsageError("a dispute is a file or a referee's; give either --out or --referee")
    if out is not None and out.exists():
        raise UsageError(f"{out} exists; give another file")
    answering = None if referee is None else dispute.key_in_hex(defender or "")
    signing = signing_key(key)
    if source.is_dir():
        if step is None or region is None:
            raise UsageError("of a transcript, a storage of one state is claimed; give --step and --region")
        named = memory_moves.of_state(source, step, region)
    else:
        named = memory_moves.of_bytes(read_file(source, max_bytes=_MOST_BYTES))
    token, salt, leaves = _snapshot(evidence, manufacturer)
    place = memory_moves.storage_of(leaves, salt, named.data)
    if place is None:
        raise UsageError("no storage of the snapshot held exactly these bytes, so no claim can be made of them")
    content = memory_moves.claim(token, salt, leaves, place, named)
    claim = MemoryGame.open(content).claim
    message = signed(START, content, signing)
    said: dict[str, Any] = {"storage": place, "size": claim.size, "bytes": len(message.data)}
    if out is not None:
        write_file(out, message.data)
    elif answering is not None:
        with dispute.connected(referee, credentials) as service:
            said["dispute"], said["merged"] = service.open(message, answering, signing)
    if as_json:
        print_json(said)
        return
    print(f"storage {place} of the snapshot, {claim.size} bytes")
    if "dispute" in said:
        print(("joined dispute " if said["merged"] else "dispute ") + said["dispute"])


def reply(game: MemoryGame, place: Path) -> Content:
    """Returns what is due from the party whose transcript or file this is."""
    from weighbridge.execution.dispute import memory_moves

    return memory_moves.reply(game, memory_moves.contents(game, place))


def require_signed(first: Message, root: Path | None) -> None:
    """Checks, before a party shows anything, that a chip signed the snapshot of a claim: the referee does not.

    Args:
        first: The message that opened the dispute.
        root: PEM file of the root certificate of the chips; without one, nothing is checked.

    Raises:
        TokenError, IdentityError: No chip under that root did.
    """
    from weighbridge.attest import tokens
    from weighbridge.cli.chip import description
    from weighbridge.execution.dispute.memory_messages import Equality

    if root is not None and isinstance(first.content, Equality):
        tokens.verify(first.content.token, description.read_root(root))


def sent(game: MemoryGame, due: str, size: int) -> str:
    """Says what was sent, for people."""
    token = game.claim.token
    about = f"about storage {game.claim.leaf.index} in entry {token.index} of chip {token.ueid.hex()}"
    if game.granted:
        return f"{due} {about}, {size} bytes; the claim is not denied"
    return f"{due} {about}, {size} bytes; nodes denied: {' '.join(map(str, game.path)) or 'none'}"


def about(data: bytes, root: Path | None) -> dict[str, str]:
    """Returns what a finished dispute is about, by name; nothing if it is not about a chip's memory.

    Args:
        data: The file.
        root: PEM file of the root certificate of the chips; without one, who signed the snapshot is not checked.

    Raises:
        TokenError, IdentityError: The snapshot is not signed by a chip under that root.
    """
    from weighbridge.execution.dispute.memory_claim import MemoryClaim
    from weighbridge.execution.dispute.memory_messages import Equality
    from weighbridge.execution.dispute.messages import unpack

    first = next(iter(unpack(data)))
    if not isinstance(first.content, Equality):
        return {}
    claim = MemoryClaim.read(first.content)
    require_signed(first, root)
    signer = "not checked, give --root" if root is None else "a chip under this root"
    state = f"{claim.source.region!r} of the state before step {claim.source.step}, digest "
    return {
        "snapshot": f"entry {claim.token.index} of chip {claim.token.ueid.hex()}; signed by: {signer}",
        "storage": f"{claim.leaf.index}, {claim.size} bytes, keyed digest {claim.leaf.digest.hex()}",
        "claimed": (state if claim.source.kind == "state" else "bytes, digest ") + claim.source.digest.hex(),
    }


def _snapshot(evidence: Path, manufacturer: Path) -> tuple[bytes, bytes, list[Leaf]]:
    """Returns token, salt and storages of the snapshot that a bundle of evidence is about.

    Raises:
        UsageError: It is about no snapshot, or has no opening of it.
        WeighbridgeError: The bundle is malformed, or the chip's log does not verify.
    """
    from verifier.evidence import bundle
    from verifier.model import fact_codec
    from weighbridge.attest import chip_log
    from weighbridge.cli.chip import description
    from weighbridge.core.bounded import decode_cbor

    root = description.read_root(manufacturer)
    with tempfile.TemporaryDirectory(prefix="weighbridge-dispute-") as name:
        parts = bundle.read(evidence, Path(name))
        statement, _ = bundle.open_statement(read_file(parts[bundle.STATEMENT]))
        entry = statement.subject.entry
        if entry is None or "chip/opening.cbor" not in parts:
            raise UsageError(f"{evidence} has no opening of a snapshot; export the evidence with --snapshot CHIP:ENTRY")
        log = chip_log.read_directory(Path(name) / "chip", root)
        if log.findings:
            raise UsageError(f"the chip's log in {evidence} does not verify: {log.findings[0].message}")
        try:
            opening = fact_codec.opening_of(decode_cbor(read_file(parts["chip/opening.cbor"])))
            token = log.entries[entry]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise UsageError(f"the opening in {evidence} is none of a snapshot; ask who made the bundle") from None
    if isinstance(opening, WeighbridgeError):
        raise opening
    return token, opening.salt, list(opening.leaves)
