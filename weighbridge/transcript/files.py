"""The files of a transcript as bytes: are they those that the signed manifest lists?

Nothing here decodes what a Prover sent, except the manifest itself, which is small (`weighbridge.core.bounded.Limits`).
So a process that holds keys may do this, and leave the content to a confined one.
"""

from __future__ import annotations

import stat
from pathlib import Path

from weighbridge.attest.manifest import Manifest, open_manifest
from weighbridge.core.bounded import Limits, file_digest, read_file, walk_files
from weighbridge.core.errors import TranscriptError
from weighbridge.transcript import layout
from weighbridge.transcript.chip_notes import CHIPS
from weighbridge.transcript.entry_notes import ENTERED
from weighbridge.transcript.returned_state import RETURNED
from weighbridge.transcript.steps import checkpoint_path
from weighbridge.transcript.training_claims import CLAIMS
from weighbridge.transcript.writer import MANIFEST, RESUMPTIONS

_ONLY_LISTED = frozenset({RESUMPTIONS, CHIPS, ENTERED, CLAIMS, RETURNED, layout.LAYOUT, checkpoint_path(0)})
"""Files whose content follows from the manifest alone. All others are compared again with digests that it leads to:
the draft's, the running head's, or one in a step record."""


def read_manifest(root: Path, limits: Limits) -> Manifest:
    """Reads and verifies the manifest of a transcript.

    Raises:
        TranscriptError: It is missing, too large, malformed or not signed by its key.
    """
    try:
        text = read_file(root / MANIFEST, max_bytes=limits.manifest)
    except TranscriptError as error:
        if error.reason != "transcript.file.missing":
            raise
        raise TranscriptError(
            f"{root} has no {MANIFEST}; give the directory of a transcript (`weighbridge transcript recover` one whose "
            "recording crashed)",
            code="transcript.file.missing",
            path=MANIFEST,
        ) from None
    return open_manifest(text)


def verify_files(root: Path, manifest: Manifest, limits: Limits, *, unchanged: bool = False) -> list[int]:
    """Compares a directory with its manifest, file by file.

    Checkpoints may be absent here; whether a replay recomputes them is for a reader of the tapes to say.

    Args:
        root: The directory.
        manifest: What it should hold.
        limits: On files and steps.
        unchanged: The contents were compared before, in a directory of the reader's own. Then only those are compared
            again that no other digest fixes.

    Returns:
        Steps whose checkpoint is there, ascending.

    Raises:
        TranscriptError: A file is missing, altered, unlisted or too large (`transcript.file.*`).
    """
    if len(manifest.files) > limits.files or manifest.steps > limits.steps:
        raise TranscriptError(
            f"the transcript has {len(manifest.files)} files and {manifest.steps} steps, above the limits of "
            f"{limits.files} and {limits.steps}; raise the limits if you trust its origin",
            code="transcript.file.oversized",
        )
    listed = {path: (size, digest) for path, size, digest in manifest.files}
    missing = set(listed)
    for path, status in walk_files(root, max_files=8 * len(listed) + 64):
        missing.discard(path)
        if path == MANIFEST:
            continue
        if path not in listed:
            raise TranscriptError(
                f"{path!r} is not listed in the manifest; remove it or fetch the transcript again",
                code="transcript.file.unlisted",
                path=path,
            )
        _check_size(path, listed[path][0], status.st_size if stat.S_ISREG(status.st_mode) else None, limits)
    if needed := missing - set(map(checkpoint_path, manifest.checkpoints)):
        raise TranscriptError(
            f"{min(needed)} is missing; fetch it again", code="transcript.file.missing", path=min(needed)
        )
    for path, (size, digest) in listed.items():
        if path in missing or (unchanged and path not in _ONLY_LISTED):
            continue
        if file_digest(root / path) != (size, bytes.fromhex(digest)):
            raise altered(path)
    return [step for step in manifest.checkpoints if checkpoint_path(step) not in missing]


def altered(path: str) -> TranscriptError:
    """Returns what is to be said of a file that is not the one that the manifest lists."""
    return TranscriptError(
        f"{path} is not the file that the manifest lists; fetch it again", code="transcript.file.altered", path=path
    )


def _check_size(path: str, size: int, found: int | None, limits: Limits) -> None:
    if found is None or found < size:
        raise altered(path)
    if found > size or size > limits.file:
        raise TranscriptError(
            f"{path} has {found} bytes where {size} are listed and {limits.file} allowed; fetch it again",
            code="transcript.file.oversized",
            path=path,
        )
