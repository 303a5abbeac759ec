"""Evidence for download: what `weighbridge evidence export` writes, one file at a time."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

from verifier.evidence import export
from verifier.evidence.export import Source
from weighbridge.core.errors import WeighbridgeError


class BusyError(WeighbridgeError):
    """Another file is being put together; try again when it is done."""

    code = "console.busy"


class EvidenceFiles:
    """Puts bundles together in a directory of its own; a bundle is removed once it was sent."""

    def __init__(self, source: Source) -> None:
        """Takes what evidence is taken from, the registry opened for reading only."""
        self._source, self._one = source, threading.Lock()

    def write(self, inspection: str, *, finding: int | None, snapshot: tuple[str, int] | None) -> Path:
        """Writes a bundle; the caller removes the file and its directory.

        Args:
            inspection: Identifier.
            finding: Number in the report's findings, from 0.
            snapshot: A chip's UEID in hexadecimal, and the index in its log.

        Raises:
            BusyError: Another is being written.
            NotFoundError: There is no such inspection.
            UsageError: It has no report, or no such finding or snapshot.
        """
        if not self._one.acquire(blocking=False):
            raise BusyError("another file of evidence is being put together; try again in a moment")
        try:
            root = Path(tempfile.mkdtemp(prefix="weighbridge-console-"))
            what = f"finding-{finding}" if snapshot is None else f"snapshot-{snapshot[0][:8]}-{snapshot[1]}"
            out = root / f"evidence-{inspection}-{what}.zip"
            try:
                export.export(self._source, inspection, out, finding=finding, snapshot=snapshot)
            except BaseException:
                shutil.rmtree(root, ignore_errors=True)
                raise
            return out
        finally:
            self._one.release()
