"""The transcripts that a Prover declares: a directory of runs, indexed by the snapshots that they explain.

A run is declared as soon as its directory holds a `manifest.json`. Of one that has none yet, the whole steps are
declared when a snapshot is asked about that no finished run explains; see `unfinished`. Files are handed out as they
lie on disk: it is for the Verifier to judge them, and a damaged transcript must not hide the others.
"""

from __future__ import annotations

import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prover.keeping import unfinished_recordings
from weighbridge.attest.manifest import SigningKey, load_or_create_key, open_manifest
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor, read_file, walk_files
from weighbridge.core.digests import bytes_digest, chain
from weighbridge.core.errors import NotFoundError, TranscriptError, UsageError, WeighbridgeError
from weighbridge.transcript.chip_notes import CHIPS
from weighbridge.transcript.chip_notes import decode as decode_notes
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.resumption_notes import decode
from weighbridge.transcript.steps import read_records
from weighbridge.transcript.supplements import key_path
from weighbridge.transcript.writer import DRAFT, RESUMPTIONS

MANIFEST = "manifest.json"
CHUNK = 1 << 20
"""Bytes of one piece of a file on the wire, at most."""

OPEN = ".open"
"""Where the whole steps of recordings without a manifest are kept to be fetched."""
KEPT_VERSIONS = 3
REFRESH_SECONDS = 2.0
"""A recording in progress is not looked at more often than this."""

DEPTH = 3
"""So many levels below a directory of runs its transcripts may lie."""
_MANIFEST_CAP = DEFAULT_LIMITS.manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One declared transcript.

    Attributes:
        id: Hex BLAKE3 digest of `manifest.json`.
        path: Its directory.
        home: Where it is being recorded; elsewhere than `path` if it has no manifest yet.
        name: Its name; empty if the manifest cannot be read.
        steps: Its number of steps; 0 if the manifest cannot be read.
        snapshots: (chip UEID, log index) to position (step, op), as the step records say.
        heads: Running head before each step, and after the last one.
        coordinate: Its mesh coordinate in a job on several ranks; None if it is no rank's.
        damage: What could not be read of it, for the Prover's own log.
    """

    id: str
    path: Path
    home: Path
    name: str
    steps: int
    snapshots: dict[tuple[bytes, int], tuple[int, int]]
    heads: list[bytes]
    coordinate: MeshCoordinate | None = None
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One piece of one file; see `FetchTranscriptResponse`."""

    path: str
    offset: int
    data: bytes
    last: bool


