"""The public log of images: a directory that any web server can offer (c2sp.org/tlog-tiles), and that only grows.

Its entries are `weighbridge.attest.image_release.Endorsed`. A *monitor* keeps the last checkpoint that it saw, reads
the whole log again and compares: what it saw has to be the beginning of what is there. Two checkpoints that the log
signed and of which neither begins the other are a *fork*: the log showed different images to different readers.
A monitor that cosigns what it found is a witness, and an agreed policy can demand its cosignature.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weighbridge.attest import tiles, tlog
from weighbridge.attest.image_release import Endorsed
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core import durable, merkle
from weighbridge.core.bounded import open_regular
from weighbridge.core.errors import FormatError, TranscriptError, UsageError

CHECKPOINT = "checkpoint"
MOST_ENTRIES = 1 << 16
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class ImageLog:
    """A log as it was read, whole: the checkpoint is signed, and the entries are its.

    Attributes:
        checkpoint: What the log says.
        note: That, signed, with cosignatures, which are not verified.
        entries: All entries, in order.
    """

    checkpoint: tlog.Checkpoint
    note: tlog.Note
    entries: tuple[bytes, ...]

    def root(self, size: int) -> bytes:
        """Returns the root that the log had when it had so many entries."""
        return merkle.root([merkle.leaf_hash(each) for each in self.entries[:size]])

    def proof(self, measurement: bytes, keys: Collection[bytes]) -> tlog.Proof:
        """Returns the proof that an image is in the log.

        Anyone may have an image entered that others endorsed, with other signatures: that must not hide theirs.

        Args:
            measurement: The image's.
            keys: Of several entries of it, the one is proven that most of these keys signed; of those the last.

        Raises:
            SealedWorkerError: It is not there (`sealed.image.unlogged`).
        """
        read = [Endorsed.from_cbor(each) for each in self.entries]
        of_image = [index for index, each in enumerate(read) if each.release.measurement == measurement]
        if not of_image:
            raise SealedWorkerError(
                f"the log has no image {measurement.hex()[:16]}; have it endorsed and entered (`weighbridge site "
                "publish`)",
                code="sealed.image.unlogged",
            )
        index = max(of_image, key=lambda at: (_agreed(read[at], keys), at))
        hashes = merkle.inclusion_proof([merkle.leaf_hash(each) for each in self.entries], index)
        return tlog.Proof(index, tuple(hashes), self.note, self.entries[index])


def read(directory: Path, key: tlog.NoteKey) -> ImageLog:
    """Reads a log and compares its entries with what it signed.

    Args:
        directory: The log's.
        key: The log's key.

    Raises:
        SealedWorkerError: It is not signed by this key, is of another log, or its parts contradict each other
            (`sealed.image.unlogged`).
    """
    try:
        checkpoint, note = tlog.open_checkpoint(_note(directory / CHECKPOINT), key)
        if checkpoint.origin != key.name or checkpoint.size > MOST_ENTRIES:
            raise FormatError("the checkpoint is of another log, or of one that is too long")
        entries, wrong = tiles.read(directory, checkpoint.size)
        for each in entries:
            Endorsed.from_cbor(each)
    except (OSError, TranscriptError, FormatError) as error:
        raise _unreadable(directory, str(error)) from None
    found = ImageLog(checkpoint, note, tuple(entries))
    if wrong or found.root(checkpoint.size) != checkpoint.root:
        raise _unreadable(directory, "its entries are not those that it signed")
    return found


def append(directory: Path, signer: tlog.NoteSigner, entry: Endorsed) -> ImageLog:
    """Enters an image, durably; begins the log if there is none.

    Args:
        directory: The log's.
        signer: The log's key.
        entry: The release and its endorsements.

    Raises:
        SealedWorkerError: A signature is false (`sealed.image.endorsement`), or the log is not this key's or is damaged
            (`sealed.image.unlogged`).
        UsageError: The log has this very entry, or cannot be written.
    """
    entry.signers()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / _LOCK):
            entries = list(read(directory, signer.key).entries) if (directory / CHECKPOINT).exists() else []
            if entry.to_cbor() in entries:
                raise UsageError("the log has this entry already; give endorsements that it has not")
            if len(entries) >= MOST_ENTRIES:
                raise UsageError("the log is full; begin another one")
            entries.append(entry.to_cbor())
            root = merkle.root([merkle.leaf_hash(each) for each in entries])
            text = tlog.Checkpoint(signer.key.name, len(entries), root).text
            for path, content in tiles.files(entries):
                _put(directory / path, content)
            _put(directory / CHECKPOINT, tlog.Note(text, (signer.sign(text),)).encode())
    except OSError as error:
        raise UsageError(f"cannot write the log {directory} ({error.strerror}); choose another place") from None
    return read(directory, signer.key)


def cosign(directory: Path, log: ImageLog, witness: tlog.NoteSigner, time_s: int) -> ImageLog:
    """Adds a witness's cosignature to the checkpoint of a log that it found to have grown from what it saw.

    Raises:
        UsageError: The log has another checkpoint by now, or cannot be written.
        FormatError, TranscriptError: It has none any more, or one with as many signatures as a reader takes.
    """
    try:
        with _locked(directory / _LOCK):
            there = tlog.parse_note(_note(directory / CHECKPOINT))
            if there.text != log.note.text:
                raise UsageError("the log has grown meanwhile; look at it again before you cosign it")
            note = there.with_signature(witness.sign(there.text, time_s))
            tlog.parse_note(note.encode())  # with one signature too many, no reader would take the log any more
            _put(directory / CHECKPOINT, note.encode())
    except OSError as error:
        raise UsageError(f"cannot write the log {directory} ({error.strerror}); choose another place") from None
    return ImageLog(log.checkpoint, note, log.entries)


def require_grown(log: ImageLog, earlier: bytes, key: tlog.NoteKey) -> tlog.Checkpoint:
    """Checks that a checkpoint that was seen, here or elsewhere, is of a beginning of this log.

    Args:
        log: As it was read now.
        earlier: The signed checkpoint; kept, it shows what the log did.
        key: The log's key.

    Raises:
        SealedWorkerError: The log forked or lost entries (`sealed.image.fork`), or did not sign that
            (`sealed.image.unlogged`).
    """
    try:
        seen, _ = tlog.open_checkpoint(earlier, key)
    except FormatError as error:
        raise SealedWorkerError(
            f"what was seen of the log before is no checkpoint of it ({error}); get it again",
            code="sealed.image.unlogged",
        ) from error
    if seen.origin == log.checkpoint.origin and seen.size <= len(log.entries) and log.root(seen.size) == seen.root:
        return seen
    raise SealedWorkerError(
        f"the log forked: it signed {seen.size} entries with the root {seen.root.hex()[:16]}, which do not begin the "
        f"{len(log.entries)} entries that it shows here; keep both checkpoints, run no image of it, and say so",
        code="sealed.image.fork",
    )


def watch(
    directory: Path, key: tlog.NoteKey, seen: Path, others: Iterable[bytes] = (), *,
    witness: tlog.NoteSigner | None = None, time_s: int = 0,
) -> tuple[ImageLog, int]:  # fmt: skip
    """Reads a log as a monitor does: what was seen of it begins it. What it has now is seen from here on.

    That is durable before a witness cosigns it, and one process at a time does this: so a witness cosigns nothing that
    contradicts what it cosigned, wherever it is cut off.

    Args:
        directory: The log's.
        key: The log's key.
        seen: File of the checkpoint that was seen last; made if missing.
        others: Checkpoints that other readers were given.
        witness: Cosigns the log; None for a monitor that does not.
        time_s: When it does, in seconds since 1970.

    Returns:
        The log, and how many of its entries were seen before.

    Raises:
        SealedWorkerError: As `read` and `require_grown`, or a new entry has a false signature
            (`sealed.image.endorsement`).
        UsageError: As `cosign`, or what was seen cannot be kept.
    """
    try:
        with _locked(seen.with_name(f".{seen.name}{_LOCK}")):
            found = read(directory, key)
            before = require_grown(found, seen.read_bytes(), key).size if seen.exists() else 0
            for each in others:
                require_grown(found, each, key)
            for entry in found.entries[before:]:
                Endorsed.from_cbor(entry).signers()
            _put(seen, found.note.encode())
            return found if witness is None else cosign(directory, found, witness, time_s), before
    except OSError as error:
        raise UsageError(f"cannot keep {seen} ({error.strerror}); choose another place") from None


def _agreed(entry: Endorsed, keys: Collection[bytes]) -> int:
    """Returns how many of these keys signed an entry; none if a signature is false, since then it permits no image."""
    try:
        return len(set(entry.signers()) & set(keys))
    except SealedWorkerError:
        return 0


def _note(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(tlog.MAX_NOTE_BYTES + 1)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock; a link or a pipe that a log's keeper put in its place is not followed, nor waited for."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _put(path: Path, content: bytes) -> None:
    """Writes a file whole and durably, unless it is there: tiles that were written never change.

    What lies in the place of the partial file is removed, and no link there is followed.
    """
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    durable.sync(path.parent)


def _unreadable(directory: Path, why: str) -> SealedWorkerError:
    return SealedWorkerError(
        f"{directory} is not the log of this key, or is damaged: {why}; fetch it again, whole",
        code="sealed.image.unlogged",
    )
