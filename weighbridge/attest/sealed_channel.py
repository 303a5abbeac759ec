"""The channel by which one Prover sends the files of one job to one worker, and no other party does.

The worker has a key for this one job (X25519), and knows the Prover's. Both derive a key from their two keys and from
the job's terms: its nonce, and the commitment to its list of files. Under that key the list and the files are sent as a
stream (libsodium's secretstream, XChaCha20-Poly1305). So whatever a worker opens was made by the holder of the Prover's
key, for this worker, this nonce and this commitment, in this order and in whole. A box that is only sealed *to* a
worker would not do: it has no sender.

Nothing is read before it is authenticated, and no file is there for a parser before all are as they were committed to.

The channel does not tell whose the worker's key is: to trust it is the Prover's decision, and without attestation a
blind one. It hides files from parties that carry the stream, not from the root of the worker's machine.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3
from nacl import bindings
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # its bindings take keys as bytes, which are copies
from nacl.exceptions import CryptoError

from weighbridge.attest.sealed_list import LIST_LIMIT, SealedFile, SealedList, commitment
from weighbridge.core import secret_files
from weighbridge.core.digests import cbor
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.core.secret_memory import SecretMemory

KEY_SIZE = 32
NONCE_SIZE = 32
CHUNK = 1 << 16
"""So many bytes of a file one message holds; the last of a file may hold fewer."""

_DOMAIN = b"weighbridge/sealed-inputs/1\x00"
_LENGTH = struct.Struct(">I")
_OVERHEAD = bindings.crypto_secretstream_xchacha20poly1305_ABYTES
_HEADER = bindings.crypto_secretstream_xchacha20poly1305_HEADERBYTES
_MORE = bindings.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
_LAST = bindings.crypto_secretstream_xchacha20poly1305_TAG_FINAL


class SealedInputError(WeighbridgeError):
    """A worker was sent something else than what its job's Prover committed to. It says nothing of the content."""

    code = "sealed.channel"


@dataclass(frozen=True, slots=True)
class Terms:
    """What is fixed before a worker starts; both ends have to have the same.

    Attributes:
        nonce: 32 bytes that name this job and no other.
        commitment: The commitment to the job's list of files (32 bytes).
        worker: The worker's public key, for this job only.
        prover: The Prover's public key, which the worker was started with.
    """

    nonce: bytes
    commitment: bytes
    worker: bytes
    prover: bytes

    def __post_init__(self) -> None:
        """Checks the lengths.

        Raises:
            UsageError: A field is not 32 bytes.
        """
        if any(len(each) != KEY_SIZE for each in (self.nonce, self.commitment, self.worker, self.prover)):
            raise UsageError("the terms of a sealed job are four times 32 bytes")


class ProverKey:
    """A Prover's key of sealed jobs, which workers are started with the public half of."""

    def __init__(self, secret: bytes) -> None:
        """Takes the secret half: 32 bytes."""
        self._secret = secret
        self.public = bindings.crypto_scalarmult_base(secret)

    @classmethod
    def load(cls, path: Path) -> ProverKey:
        """Reads a key file, or makes one (mode 0600).

        Raises:
            UsageError: It cannot be made, is none, or others may read it.
        """
        try:
            secret = secret_files.read_or_make(path, lambda: os.urandom(KEY_SIZE))
        except OSError as error:
            raise UsageError(f"cannot use {path} for a key ({error.strerror}); name another file") from None
        if len(secret) != KEY_SIZE:
            raise UsageError(f"{path} holds no key of sealed jobs; name the right file")
        return cls(secret)

    def send(self, sink: BinaryIO, terms: Terms, files: SealedList, root: Path) -> None:
        """Sends the files of a list to the worker that the terms name.

        Args:
            sink: Where the stream goes.
            terms: The job's terms.
            files: The list that the terms' commitment is of.
            root: The directory that the list's names are in.

        Raises:
            UsageError: The terms are of another Prover or list, the worker's key is none, or a file changed.
            OSError: The stream cannot be written.
        """
        encoded = files.to_cbor()
        if terms.prover != self.public or terms.commitment != commitment(encoded):
            raise UsageError("these terms are of another Prover's key, or of another list of files")
        try:
            _, agreed = bindings.crypto_kx_client_session_keys(self.public, self._secret, terms.worker)
        except CryptoError:
            raise UsageError("the worker's public key is none; do not send it anything") from None
        state = bindings.crypto_secretstream_xchacha20poly1305_state()
        sink.write(bindings.crypto_secretstream_xchacha20poly1305_init_push(state, _stream_key(agreed, terms)))

        def push(message: bytes, tag: int) -> None:
            sealed = bindings.crypto_secretstream_xchacha20poly1305_push(state, message, None, tag)
            sink.write(_LENGTH.pack(len(sealed)) + sealed)

        push(encoded, _MORE)
        for each in files.files:
            for chunk in _chunks_of(root / each.name, each):
                push(chunk, _MORE)
        push(b"", _LAST)
        sink.flush()


