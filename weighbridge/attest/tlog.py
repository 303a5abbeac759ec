"""The texts of a chip's log: checkpoints, cosignatures and offline proofs, as C2SP writes them.

A *checkpoint* (c2sp.org/tlog-checkpoint) is a signed note (c2sp.org/signed-note): three lines with the log's origin,
size and root, and below an empty line one signature line for each who vouches for them. The chip signs with its log key
(Ed25519, type 0x01). A Verifier that holds every entry, as a witness, adds a timestamped cosignature (type 0x04,
c2sp.org/tlog-cosignature). A *proof* (c2sp.org/tlog-proof) puts an entry's inclusion proof above a checkpoint, so that
it can be verified offline. docs/formats/chip-log.md has the bytes.

That a log key belongs to a chip is not in these texts: the chip's head token says so, see `weighbridge.attest.tokens`.
Reading is strict: there is one way to write each text, and everything else is a `NoteError`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from weighbridge.core import merkle
from weighbridge.core.errors import FormatError, UsageError

KEY_SIZE = 32
KeyType = Literal[1, 4]
LOG: KeyType = 1
"""Type of a key that signs the text alone (signed-note)."""
WITNESS: KeyType = 4
"""Type of a key that signs the text and the time (tlog-cosignature)."""

MAX_NOTE_BYTES = 1 << 16
MAX_SIGNATURES = 64
MAX_PROOF_BYTES = 1 << 17
_MAX_HASHES = 64
_SIZE_END = 1 << 63

_DASH = "\N{EM DASH} "
_ORIGIN = "weighbridge/chip/"
_PROOF = "c2sp.org/tlog-proof@v1"
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")


class NoteError(FormatError):
    """A signed note, checkpoint or proof file is malformed, or a signature on it is not its key's."""

    code = "chip.note"


def origin(ueid: bytes) -> str:
    """Returns the origin of a chip's log: a name for it that no other log has."""
    return _ORIGIN + ueid.hex()


@dataclass(frozen=True, slots=True)
class NoteKey:
    """A public key that signs notes.

    Attributes:
        name: Whose it is; not empty, no spaces, no plus.
        type: `LOG` or `WITNESS`.
        public: Ed25519 public key, 32 bytes.
    """

    name: str
    type: KeyType
    public: bytes

    @property
    def id(self) -> bytes:
        """The four bytes that name the key in a signature line."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.public).digest()[:4]

    def __str__(self) -> str:
        """The key on one line (a *vkey*): name, identifier in hex, type and key in base64, with plus signs between."""
        return f"{self.name}+{self.id.hex()}+{_b64(bytes([self.type]) + self.public)}"


def parse_key(text: str) -> NoteKey:
    """Reads a vkey; inverse of `str`: str(parse_key(t)) == t for every t that is accepted.

    Raises:
        NoteError: It is none, or of an unknown type.
    """
    parts = text.split("+", 2)
    if len(parts) != 3 or not _is_name(parts[0]):
        raise NoteError("This is no verifier key; it must read NAME+IDENTIFIER+KEY on one line.")
    data = _unb64(parts[2])
    if len(data) != 1 + KEY_SIZE or data[0] not in (LOG, WITNESS):
        raise NoteError("This verifier key is none of Ed25519 (type 1) or timestamped Ed25519 (type 4).")
    key = NoteKey(parts[0], LOG if data[0] == LOG else WITNESS, data[1:])
    if parts[1] != key.id.hex():
        raise NoteError("The verifier key's identifier is not that of its name and key: it was altered or cut off.")
    return key


class NoteSigner:
    """A private key that signs notes."""

    def __init__(self, name: str, type: KeyType, seed: bytes) -> None:
        """Takes a key.

        Args:
            name: Whose it is; not empty, no spaces, no plus.
            type: `LOG` or `WITNESS`.
            seed: Ed25519 private key, 32 bytes.

        Raises:
            UsageError: The name cannot be in a note.
        """
        if not _is_name(name):
            raise UsageError(
                f"{name!r} cannot name a key; it may hold neither spaces nor plus signs, and not be empty."
            )
        self._private = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
        raw = self._private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.key = NoteKey(name, type, raw)

    def sign(self, text: str, time_s: int = 0) -> Signature:
        """Signs the text of a note.

        Args:
            text: Ends in a newline.
            time_s: Seconds since 1970, for a witness; a log's signature has no time.
        """
        if self.key.type == LOG:
            return Signature(self.key.name, self.key.id, self._private.sign(text.encode()))
        return Signature(
            self.key.name, self.key.id, time_s.to_bytes(8) + self._private.sign(_cosigned(text, time_s).encode())
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line of a note.

    Attributes:
        name: Name of the key.
        id: Its identifier, 4 bytes.
        data: What the key's type says, at least 1 byte.
    """

    name: str
    id: bytes
    data: bytes

    def __str__(self) -> str:
        return f"{_DASH}{self.name} {_b64(self.id + self.data)}\n"


