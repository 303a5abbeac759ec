"""Transcripts that Provers hand in: what is there of each, what a Prover may keep here, and when one is whole.

What arrives is hostile. Each certificate has a directory of its own in the cache directory, with a directory for each
transcript that it uploads. The manifest comes first and fixes path and size of every other file, so nothing else is
ever written. A file is as long as what came of it, and so what is on disk says by itself where an upload goes on after
any break. Only a transcript that is whole and verified moves to where inspections look for it; one that breaks a rule
is removed whole.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from verifier.contact.upload_receiving import Receiving, cannot_write, order
from verifier.store.cache import PATH, Cache
from weighbridge.attest.manifest import Manifest, open_manifest
from weighbridge.core.durable import sync
from weighbridge.core.errors import QuotaError, UsageError, WeighbridgeError
from weighbridge.execution.transcript_facts import open_confined
from weighbridge.rpc.busy import BusyError
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate
from weighbridge.transcript.writer import MANIFEST

UPLOADS = "uploads"
"""What the directory with all of it is called in the cache directory."""
WHOLE = ".whole.json"
"""Behind a transcript's identifier: the file that says that a certificate uploaded it whole."""
STREAMS, STREAMS_OF_ONE = 8, 2
"""Uploads in progress at a time, of all certificates and of one; others leave the workers to other calls."""
_KEPT = frozenset(
    {
        *("transcript.upload.order", "transcript.file.missing", "transcript.write"),
        *("identity.expired", "identity.revocations"),
    }
)
"""After these errors what is there stays: it may have been right, and the sender can go on."""
EXPIRY_S = 7 * 86400.0
"""An upload that was abandoned for so long is removed."""
SWEEP_S = 3600.0
"""How often to look for such uploads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """What one certificate may keep here, whole transcripts and those that are being uploaded together.

    Attributes:
        total: Bytes.
        files: Files.
    """

    total: int = 1 << 40
    files: int = 1_000_000

    def __post_init__(self) -> None:
        """Refuses what would refuse everything (UsageError)."""
        if self.total < 0 or self.files < 0:
            raise UsageError("a quota of uploads is no negative number; 0 refuses all uploads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A transcript that was uploaded whole, and what decides whether it may explain a snapshot.

    Attributes:
        id: Hex digest of its manifest.
        certificate: Who uploaded it: hex SHA-256 of the key in their certificate, which a renewal keeps.
        draft: Digest of its draft (32 bytes), which the chip must have logged.
        steps: Its number of steps.
        coordinate: Its mesh coordinate in a job on several ranks; None if it is no rank's.
    """

    id: str
    certificate: str
    draft: bytes
    steps: int
    coordinate: MeshCoordinate | None


