"""What makes a tiled log the log of a chip: the head token that binds a checkpoint and its log key to a device.

A checkpoint says that whoever has the log key signed it. The head token says, under the chip's attestation key, which
log key that is, and repeats size and root. So both together are the chip's word, for anybody who trusts its
manufacturer, and neither is without the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography import x509

from weighbridge import tlog, tokens
from weighbridge.errors import TokenError
from weighbridge.tlog import Checkpoint, Note, NoteKey
from weighbridge.tokens import Token, Verified


def log_key(head: Token) -> NoteKey:
    """Returns the log key that a verified head token names."""
    public = head.body["log_key"]
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
    size, root = head.body["size"], head.body["root"]
    assert isinstance(size, int)
    assert isinstance(root, bytes)
    return size, root
