"""Copies of transcripts that leave out what a replay recomputes.

The state after every step is fixed by its record, and the records by the running head. So of the checkpoints only one
is needed that no tape makes: the weights of a model that existed before its recording. A copy without the others has
the same signed manifest; `Transcript.open` says by the same rule which files may be absent.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import checkpoint_path
from weighbridge.transcript.writer import MANIFEST


@dataclass(frozen=True, slots=True)
class Export:
    """What an export wrote.

    Attributes:
        id: The transcript's identifier, which the copy shares.
        before: Bytes of the transcript by folder; files at the top count as themselves.
        after: The same of the copy.
        left_out: Paths of the files that are not in the copy, ascending.
    """

    id: str
    before: dict[str, int]
    after: dict[str, int]
    left_out: list[str]


def export(run: str | Path, out: str | Path, *, minimal: bool = False) -> Export:
    """Copies a transcript.

    Args:
        run: The transcript.
        out: Directory for the copy; it must not exist, or be empty.
        minimal: Leave out every checkpoint that a replay recomputes.

    Raises:
        TranscriptError: The transcript does not verify, or the copy cannot be written (`transcript.write`).
        UsageError: The directory is not empty.
    """
    transcript, target = Transcript.open(run), Path(out)
    left_out = sorted(checkpoint_path(step) for step in transcript.remakable()) if minimal else []
    sizes = {path: size for path, size, _ in transcript.manifest.files} | {
        MANIFEST: (transcript.path / MANIFEST).stat().st_size
    }
    here = {path: size for path, size in sizes.items() if (transcript.path / path).exists()}
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(f"{out} is not empty; choose a new directory for the copy")
        for path in sorted(here.keys() - set(left_out), key=lambda path: path == MANIFEST):  # the manifest last
            (target / path).parent.mkdir(exist_ok=True)
            shutil.copyfile(transcript.path / path, target / path)
    except OSError as error:
        raise TranscriptError(
            f"cannot write to {out} ({error.strerror}); choose another directory", code="transcript.write"
        ) from None
    Transcript.open(target)
    copied = {path: size for path, size in here.items() if path not in left_out}
    return Export(transcript.digest, _by_folder(here), _by_folder(copied), sorted(here.keys() - copied.keys()))


def _by_folder(sizes: dict[str, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for path, size in sorted(sizes.items()):
        folder = path.partition("/")[0]
        totals[folder] = totals.get(folder, 0) + size
    return totals