class WorkerKey:
    """The key of one worker for one job: made when the worker starts, nowhere but in its memory, and used once."""

    def __init__(self, memory: SecretMemory | None = None) -> None:
        """Makes the key.

        Args:
            memory: Where the secret half lies; in ordinary memory by default.
        """
        self._memory = memory or SecretMemory(plain=True)
        public = ffi.new("unsigned char[]", KEY_SIZE)
        if lib.crypto_kx_keypair(public, self._secret):
            raise RuntimeError("no key could be made")
        self.public = bytes(ffi.buffer(public))
        self._used = False

    @property
    def _secret(self) -> Any:
        """Points to the secret half, which is read where it lies."""
        return ffi.cast("unsigned char *", self._memory.address)

    def open(self, box: bytes) -> bytes:
        """Opens what was encrypted to this worker by any sender, until the Prover's stream is received.

        Raises:
            SealedInputError: It is not to this key, or was altered.
            UsageError: The key was used, and is gone.
        """
        if self._used:
            raise UsageError("a worker's key opens nothing more once it received a stream")
        opened = ffi.new("unsigned char[]", max(1, len(box) - bindings.crypto_box_SEALBYTES))
        if len(box) < bindings.crypto_box_SEALBYTES or lib.crypto_box_seal_open(
            opened, box, len(box), self.public, self._secret
        ):
            raise SealedInputError("what was sent is not encrypted to this worker")
        return bytes(ffi.buffer(opened, len(box) - bindings.crypto_box_SEALBYTES))

    def receive(self, source: BinaryIO, terms: Terms, into: Path, *, limit: int) -> SealedList:
        """Receives the files of a job; they are there when all of them are what was committed to, and not before.

        Args:
            source: Where the stream comes from; it has to end where the stream does, and blocks until then.
            terms: The job's terms.
            into: The directory to make for the files; nothing may be there yet.
            limit: So many bytes all files may have together.

        Returns:
            The list of the files.

        Raises:
            SealedInputError: The stream is not of this Prover, worker, nonce and commitment, was altered or is not
                whole (`sealed.channel`), or the files are not those of the commitment (`sealed.inputs`).
            FormatError: The Prover committed to something that is no list.
            UsageError: The key was used before, or is not that of the terms; or something is at `into`.
            OSError: A file cannot be written.
        """
        if not self._used and into.exists():
            raise UsageError(f"something is at {into} already")
        (stream,) = self.streams([terms])
        return stream.receive(source, into, limit=limit)

    def streams(self, terms: Sequence[Terms]) -> list[IncomingStream]:
        """Returns what receives the streams of one job, one from each party that gives it files; then the key is gone.

        Args:
            terms: The job's terms with each of the parties.

        Raises:
            UsageError: The key was used before, or is not that of the terms.
        """
        if self._used or any(each.worker != self.public for each in terms):
            raise UsageError("a worker's key opens the streams of one job, once")
        self._used = True
        try:
            return [IncomingStream(each, _agreed(self.public, self._secret, each.prover)) for each in terms]
        finally:
            self._memory.erase()