def parse_signature(line: str) -> Signature:
    """Reads one signature line with its newline; inverse of `str`.

    Raises:
        NoteError: It is none.
    """
    parts = line.removesuffix("\n").split(" ")
    if not line.endswith("\n") or len(parts) != 3 or parts[0] + " " != _DASH or not _is_name(parts[1]):
        raise NoteError("A signature line must be a dash, a name without spaces and a signature in base64.")
    data = _unb64(parts[2])
    if len(data) < 5:
        raise NoteError("A signature line has a signature of at least one byte behind the key's identifier.")
    return Signature(parts[1], data[:4], data[4:])


@dataclass(frozen=True, slots=True)
class Note:
    """A text and its signatures, not verified.

    Attributes:
        text: Ends in a newline.
        signatures: At least one.
    """

    text: str
    signatures: tuple[Signature, ...]

    def encode(self) -> bytes:
        """Returns the note as it is sent and stored, in UTF-8."""
        return (self.text + "\n" + "".join(map(str, self.signatures))).encode()

    def verify(self, key: NoteKey) -> list[int]:
        """Checks every signature by a key and returns their times: seconds since 1970, 0 for a log's.

        Raises:
            NoteError: A signature by the key is false, or there is none (`chip.note.signature`).
        """
        times: list[int] = []
        public = ed25519.Ed25519PublicKey.from_public_bytes(key.public)
        for each in self.signatures:
            if (each.name, each.id) != (key.name, key.id):
                continue
            time_s, data, message = 0, each.data, self.text
            if key.type == WITNESS:
                time_s, data = int.from_bytes(each.data[:8]), each.data[8:]
                message = _cosigned(self.text, time_s)
            try:
                public.verify(data, message.encode())
            except InvalidSignature:
                times.clear()
                break
            times.append(time_s)
        if not times or max(times) >= _SIZE_END:
            raise NoteError(
                f"The note is not signed by {key.name}: it was altered, or another key signed it.",
                code="chip.note.signature",
                key=str(key),
            )
        return times

    def with_signature(self, signature: Signature) -> Note:
        """Returns the note with a signature more; one by the same key is replaced, as a later cosignature does."""
        kept = [each for each in self.signatures if (each.name, each.id) != (signature.name, signature.id)]
        return replace(self, signatures=(*kept, signature))


def parse_note(data: bytes) -> Note:
    """Reads a signed note.

    Encoding the note again gives the same bytes, for all bytes that are accepted.

    Raises:
        NoteError: It is none, or larger than is accepted.
    """
    if len(data) > MAX_NOTE_BYTES:
        raise NoteError(f"The note has {len(data)} bytes; at most {MAX_NOTE_BYTES} are accepted.")
    try:
        content = data.decode()
    except UnicodeDecodeError as error:
        raise NoteError("The note is not UTF-8.") from error
    if any(character < " " and character != "\n" for character in content):
        raise NoteError("The note holds control characters.")
    text, gap, lines = content.rpartition("\n\n")
    if not gap or not lines.endswith("\n"):
        raise NoteError("The note has no signatures below an empty line, or its last line is cut off.")
    signatures = tuple(parse_signature(line + "\n") for line in lines[:-1].split("\n"))
    if len(signatures) > MAX_SIGNATURES:
        raise NoteError(f"The note has {len(signatures)} signatures; at most {MAX_SIGNATURES} are accepted.")
    return Note(text + "\n", signatures)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log's checkpoint says.

    Attributes:
        origin: The log's name.
        size: Entries in the log.
        root: Root of the RFC 6962 tree over them, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{_b64(self.root)}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """Reads a checkpoint's text; inverse of `text` for every text that is accepted.

    Extension lines, which the standard advises against, are not accepted.

    Raises:
        NoteError: It is none.
    """
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0]:
        raise NoteError("A checkpoint has three lines: origin, size and root.")
    root = _unb64(lines[2])
    if len(root) != merkle.HASH_SIZE:
        raise NoteError(f"A checkpoint's root has {merkle.HASH_SIZE} bytes, not {len(root)}.")
    return Checkpoint(lines[0], _decimal(lines[1]), root)