class Archive:
    """All transcripts below one directory; safe to use from several threads.

    Attributes:
        root: The directory.
    """

    def __init__(self, root: str | Path) -> None:
        """Looks at the directory for the first time.

        Args:
            root: Transcripts lie in it at most three levels deep.

        Raises:
            UsageError: It is not a directory.
        """
        self.root = Path(root)
        if not self.root.is_dir():
            raise UsageError(f"{root} is not a directory; name the one that holds the runs")
        self._lock = threading.RLock()
        self._known: dict[tuple[Path, int, int], Declared] = {}
        self._open: dict[Path, list[tuple[tuple[str, ...], float, Declared]]] = {}
        self._key = SigningKey.generate()
        shutil.rmtree(self.root / OPEN, ignore_errors=True)  # of a former process

    def transcripts(self) -> list[Declared]:
        """Returns every declared transcript, ascending by id; new and changed ones are read on the way.

        Recordings in progress are among them once they were asked about, as far as they were whole then.
        """
        with self._lock:
            fresh: dict[tuple[Path, int, int], Declared] = {}
            for path in manifests(self.root, DEPTH):
                try:
                    status = path.stat()
                    key = (path, status.st_mtime_ns, status.st_size)
                    fresh[key] = self._known.get(key) or _declare(path)
                except OSError:
                    continue  # it was moved away while we looked
            self._known = fresh
            self._open = {run: kept for run, kept in self._open.items() if not (run / MANIFEST).exists()}
            newest = [kept[-1][2] for kept in self._open.values()]
            return sorted([*fresh.values(), *newest], key=lambda declared: declared.id)

    def explain(
        self, ueid: bytes, log_index: int, step: int = -1, op: int = -1, head: bytes = b""
    ) -> tuple[str, int, int] | None:
        """Returns (transcript id, step, op) of a snapshot, or None if no transcript explains it.

        Args:
            ueid: The chip.
            log_index: Index in its log.
            step: The position that the workload claimed then; -1 off a safepoint.
            op: See `step`.
            head: The running head that it claimed; empty off a safepoint.
        """
        with self._lock:
            found = _explain(self.transcripts(), ueid, log_index, step, op, head)
            if found is None and self._refresh(step):
                found = _explain(self.transcripts(), ueid, log_index, step, op, head)
            return found

    def ranks(self, transcript_id: str) -> list[str]:
        """Returns the transcripts of all ranks of the job that a transcript is part of; nothing if it is of none.

        They were recorded beside it. A rank whose transcript is not declared has an empty id.
        """
        with self._lock:
            found = self._ranks(transcript_id)
            # Some ranks of a job that crashed may have ended in order, and others have no manifest.
            return self._ranks(transcript_id) if "" in found and self._refresh(-1) else found

    def _ranks(self, transcript_id: str) -> list[str]:
        everything = self.transcripts()
        own = next((each for each in everything if each.id == transcript_id), None)
        if own is None or own.coordinate is None:
            return []
        job, directory = own.coordinate.job, own.home.parent
        same = [each for each in everything if each.coordinate and each.coordinate.job == job]
        beside = {each.coordinate.rank: each.id for each in same if each.coordinate and each.home.parent == directory}
        return [beside.get(rank, "") for rank in range(job.ranks)]

    def _refresh(self, step: int) -> bool:
        """Declares what recordings without a manifest have become; tells whether there is anything new.

        Args:
            step: The step that is asked about; a recording that was declared up to there need not be looked at again.
        """
        new = False
        for number, run in enumerate(unfinished_recordings.recordings(self.root, DEPTH)):
            kept = self._open.setdefault(run, [])
            reached = unfinished_recordings.progress(run)
            if kept:
                seen, when, declared = kept[-1]
                if seen == reached or 0 <= step < declared.steps or time.monotonic() - when < REFRESH_SECONDS:
                    continue
            copy = self.root / OPEN / f"{number}-{time.monotonic_ns()}"
            if not unfinished_recordings.close_copy(run, copy, _key_of(run) or self._key):
                continue
            kept.append((reached, time.monotonic(), _declare(copy / MANIFEST, run)))
            new = True
            for _, _, old in kept[:-KEPT_VERSIONS]:
                shutil.rmtree(old.path, ignore_errors=True)
            del kept[:-KEPT_VERSIONS]
        return new

    def find(self, transcript_id: str) -> Declared:
        """Returns a declared transcript, or one that a recording that goes on was declared as before.

        Raises:
            NotFoundError: There is none (`transcript.unknown`).
        """
        with self._lock:
            versions = [version for kept in self._open.values() for _, _, version in kept]
        declared = next((each for each in [*self.transcripts(), *versions] if each.id == transcript_id), None)
        if declared is None:
            raise not_declared(transcript_id)
        return declared

    def pieces(self, transcript_id: str, path: str = "", offset: int = 0) -> Iterator[Piece]:
        """Yields every file of a transcript in pieces, `manifest.json` first.

        Args:
            transcript_id: As `find` takes it.
            path: The file to begin with; empty for the first one.
            offset: Where in that file to begin, in bytes.

        Raises:
            TranscriptError: It cannot be read.
            UsageError: There is no such transcript (`transcript.unknown`), it has no such file, or the file ends before
                `offset`.
        """
        declared = self.find(transcript_id)
        found = walk_files(declared.path, max_files=2 * DEFAULT_LIMITS.files)
        # Links stay behind: nothing outside the transcript is handed out.
        sizes = {path: status.st_size for path, status in found if stat.S_ISREG(status.st_mode)}
        files = sorted(sorted(sizes), key=lambda path: path != MANIFEST)
        if path:
            if offset > sizes.get(path, -1):
                raise UsageError("the transcript has no such place; take path and offset from a piece that came before")
            files = files[files.index(path) :]
        elif offset:
            raise UsageError("an offset needs the path of its file; give both, or neither")
        for each in files:
            yield from _file_pieces(declared.path, each, offset if each == path else 0)


