"""The transcripts that a Prover declares: a directory of runs, indexed by the snapshots that they explain.

A run is declared as soon as its directory holds a `manifest.json`. Files are handed out as they lie on disk: it is for
the Verifier to judge them, and a damaged transcript must not hide the others.
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from weighbridge.bounded import DEFAULT_LIMITS, read_file, walk_files
from weighbridge.chipnotes import CHIPS
from weighbridge.chipnotes import decode as decode_notes
from weighbridge.digests import bytes_digest
from weighbridge.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.manifest import open_manifest
from weighbridge.resumption import decode
from weighbridge.steps import read_records
from weighbridge.writer import RESUMPTIONS

MANIFEST = "manifest.json"
CHUNK = 1 << 20
"""Bytes of one piece of a file on the wire, at most."""

_DEPTH = 3
_MANIFEST_CAP = DEFAULT_LIMITS.manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One declared transcript.

    Attributes:
        id: Hex BLAKE3 digest of `manifest.json`.
        path: Its directory.
        name: Its name; empty if the manifest cannot be read.
        steps: Its number of steps; 0 if the manifest cannot be read.
        snapshots: (chip UEID, log index) to position (step, op), as the step records say.
        damage: What could not be read of it, for the Prover's own log.
    """

    id: str
    path: Path
    name: str
    steps: int
    snapshots: dict[tuple[bytes, int], tuple[int, int]]
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One piece of one file; see `FetchTranscriptResponse`."""

    path: str
    offset: int
    data: bytes
    last: bool


class Archive:
    """All transcripts below one directory; safe to use from several threads."""

    def __init__(self, root: str | Path) -> None:
        """Looks at the directory for the first time.

        Args:
            root: Transcripts lie in it at most three levels deep.

        Raises:
            UsageError: It is not a directory.
        """
        self._root = Path(root)
        if not self._root.is_dir():
            raise UsageError(f"{root} is not a directory; name the one that holds the runs")
        self._lock = threading.Lock()
        self._known: dict[tuple[Path, int, int], Declared] = {}

    def transcripts(self) -> list[Declared]:
        """Returns every declared transcript, ascending by id; new and changed ones are read on the way."""
        with self._lock:
            fresh: dict[tuple[Path, int, int], Declared] = {}
            for path in _manifests(self._root, _DEPTH):
                try:
                    status = path.stat()
                    key = (path, status.st_mtime_ns, status.st_size)
                    fresh[key] = self._known.get(key) or _declare(path)
                except OSError:
                    continue  # it was moved away while we looked
            self._known = fresh
            return sorted(fresh.values(), key=lambda declared: declared.id)

    def explain(self, ueid: bytes, log_index: int) -> tuple[str, int, int] | None:
        """Returns (transcript id, step, op) of a snapshot, or None if no transcript mentions it."""
        for declared in self.transcripts():
            position = declared.snapshots.get((ueid, log_index))
            if position is not None:
                return declared.id, *position
        return None

    def pieces(self, transcript_id: str) -> Iterator[Piece]:
        """Yields every file of a transcript in pieces, `manifest.json` first.

        Raises:
            TranscriptError: There is no such transcript, or it cannot be read.
        """
        declared = next((each for each in self.transcripts() if each.id == transcript_id), None)
        if declared is None:
            raise TranscriptError(
                "no transcript of this id is declared; take one from ListTranscripts", code="transcript.unknown"
            )
        found = walk_files(declared.path, max_files=2 * DEFAULT_LIMITS.files)
        # Links stay behind: nothing outside the transcript is handed out.
        files = sorted(path for path, status in found if stat.S_ISREG(status.st_mode))
        for path in sorted(files, key=lambda path: path != MANIFEST):
            yield from _file_pieces(declared.path, path)


def _manifests(root: Path, depth: int) -> Iterator[Path]:
    """Finds manifests; a directory that has one is a transcript and is not searched further."""
    if (root / MANIFEST).is_file():
        yield root / MANIFEST
    elif depth:
        for child in sorted(root.iterdir()):
            if child.is_dir() and not child.is_symlink():
                yield from _manifests(child, depth - 1)


def _declare(manifest: Path) -> Declared:
    with manifest.open("rb") as file:
        text = file.read(_MANIFEST_CAP)
    name, steps, damage = "", 0, []
    try:
        opened = open_manifest(text)
        name, steps = opened.name, opened.steps
    except WeighbridgeError as error:
        damage.append(str(error))
    snapshots: dict[tuple[bytes, int], tuple[int, int]] = {}
    for path in sorted((manifest.parent / "steps").glob("*.cbor.zst")):
        try:
            for record in read_records(path, DEFAULT_LIMITS):
                snapshots.update({(ueid, index): (record.step, op) for ueid, index, op in record.snapshots})
        except WeighbridgeError as error:
            damage.append(f"{path.name}: {error}")
    again = manifest.parent / RESUMPTIONS
    try:
        for resumption in decode(_read(again)) if again.exists() else []:
            snapshots.update({(ueid, index): (step, op) for ueid, index, step, op in resumption.snapshots})
    except WeighbridgeError as error:
        damage.append(f"{RESUMPTIONS}: {error}")
    notes = manifest.parent / CHIPS
    try:
        for ueid, index, step, op in decode_notes(_read(notes)).snapshots if notes.exists() else []:
            snapshots[ueid, index] = (step, op)
    except WeighbridgeError as error:
        damage.append(f"{CHIPS}: {error}")
    return Declared(
        id=bytes_digest(text).hex(), path=manifest.parent, name=name, steps=steps, snapshots=snapshots, damage=damage
    )


def _read(path: Path) -> bytes:
    return read_file(path, max_bytes=_MANIFEST_CAP)


def _file_pieces(root: Path, path: str) -> Iterator[Piece]:
    try:
        with (root / path).open("rb") as file:
            offset, data = 0, file.read(CHUNK)
            while True:
                following = file.read(CHUNK)
                yield Piece(path=path, offset=offset, data=data, last=not following)
                if not following:
                    return
                offset, data = offset + len(data), following
    except OSError as error:
        raise TranscriptError(f"{path} cannot be read ({error.strerror}); ask the Prover to repair it") from None
