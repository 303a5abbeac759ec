"""What makes a tiled log the log of a chip: the head token that binds a checkpoint and its log key to a device.

A checkpoint says that the holder of the log key signed it. The head token says, under the chip's attestation key, which
log key that is, and repeats size and root. To a reader who trusts the manufacturer, both together are the chip's word,
and neither is without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from weighbridge.attest import tiles, tlog, tokens
from weighbridge.attest.tlog import Checkpoint, Note, NoteKey
from weighbridge.attest.tokens import Token, Verified, shown
from weighbridge.core import merkle
from weighbridge.core.bounded import open_regular
from weighbridge.core.errors import Finding, TokenError, TranscriptError, UsageError, WeighbridgeError


def log_key(head: Token) -> NoteKey:
    """Returns the log key that a verified head token names."""
    public = shown(head)["log_key"]
    assert isinstance(public, bytes)
    return NoteKey(tlog.origin(head.ueid), tlog.LOG, public)


def open_checkpoint(data: bytes, head: Token) -> tuple[Checkpoint, Note]:
    """Reads a chip's checkpoint.

    Args:
        data: The note.
        head: The verified head token that came with it.

    Returns:
        What it says, and the note with cosignatures, which are not verified.

    Raises:
        NoteError: It is malformed, or not signed by the log key that the token names (`chip.note.signature`).
        TokenError: The token is no head, or names another size or root (`chip.log.head`).
    """
    if head.kind != "head":
        raise TokenError("What came with the checkpoint is an entry of the log and no head; ask the chip again.")
    checkpoint, note = tlog.open_checkpoint(data, log_key(head))
    if checkpoint != Checkpoint(tlog.origin(head.ueid), *_promised(head)):
        raise TokenError(
            "The checkpoint and the head token name different logs; ask the chip again.", code="chip.log.head"
        )
    return checkpoint, note


def verify_entry(
    proof: tlog.Proof, entry: bytes, root: x509.Certificate, witnesses: Sequence[NoteKey] = ()
) -> tuple[Verified, Checkpoint]:
    """Verifies, with nothing but a proof file, that a chip signed an entry and put it into its log.

    Args:
        proof: As read from a file; its extra data is the chip's head token.
        entry: The entry: a token.
        root: The manufacturer's root certificate.
        witnesses: Keys of which every one must have cosigned the checkpoint.

    Returns:
        The verified entry and the checkpoint of the tree that it is in.

    Raises:
        TokenError: Token or entry does not verify, or they are not of one chip, or the entry has another place.
        IdentityError: A certificate chain does not lead to `root`.
        NoteError: A signature on the checkpoint is missing or false.
        ProofError: The entry is not in the tree.
    """
    if proof.extra is None:
        raise TokenError("The proof file has no head token, so nothing says whose log it is; have another made.")
    head, verified = tokens.verify(proof.extra, root).token, tokens.verify(entry, root)
    checkpoint, _ = open_checkpoint(proof.checkpoint.encode(), head)
    tlog.verify_proof(proof, entry, log_key(head), witnesses)
    if (verified.token.ueid, verified.token.index) != (head.ueid, proof.index) or verified.token.kind == "head":
        raise TokenError("The entry is not of this chip, or not of this place in its log.", code="chip.log.counter")
    return verified, checkpoint


def _promised(head: Token) -> tuple[int, bytes]:
    size, root = shown(head)["size"], shown(head)["root"]
    assert isinstance(size, int)
    assert isinstance(root, bytes)
    return size, root


@dataclass(kw_only=True, slots=True)
class Directory:
    """A log that was read from a directory of tiles.

    Attributes:
        head: The chip's head token as it lies there.
        checkpoint: What the signed checkpoint says.
        note: The signed checkpoint.
        entries: All entries.
        findings: What is wrong with them.
    """

    head: bytes
    checkpoint: Checkpoint
    note: Note
    entries: list[bytes]
    findings: list[Finding] = field(default_factory=list)


def read_directory(path: Path, root: x509.Certificate, witnesses: Sequence[NoteKey] = ()) -> Directory:
    """Reads a log from a directory of tiles and checks everything in it.

    Args:
        path: With `checkpoint`, `head` and `tile`.
        root: The manufacturer's root certificate.
        witnesses: Keys of which every one must have cosigned the checkpoint.

    Raises:
        UsageError: There is no such directory.
        WeighbridgeError: Head or checkpoint do not verify, or entries are missing: nothing can be said of the log then.
    """
    note, token = _read(path / "checkpoint", tlog.MAX_NOTE_BYTES), _read(path / "head", tokens.MAX_TOKEN_BYTES)
    head = tokens.verify(token, root).token
    checkpoint, signed = open_checkpoint(note, head)
    for key in witnesses:
        signed.verify(key)
    entries, wrong = tiles.read(path, checkpoint.size)
    found = Directory(head=token, checkpoint=checkpoint, note=signed, entries=entries)
    for name in wrong:
        error = tiles.TilesError("The tile does not follow from the entries; fetch the log again.")
        found.findings.append(error.finding(subject=str(path / name)))
    if merkle.root([merkle.leaf_hash(entry) for entry in entries]) != checkpoint.root:
        message = "The entries are not those under the signed root."
        found.findings.append(TokenError(message, code="chip.log.head").finding(subject=str(path)))
    try:
        for verified in tokens.verify_log(entries, root):
            if verified.token.ueid != head.ueid:
                raise TokenError("Another chip signed the entries.", code="chip.identity.mismatch")
    except WeighbridgeError as error:
        found.findings.append(error.finding(subject=str(path)))
    return found


def prove(log: Directory, index: int) -> tlog.Proof:
    """Returns the proof that an entry is in a log, for a file that can be verified offline.

    Raises:
        UsageError: There is no such entry.
    """
    hashes = [merkle.leaf_hash(entry) for entry in log.entries]
    return tlog.Proof(index, tuple(merkle.inclusion_proof(hashes, index)), log.note, log.head)


def compare(log: Directory, other: bytes) -> list[Finding]:
    """Compares a log with a checkpoint of the same chip's log that another party was shown.

    Args:
        log: What one Verifier has.
        other: The note that another has.

    Returns:
        A finding with both checkpoints if the chip signed two histories.

    Raises:
        NoteError: The note is malformed, or not signed by the log's key.
        UsageError: It is of another log, or of more entries than `log` has.
    """
    key = log_key(tokens.read_own(log.head))
    note = tlog.parse_note(other)
    checkpoint = tlog.parse_checkpoint(note.text)
    if checkpoint.origin != log.checkpoint.origin:
        raise UsageError("The checkpoint is of another chip's log; compare those of one chip.")
    note.verify(key)
    if checkpoint.size > log.checkpoint.size:
        raise UsageError("The checkpoint is of a longer log; read the chip's log again, then compare.")
    mine = merkle.root([merkle.leaf_hash(entry) for entry in log.entries[: checkpoint.size]])
    if mine == checkpoint.root:
        return []
    return [
        Finding(
            id="chip.log.fork",
            message="one chip signed two different histories: inspect it on site",
            expected=mine.hex(),
            found=checkpoint.root.hex(),
            subject=f"{checkpoint.origin} at {checkpoint.size} entries",
            evidence={"one": log.note.encode().decode(), "other": note.encode().decode()},
        )
    ]


def _read(path: Path, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(limit + 1)
    except (OSError, TranscriptError) as error:
        raise UsageError(f"Cannot read {path} ({error}); name the directory of an exported log.") from error