def open_checkpoint(data: bytes, key: NoteKey) -> tuple[Checkpoint, Note]:
    """Reads a checkpoint that a log has signed.

    Args:
        data: The note.
        key: The log's key.

    Returns:
        What it says, and the note with its other signatures, which are not verified.

    Raises:
        NoteError: It is malformed, or not signed by this key.
    """
    note = parse_note(data)
    checkpoint = parse_checkpoint(note.text)
    note.verify(key)
    return checkpoint, note


@dataclass(frozen=True, slots=True)
class Proof:
    """The content of a proof file, not verified.

    Attributes:
        index: The entry's index in the log.
        hashes: Its inclusion proof (32 bytes each), from the leaf upwards.
        checkpoint: The signed checkpoint of the tree that it is in.
        extra: Data that nothing vouches for: in our files the chip's head token. None if there is none.
    """

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: Note
    extra: bytes | None = None

    def encode(self) -> bytes:
        """Returns the content of a `.tlog-proof` file."""
        lines = [_PROOF, *([] if self.extra is None else [f"extra {_b64(self.extra)}"]), f"index {self.index}"]
        return ("\n".join([*lines, *map(_b64, self.hashes)]) + "\n\n").encode() + self.checkpoint.encode()


def parse_proof(data: bytes) -> Proof:
    """Reads a proof file.

    Encoding the proof again gives the same bytes, for all bytes that are accepted.

    Raises:
        NoteError: It is none, or larger than is accepted.
    """
    if len(data) > MAX_PROOF_BYTES:
        raise NoteError(f"The proof has {len(data)} bytes; at most {MAX_PROOF_BYTES} are accepted.")
    top, gap, rest = data.partition(b"\n\n")
    try:
        lines = top.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise NoteError("The proof's lines are not ASCII.") from error
    if not gap or lines[0] != _PROOF:
        raise NoteError(f"This is no proof file; it must begin with {_PROOF} and hold a checkpoint.")
    lines = lines[1:]
    extra = None
    if lines and lines[0].startswith("extra "):
        extra = _unb64(lines.pop(0).removeprefix("extra "))
    if not lines or not lines[0].startswith("index "):
        raise NoteError("The proof does not say which entry it is about.")
    index = _decimal(lines.pop(0).removeprefix("index "))
    hashes = tuple(map(_unb64, lines))
    if len(hashes) > _MAX_HASHES or any(len(each) != merkle.HASH_SIZE for each in hashes):
        raise NoteError(f"An inclusion proof has at most {_MAX_HASHES} hashes of {merkle.HASH_SIZE} bytes each.")
    note = parse_note(rest)
    parse_checkpoint(note.text)
    return Proof(index, hashes, note, extra)


def verify_proof(proof: Proof, entry: bytes, log: NoteKey, witnesses: Sequence[NoteKey] = ()) -> Checkpoint:
    """Checks that an entry is in a log, and that each of these witnesses vouches for the log.

    Args:
        proof: As read from a file.
        entry: The entry's bytes.
        log: The log's key.
        witnesses: Keys of which every one must have cosigned.

    Returns:
        The checkpoint of the tree that the entry is in.

    Raises:
        NoteError: A signature is missing or false (`chip.note.signature`).
        ProofError: The entry is not in that tree.
    """
    for key in (log, *witnesses):
        proof.checkpoint.verify(key)
    checkpoint = parse_checkpoint(proof.checkpoint.text)
    merkle.verify_inclusion(merkle.leaf_hash(entry), proof.index, checkpoint.size, proof.hashes, checkpoint.root)
    return checkpoint


def _cosigned(text: str, time_s: int) -> str:
    return f"cosignature/v1\ntime {time_s}\n{text}"


def _is_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(c.isspace() or c < " " for c in name)


def _decimal(text: str) -> int:
    if not _DECIMAL.fullmatch(text) or int(text) >= _SIZE_END:
        raise NoteError("A number must be decimal, below 2^63 and without leading zeros.")
    return int(text)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unb64(text: str) -> bytes:
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError("What should be base64 is not.") from error
    if _b64(data) != text:
        raise NoteError("What should be base64 is not in its one standard form.")
    return data