class Uploads:
    """All uploads of a Verifier; safe to use from several threads."""

    def __init__(self, cache: Cache, quota: Quota | None = None) -> None:
        """Takes over what former processes were given, and removes abandoned uploads.

        Args:
            cache: Where whole transcripts go; its limits hold for each of them.
            quota: Of each certificate.
        """
        self._cache, self._quota = cache, quota or Quota()
        self._root = cache.root / UPLOADS
        self._lock, self._swept = threading.Lock(), time.monotonic()
        # What is read may take much more room than its bytes, so one thread at a time reads.
        self._parsing, self._verifying = threading.Lock(), threading.Lock()
        self._open: set[tuple[str, str]] = set()
        self._sizes: dict[tuple[str, str], tuple[int, int]] = {}
        self._whole: dict[tuple[str, str], Whole] = {}
        self._tables: dict[tuple[str, str], dict[str, int]] = {}
        for marker in self._root.glob(f"*/*{WHOLE}"):
            self._take_over(marker)
        for place in self._root.glob("*/*"):
            key = (place.parent.name, place.name)
            if place.is_dir() and key in self._whole:
                shutil.rmtree(place, ignore_errors=True)  # a kill came when it had moved already
            elif place.is_dir() and not self._expired(place):
                sizes = [each.stat().st_size for each in place.rglob("*") if each.is_file()]
                self._sizes[key] = (sum(sizes), len(sizes))
                if (table := self._table(key)) is not None:
                    self._sizes[key] = (sum(table.values()), len(table))

    def whole(self) -> list[Whole]:
        """Returns the transcripts that were uploaded whole, ascending by identifier and certificate."""
        with self._lock:
            return sorted(self._whole.values(), key=lambda each: (each.id, each.certificate))

    def status(self, certificate: str, transcript_id: str) -> dict[str, int] | None:
        """Returns the bytes that are on disk of each file of an upload; None if it is whole.

        Args:
            certificate: Whose upload: hex SHA-256 of the key in their certificate, which a renewal keeps.
            transcript_id: Which transcript.

        Raises:
            BusyError: It is being written just now.
        """
        key = (certificate, transcript_id)
        with self._turn(key):
            if key in self._whole and self._cache.has(transcript_id):
                return None
            place = self._place(key)
            return {
                each.relative_to(place).as_posix(): each.stat().st_size for each in place.rglob("*") if each.is_file()
            }

    @contextmanager
    def receiving(self, certificate: str, transcript_id: str) -> Iterator[Receiving]:
        """Opens an upload for one call; whatever came is on disk when the block is left.

        Raises:
            BusyError: It is being written by another call, or too many uploads are in progress.
            WeighbridgeError: It breaks a rule; unless that can be mended, the upload is gone then.
        """
        key = (certificate, transcript_id)
        with self._turn(key):
            if key in self._whole:
                if self._cache.has(transcript_id):
                    raise order("this transcript is here, whole and verified")
                del self._whole[key]  # it was removed to make room
            self._sweep()
            receiving = Receiving(
                self._place(key),
                transcript_id,
                table=self._table(key),
                reserve=lambda size: self._reserve(key, size, 1),
                listed=lambda text: self._listed(key, text),
            )
            try:
                try:
                    yield receiving
                finally:
                    receiving.close()
            except WeighbridgeError as error:
                if error.reason not in _KEPT:
                    self._drop(key)
                raise
            finally:
                self._forget_empty(key)

    def finish(self, receiving: Receiving, certificate: str) -> None:
        """Verifies an upload of which everything is there, and moves it to where inspections look for it.

        Raises:
            WeighbridgeError: A file is missing or does not end, or the transcript does not verify.
        """
        key = (certificate, receiving.id)
        receiving.check_whole()
        with self._verifying:
            transcript = open_confined(receiving.root, opening=self._cache.opening)
        whole = Whole(
            id=receiving.id,
            certificate=certificate,
            draft=transcript.draft_digest,
            steps=transcript.steps,
            coordinate=transcript.coordinate(),
        )
        marker = self._marker(key)
        try:
            _write(marker, {"draft": whole.draft.hex(), "steps": whole.steps, "sizes": self._sizes[key],
                            "job": None if whole.coordinate is None else whole.coordinate.job.encode().hex(),
                            "rank": None if whole.coordinate is None else whole.coordinate.rank})  # fmt: skip
            self._cache.room.spare(receiving.id)  # it cannot be fetched again
            self._cache.adopt(receiving.root, receiving.id)
        except OSError as error:
            raise cannot_write(receiving.id, error) from None
        with self._lock:
            self._whole[key] = whole
            self._tables.pop(key, None)

    @contextmanager
    def _turn(self, key: tuple[str, str]) -> Iterator[None]:
        """One call at a time for an upload, and some at a time for all of them."""
        with self._lock:
            own = sum(certificate == key[0] for certificate, _ in self._open)
            if key in self._open or own >= STREAMS_OF_ONE or len(self._open) >= STREAMS:
                raise BusyError("Other uploads are in progress here, or this one by another call; wait.", retry_s=1)
            self._open.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(key)

    def _place(self, key: tuple[str, str]) -> Path:
        return self._root / key[0] / key[1]

    def _marker(self, key: tuple[str, str]) -> Path:
        return self._root / key[0] / f"{key[1]}{WHOLE}"

    def _table(self, key: tuple[str, str]) -> dict[str, int] | None:
        """Returns the size of each file of an upload whose manifest is there."""
        if key not in self._tables:
            try:
                text = (self._place(key) / MANIFEST).read_bytes()
                with self._parsing:
                    manifest = open_manifest(text)
            except (OSError, WeighbridgeError):
                return None
            if manifest.digest != key[1]:
                return None
            self._tables[key] = table_of(manifest, len(text))
        return self._tables[key]

    def _listed(self, key: tuple[str, str], text: bytes) -> dict[str, int]:
        """Makes room for all files of a manifest, and returns the size of each.

        Raises:
            TranscriptError: The manifest does not verify.
            UsageError: A path is not allowed, or the transcript is larger than a Verifier takes.
            QuotaError: The certificate may not keep so much.
        """
        with self._parsing:
            manifest = open_manifest(text)
        table, limits = table_of(manifest, len(text)), self._cache.limits
        folders = {str(parent) for path in table for parent in PurePosixPath(path).parents}
        bad = next((path for path in table if not PATH.fullmatch(path) or path in folders), None)
        if bad is not None or len(table) != len(manifest.files) + 1:
            raise UsageError(
                f"the manifest lists a file under the path {(bad or MANIFEST)[:100]!r}, which is not allowed",
                code="transcript.upload.path",
            )
        if sum(table.values()) > limits.total or len(table) > limits.files:
            raise UsageError(
                f"the transcript is larger than {limits.total} bytes or {limits.files} files; hand in a minimal "
                "export, or ask the Verifier to raise its limits",
                code="transcript.upload.oversized",
            )
        self._reserve(key, sum(table.values()), len(table))
        self._tables[key] = table
        return table

    def _reserve(self, key: tuple[str, str], total: int, files: int) -> None:
        with self._lock:
            others = [size for other, size in self._sizes.items() if other[0] == key[0] and other != key]
            used, count = sum(size for size, _ in others), sum(count for _, count in others)
            if used + total > self._quota.total or count + files > self._quota.files:
                raise QuotaError(
                    f"this certificate may keep {self._quota.total} bytes in {self._quota.files} files here, and has "
                    f"{used} bytes in {count}; this upload has {total} in {files}. Ask the Verifier for more room",
                    total=self._quota.total, files=self._quota.files,
                )  # fmt: skip
            self._sizes[key] = (total, files)

    def _drop(self, key: tuple[str, str]) -> None:
        """Removes an upload and what is known about it."""
        shutil.rmtree(self._place(key), ignore_errors=True)
        self._tables.pop(key, None)

    def _forget_empty(self, key: tuple[str, str]) -> None:
        """Gives room back of which nothing was used."""
        if key not in self._whole and not self._place(key).exists():
            with self._lock:
                self._sizes.pop(key, None)
                self._tables.pop(key, None)

    def _expired(self, place: Path) -> bool:
        """Removes an abandoned upload; tells whether it was one."""
        newest = max((each.stat().st_mtime for each in place.rglob("*")), default=0.0)
        if newest > time.time() - EXPIRY_S:
            return False
        shutil.rmtree(place, ignore_errors=True)
        return True

    def _sweep(self) -> None:
        """Removes expired uploads, once in a while."""
        with self._lock:
            if time.monotonic() - self._swept < SWEEP_S:
                return
            self._swept = time.monotonic()
        for place in self._root.glob("*/*"):
            key = (place.parent.name, place.name)
            with self._lock:
                if not place.is_dir() or key in self._open:
                    continue
                self._open.add(key)  # its sender cannot go on with it now
            try:
                if self._expired(place):
                    self._forget_empty(key)
            finally:
                with self._lock:
                    self._open.discard(key)

    def _take_over(self, marker: Path) -> None:
        """Reads what a former process noted of a whole transcript that is still there."""
        key = (marker.parent.name, marker.name.removesuffix(WHOLE))
        if not self._cache.has(key[1]):
            return  # it was removed to make room, or has to be finished again
        try:
            raw = json.loads(marker.read_bytes())
            coordinate = None
            if raw["job"] is not None:
                coordinate = MeshCoordinate(JobRecord.decode(bytes.fromhex(raw["job"])), raw["rank"])
            total, files = raw["sizes"]
            draft = bytes.fromhex(raw["draft"])
            self._whole[key] = Whole(
                id=key[1], certificate=key[0], draft=draft, steps=raw["steps"], coordinate=coordinate
            )
            self._sizes[key] = (total, files)
            self._cache.room.spare(key[1])
        except (OSError, ValueError, KeyError, TypeError, WeighbridgeError):
            marker.unlink(missing_ok=True)  # our own disk is to blame; the Prover may finish it again


def table_of(manifest: Manifest, size: int) -> dict[str, int]:
    """Returns path to bytes of the files of a transcript whose manifest has `size` bytes."""
    return {MANIFEST: size, **{path: listed for path, listed, _ in manifest.files if path != MANIFEST}}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Writes a small file durably, so that a reader sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync(path.parent)