def _key_of(run: Path) -> SigningKey | None:
    """The key of a recording that keeps one beside it: what is regenerated of it must be signed by the same."""
    try:
        return load_or_create_key(key_path(run)) if key_path(run).is_file() else None
    except WeighbridgeError:
        return None  # whoever wants something regenerated is told


def not_declared(transcript_id: str) -> NotFoundError:
    """Returns the error for an identifier of no declared transcript (`transcript.unknown`)."""
    return NotFoundError(
        "no transcript of this id is declared; take one from ListTranscripts",
        code="transcript.unknown",
        resource="transcript",
        name=transcript_id,
    )


def manifests(root: Path, depth: int) -> Iterator[Path]:
    """Finds manifests; a directory that has one is a transcript and is not searched further."""
    if (root / MANIFEST).is_file():
        yield root / MANIFEST
    elif depth:
        for child in sorted(root.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from manifests(child, depth - 1)


def _explain(
    declared: list[Declared], ueid: bytes, log_index: int, step: int, op: int, head: bytes
) -> tuple[str, int, int] | None:
    """Looks for the snapshot's name; then, as a crash may have come before it was written down, for its history."""
    for each in declared:
        position = each.snapshots.get((ueid, log_index))
        if position is not None:
            return each.id, *position
    for each in declared:
        if 0 <= step < len(each.heads) and each.heads[step] == head:
            return each.id, step, op
    return None


def _declare(manifest: Path, home: Path | None = None) -> Declared:
    with manifest.open("rb") as file:
        text = file.read(_MANIFEST_CAP)
    name, steps, damage = "", 0, []
    try:
        opened = open_manifest(text)
        name, steps = opened.name, opened.steps
    except WeighbridgeError as error:
        damage.append(str(error))
    snapshots: dict[tuple[bytes, int], tuple[int, int]] = {}
    heads: list[bytes] = []
    coordinate = None
    try:
        draft = _read(manifest.parent / DRAFT)
        heads = [bytes_digest(draft)]
        said = decode_cbor(draft)
        coordinate = MeshCoordinate.of(said) if isinstance(said, dict) else None
    except WeighbridgeError as error:
        damage.append(f"{DRAFT}: {error}")
    for path in sorted((manifest.parent / "steps").glob("*.cbor.zst")):
        try:
            for record in read_records(path, DEFAULT_LIMITS):
                snapshots.update({(ueid, index): (record.step, op) for ueid, index, op in record.snapshots})
                heads += [chain(heads[-1], record.digest())] if heads else []
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
        id=bytes_digest(text).hex(),
        path=manifest.parent,
        home=home or manifest.parent,
        name=name,
        steps=steps,
        snapshots=snapshots,
        heads=heads,
        coordinate=coordinate,
        damage=damage,
    )


def _read(path: Path) -> bytes:
    return read_file(path, max_bytes=_MANIFEST_CAP)


def _file_pieces(root: Path, path: str, offset: int = 0) -> Iterator[Piece]:
    try:
        with (root / path).open("rb") as file:
            file.seek(offset)
            data = file.read(CHUNK)
            while True:
                following = file.read(CHUNK)
                yield Piece(path=path, offset=offset, data=data, last=not following)
                if not following:
                    return
                offset, data = offset + len(data), following
    except OSError as error:
        raise TranscriptError(f"{path} cannot be read ({error.strerror}); ask the Prover to repair it") from None
