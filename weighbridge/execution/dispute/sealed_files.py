"""What a party to a sealed dispute gives the worker: its claim, what opens the disputed step, and its run.

    subject             the step and both transcripts, which the terms commit to (`attest.sealed_subject`)
    claim               terms, program, state, record and leaf hashes: a challenge's content, of either party
    run/...             the transcript that the claim is about
    run.supplements/... logs that were made on demand, if there are any

The worker makes openings out of the run. So no message of a party depends on what the other one claimed, and nothing
has to leave the worker before its ruling.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from weighbridge.attest.sealed_list import SealedList, list_files
from weighbridge.core.bounded import DEFAULT_LIMITS, file_digest
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.execution.dispute.messages import Challenge, body_of, content_of
from weighbridge.transcript.supplements import folder_of
from weighbridge.transcript.writer import MANIFEST

SUBJECT, CLAIM, RUN = "subject", "claim", "run"
MAX_CLAIM = 32 << 20
"""Most bytes of a claim: as many as a referee's service takes in a challenge (`docket.DocketLimits`)."""
MAX_SHOWN = 128 << 20
"""Most bytes of an operation's operands: what shows them is one line of a worker's answer."""


def gather(out: Path, run: Path, claim: Challenge, subject: bytes) -> None:
    """Makes the directory.

    Args:
        out: Where to; nothing may be there yet. Files of the run are linked where the file system permits.
        run: The transcript.
        claim: What the party claims of the step.
        subject: What opens the subject of the terms.

    Raises:
        UsageError: Something is there, a file cannot be read or written, or the claim is larger than a worker takes.
    """
    said = body_of(claim)
    if len(said) > MAX_CLAIM:
        raise UsageError(f"the claim has {len(said)} bytes, and a sealed referee takes {MAX_CLAIM}; dispute it openly")
    try:
        out.mkdir(mode=0o700)
        (out / SUBJECT).write_bytes(subject)
        (out / CLAIM).write_bytes(said)
        shutil.copytree(run, out / RUN, copy_function=_linked)
        if (beside := folder_of(run)).is_dir():
            shutil.copytree(beside, folder_of(out / RUN), copy_function=_linked)
    except FileExistsError:
        raise UsageError(f"something is at {out} already; name another directory") from None
    except OSError as error:
        raise UsageError(f"cannot gather {error.filename} ({error.strerror}); name other directories") from None


def listed(directory: Path) -> SealedList:
    """Lists a directory that `gather` made, for the commitment to it.

    Raises:
        UsageError: A file cannot be read.
        FormatError: It has files that no list may name.
    """
    return list_files(directory, [str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file()])


def subject(directory: Path) -> bytes:
    """Returns what a party says opens the subject: in the worker; nothing if it gave none."""
    path = directory / SUBJECT
    return path.read_bytes() if path.is_file() and path.stat().st_size <= 1 << 10 else b""


def claim(directory: Path) -> Challenge:
    """Returns a party's claim: in the worker.

    Raises:
        FormatError: It gave none, or one that is too large.
    """
    path = directory / CLAIM
    if not path.is_file() or path.stat().st_size > MAX_CLAIM:
        raise FormatError("a party gave no claim")
    found = content_of(path.read_bytes())
    if not isinstance(found, Challenge):
        raise FormatError("a party's claim is another message")
    return found


def transcript(run: Path) -> bytes:
    """Returns the digest of a transcript's manifest (32 bytes), of which nothing is decoded; nothing if it has none.

    One that no reader takes is none: to read all that a party may give would take time that is not charged to it.
    """
    path = run / MANIFEST
    if path.is_symlink() or not path.is_file() or path.stat().st_size > DEFAULT_LIMITS.manifest:
        return b""
    return file_digest(path)[1]


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