class IncomingStream:
    """One party's stream to a worker, for one job."""

    def __init__(self, terms: Terms, agreed: bytes | None) -> None:
        """Takes the job's terms with the party, and what both keys agree on; None if the party's key is none."""
        self._terms, self._agreed = terms, agreed

    def receive(self, source: BinaryIO, into: Path, *, limit: int, to_the_end: bool = True) -> SealedList:
        """Receives the files; as `WorkerKey.receive`.

        Args:
            source: Where the stream comes from.
            into: The directory to make for the files; nothing may be there yet.
            limit: So many bytes all files may have together.
            to_the_end: Whether the source has to end where the stream does.

        Raises:
            SealedInputError, FormatError, OSError: As `WorkerKey.receive`.
            UsageError: Something is at `into`, or the party's key is none.
        """
        if into.exists():
            raise UsageError(f"something is at {into} already")
        if self._agreed is None:
            raise UsageError("the Prover's public key is none")
        opened = _opened(source, _stream_key(self._agreed, self._terms), to_the_end=to_the_end)
        partial = Path(tempfile.mkdtemp(dir=into.parent, prefix=".sealed-"))
        try:
            found = _received(opened, self._terms, partial, limit)
            partial.rename(into)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return found


def _agreed(public: bytes, secret: Any, prover: bytes) -> bytes | None:
    """Returns what a worker's key and a Prover's agree on for what the Prover sends; None if the Prover's is no key."""
    if len(prover) != KEY_SIZE:
        return None
    received, sent = ffi.new("unsigned char[]", KEY_SIZE), ffi.new("unsigned char[]", KEY_SIZE)
    if lib.crypto_kx_server_session_keys(received, sent, public, secret, prover):
        return None
    return bytes(ffi.buffer(received))


def _stream_key(agreed: bytes, terms: Terms) -> bytes:
    bound = cbor([terms.nonce, terms.commitment, terms.worker, terms.prover])
    return blake3(_DOMAIN + bound, key=agreed).digest()


def _chunks_of(path: Path, file: SealedFile) -> Iterator[bytes]:
    """The content of a file as it was listed.

    Raises:
        UsageError: It is another content.
    """
    digest, left = blake3(), file.size
    try:
        with path.open("rb") as source:
            while left and (chunk := source.read(min(CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
                yield chunk
            more = source.read(1)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})") from None
    if left or more or digest.digest() != file.digest:
        raise UsageError(f"{path} changed since it was listed; commit to a new list")


def exactly(source: BinaryIO, size: int) -> bytes:
    """Reads so many bytes, also of a pipe that gives them in pieces."""
    found = bytearray()
    while len(found) < size:
        piece = source.read(size - len(found))
        if not piece:
            raise SealedInputError("the stream of a sealed job was cut off")
        found += piece
    return bytes(found)


def _opened(source: BinaryIO, key: bytes, *, to_the_end: bool = True) -> Iterator[tuple[bytes, bool]]:
    """The messages of a stream, each authenticated before it is given, and whether it is the last."""
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, exactly(source, _HEADER), key)
    most = LIST_LIMIT
    last = False
    while not last:
        (length,) = _LENGTH.unpack(exactly(source, _LENGTH.size))
        if not _OVERHEAD <= length <= most + _OVERHEAD:
            raise SealedInputError("a message of a sealed job has a length that none has")
        try:
            message, tag = bindings.crypto_secretstream_xchacha20poly1305_pull(state, exactly(source, length))
        except CryptoError:
            raise SealedInputError("a message is not of this job's Prover, or was altered or moved") from None
        if tag not in (_MORE, _LAST):
            raise SealedInputError("a message of a sealed job has a tag that none has")
        most, last = CHUNK, tag == _LAST
        if last and to_the_end and source.read(1):
            raise SealedInputError("something follows the end of a sealed job's stream")
        yield message, last


def _received(opened: Iterator[tuple[bytes, bool]], terms: Terms, into: Path, limit: int) -> SealedList:
    encoded, last = next(opened)
    if last or commitment(encoded) != terms.commitment:
        raise SealedInputError("this is not the list that was committed to", code="sealed.inputs")
    files = SealedList.from_cbor(encoded)
    if sum(each.size for each in files.files) > limit:
        raise SealedInputError("the files of the job are larger than the worker takes", code="sealed.inputs")
    for each in files.files:
        path = into / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, left = blake3(), each.size
        with path.open("xb") as file:
            while left:
                chunk, last = next(opened)
                if last or len(chunk) != min(CHUNK, left):
                    raise SealedInputError("a file is not in the pieces that it has to be in", code="sealed.inputs")
                file.write(chunk)
                digest.update(chunk)
                left -= len(chunk)
        if digest.digest() != each.digest:
            raise SealedInputError("a file is not the one that was committed to", code="sealed.inputs")
    if next(opened) != (b"", True):
        raise SealedInputError("more was sent than was committed to", code="sealed.inputs")
    return files
