"""The registry's log as files: a directory of tiles that any web server can offer, and proofs of single entries.

A party that keeps a checkpoint can tell later whether the registry still has the log that it had then, and a proof file
shows, without the log, that an entry is in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from verifier.registry.directory import Registry
from weighbridge.attest import tiles, tlog
from weighbridge.attest.tlog import Checkpoint, Note, NoteKey
from weighbridge.core import merkle
from weighbridge.core.bounded import open_regular
from weighbridge.core.errors import Finding, TranscriptError, UsageError


@dataclass(kw_only=True, slots=True)
class Copy:
    """A copy of a registry's log.

    Attributes:
        checkpoint: What its checkpoint says.
        note: The signed checkpoint.
        entries: All entries.
        authentic: Whether the entries are those under the signed root. If not, the registry answers for none of them.
        findings: What is wrong with tiles or tree; entries are not judged here (see `replay`).
    """

    checkpoint: Checkpoint
    note: Note
    entries: list[bytes]
    authentic: bool = True
    findings: list[Finding] = field(default_factory=list)


def write(registry: Registry, directory: Path) -> int:
    """Writes the log as a directory of tiles and returns the number of entries.

    Args:
        registry: Opened with its key.
        directory: Must not exist.

    Raises:
        UsageError: There is something already, it cannot be written, or the registry was opened without its key.
    """
    note = registry.checkpoint()
    entries = list(registry.log.entries(0, tlog.parse_checkpoint(tlog.parse_note(note).text).size))
    try:
        directory.mkdir(parents=True)
        for path, content in [*tiles.files(entries), ("checkpoint", note)]:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror}); name a new directory") from error
    return len(entries)


def read(directory: Path, key: NoteKey) -> Copy:
    """Reads a log from a directory and checks its tree against the signed checkpoint.

    Args:
        directory: With `checkpoint` and `tile`.
        key: The registry's, from a trusted source.

    Raises:
        WeighbridgeError: The checkpoint is not signed by the key, or entries are missing: nothing can be said then.
    """
    checkpoint, note = tlog.open_checkpoint(_content(directory / "checkpoint", tlog.MAX_NOTE_BYTES), key)
    entries, wrong = tiles.read(directory, checkpoint.size)
    found = Copy(checkpoint=checkpoint, note=note, entries=entries)
    for path in wrong:
        found.findings.append(_altered("a tile does not follow from the entries", path))
    root = merkle.root([merkle.leaf_hash(each) for each in entries])
    found.authentic = checkpoint.origin == key.name and root == checkpoint.root
    if not found.authentic:
        found.findings.append(_altered("the entries are not those under the signed root", checkpoint.origin))
    return found


def continues(copy: Copy, older: bytes, key: NoteKey) -> list[Finding]:
    """Compares a log with a checkpoint of an earlier time.

    Args:
        copy: The log; its entries must be authentic, or the difference says nothing of the registry.
        older: The note.
        key: The registry's.

    Returns:
        A finding with both checkpoints if the registry rewrote its log.

    Raises:
        NoteError: The note is malformed, or not signed by the key.
        UsageError: It is of a longer log.
    """
    checkpoint, note = tlog.open_checkpoint(older, key)
    if checkpoint.size > len(copy.entries):
        raise UsageError("the checkpoint is of a longer log; fetch the log again, then compare")
    mine = merkle.root([merkle.leaf_hash(entry) for entry in copy.entries[: checkpoint.size]])
    if mine == checkpoint.root:
        return []
    return [
        Finding(
            id="registry.log.rewritten",
            message="the registry signed two different histories; neither can be relied on",
            expected=checkpoint.root.hex(),
            found=mine.hex(),
            subject=f"{checkpoint.origin} at {checkpoint.size} entries",
            evidence={"one": copy.note.encode().decode(), "other": note.encode().decode()},
        )
    ]


def prove(registry: Registry, index: int) -> tlog.Proof:
    """Returns the proof that an entry is in the log as it is now; `weighbridge.attest.tlog.verify_proof` checks it.

    Raises:
        UsageError: There is no such entry, or the registry was opened without its key.
    """
    note = tlog.parse_note(registry.checkpoint())
    size = tlog.parse_checkpoint(note.text).size
    return tlog.Proof(index, tuple(registry.log.inclusion_proof(index, size)), note)


def check_proof(proof: bytes, entry: bytes, key: NoteKey) -> Checkpoint:
    """Checks with a proof file alone that an entry is in a registry's log, and returns the checkpoint.

    Raises:
        NoteError: The file is malformed, or its checkpoint is not signed by the key.
        ProofError: The entry is not in the tree.
    """
    return tlog.verify_proof(tlog.parse_proof(proof), entry, key)


def _altered(message: str, subject: str) -> Finding:
    return Finding(
        id="registry.log.altered", message=f"{message}; fetch the log again from the registry", subject=subject
    )


def _content(path: Path, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(limit + 1)
    except (OSError, TranscriptError) as error:
        raise UsageError(f"cannot read {path} ({error}); name the directory of an exported log") from error
