"""Receives the rounding logs that a Prover makes on demand, and keeps those that are this run's.

What arrives is hostile. Here its statement is read and its signature verified, as of a manifest; the log itself is
decoded by nothing but the confined worker that replays with it. Everything is counted before it is written.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from verifier.contact.clients import ProverClient
from verifier.contact.supplement_records import MOST_LOGS, MOST_TREES, Signed
from verifier.model.supplement_facts import LATE, REFUSED, Steps
from verifier.store.cache import Cache
from verifier.store.cache_room import PARTIAL, StorageError
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.core.durable import sync
from weighbridge.core.errors import Finding, FormatError, ProverError, TranscriptError, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.supplements import Statement, folder_of, read_statement, supplement_name

Connect = Callable[[], AbstractContextManager[ProverClient]]
"""Opens a connection to the Prover."""
Known = Mapping[int, Sequence[Statement]]
"""By step: what the run's key is known to have signed."""

MAX_BYTES = DEFAULT_LIMITS.rounding
"""Of one supplement; no replay reads a larger one."""
EQUIVOCATION = "transcript.supplement.equivocation"
_FOREIGN, _SIGNATURE = "transcript.supplement.foreign", "transcript.supplement.signature"


@dataclass(slots=True)
class Received:
    """What a Prover sent.

    Attributes:
        steps: Steps that have a supplement now.
        signed: What is to be remembered.
        findings: What is wrong with what came.
        why: Why no more came; None if the Prover ended in order.
    """

    steps: set[int] = field(default_factory=set)
    signed: list[Signed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    why: WeighbridgeError | None = None


def receive(
    cache: Cache,
    connect: Connect,
    transcript: OpenedTranscript,
    steps: Steps,
    known: Known,
    *,
    deadline_s: float,
    progress: Callable[[int, int], None],
) -> Received:
    """Has a Prover make the logs of some steps, and keeps them beside the transcript in the cache.

    Args:
        cache: The cache; the transcript is in it.
        connect: Connects to the Prover.
        transcript: The transcript, which has its logs on demand.
        steps: The steps.
        known: What the run's key has signed before.
        deadline_s: Seconds that the Prover has.
        progress: Told how far the Prover says it is.

    Returns:
        What came; that nothing did is a result.

    Raises:
        StorageError: It cannot be stored.
    """
    end, got = time.monotonic() + deadline_s, Received()
    folder = folder_of(transcript.path)
    try:
        cache.room.use(folder.name)
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=cache.root, ignore_cleanup_errors=True) as name:
            arriving = Path(name) / "arriving"
            try:
                with connect() as client:
                    sent = client.supplements(transcript.digest, steps, deadline_s=deadline_s, progress=progress)
                    for step in _written(sent, arriving, steps, cache):
                        _take(got, arriving, folder, transcript, step, known)
            except WeighbridgeError as error:
                got.why = _reason(error, time.monotonic() >= end, deadline_s)
        sync(folder)
        cache.room.stored(folder.name)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"rounding logs cannot be stored ({error.strerror}); free space on the Verifier's disk and start the "
            "inspection again"
        ) from None
    return got


def kept(transcript: OpenedTranscript, steps: Steps) -> int:
    """Returns how many of some steps have a supplement in the cache whose statement is this run's."""
    return sum(_said(transcript, step) is not None for step in range(*steps))


def roundings(transcript: OpenedTranscript, steps: Steps) -> list[bytes] | None:
    """Returns the digests of the logs of some steps, as the statements in the cache name them; None if one lacks."""
    statements = [_said(transcript, step) for step in range(*steps)]
    found = [bytes.fromhex(each.rounding) for each in statements if each is not None]
    return found if len(found) == len(statements) else None


def _said(transcript: OpenedTranscript, step: int) -> Statement | None:
    try:
        said, signer, _ = read_statement(folder_of(transcript.path) / supplement_name(step))
        _require_own(said, signer, transcript, step)
    except (WeighbridgeError, OSError):
        return None
    return said


def _reason(error: WeighbridgeError, late: bool, deadline_s: float) -> WeighbridgeError:
    """Tells apart a Prover who took too long, one who is not there, and one who refuses or sends nonsense."""
    if late:
        return ProverError(f"they were not here after {deadline_s:g} s, which it was told", code=LATE)
    if error.reason == ProverError.code:
        return error
    why = f"its service refuses or sends something else ({error.reason}: {error.message[:400]})"
    return ProverError(why, code=REFUSED)


def _written(sent: Iterator[tuple[int, int, bytes, bool]], place: Path, steps: Steps, cache: Cache) -> Iterator[int]:
    """Writes supplements to a file, one after the other; yields the step of each while it lies there.

    Raises:
        FormatError: They are not those that were asked for, do not come in order, or are too large.
    """
    file: IO[bytes] | None = None
    due, total, now = steps[0], 0, -1
    try:
        for step, offset, data, last in sent:
            if file is None:
                if not due <= step < steps[1]:
                    raise _disorder(f"the supplement of step {step} came, which was not asked for or not due")
                now, due, file = step, step + 1, place.open("wb")
            total += len(data)
            if step != now or offset != file.tell():
                raise _disorder("the pieces of a supplement did not come in order")
            if not data and not last:
                raise _disorder(f"a piece of the supplement of step {step} has no content, and is not the last")
            if offset + len(data) > MAX_BYTES or total > cache.limits.total:
                raise _disorder(f"a supplement has more than {MAX_BYTES} bytes, or all have more than a transcript may")
            cache.room.arriving(total, len(data))
            file.write(data)
            if last:
                file.close()
                file = None
                yield step
        if file is not None:
            raise _disorder(f"the supplement of step {now} ended before its last piece")
    finally:
        if file is not None:
            file.close()


def _disorder(what: str) -> FormatError:
    return FormatError(f"{what}; treat the Prover's service as hostile", code="transcript.supplement.malformed")


def _take(got: Received, arrived: Path, folder: Path, transcript: OpenedTranscript, step: int, known: Known) -> None:
    """Keeps a supplement if it is the run's, and notes if it is a second one."""
    subject = f"transcript {transcript.digest}: step {step}"
    try:
        said, signer, envelope = read_statement(arrived)
        _require_own(said, signer, transcript, step)
    except WeighbridgeError as error:
        got.findings.append(
            Finding(
                id=error.reason, message=f"a rounding log is not used: {error.message}", subject=subject,
                severity="warning",
            )
        )  # fmt: skip
        return
    before = known.get(step, ())
    alike = {each.tree for each in before if each.rounding == said.rounding}
    others = list(dict.fromkeys(each.rounding for each in before if each.rounding != said.rounding))
    trees = [each.tree for each in before if each.tree and said.tree not in ("", each.tree)]
    for what, expected, found in (("rounding log", others, said.rounding), ("tree", trees, said.tree)):
        if expected:
            got.findings.append(
                Finding(
                    id=EQUIVOCATION,
                    message=f"the Prover signed another {what} for step {step} before; one of the two was made up, and "
                    "what it signed first is kept: the Prover must explain this",
                    expected=expected[0],
                    found=found,
                    subject=subject,
                )
            )
    # What was signed first about a log stays; a tree that is new is more than was known, and a second one is proof.
    new = bool(said.tree) and said.tree not in alike and len(alike - {""}) < MOST_TREES
    if new if alike else len(others) < MOST_LOGS:
        got.signed.append((said, signer, envelope))
    sync(arrived)  # a torn file under this name would accuse the Prover
    os.replace(arrived, folder / supplement_name(step))
    got.steps.add(step)


def _require_own(said: Statement, signer: bytes, transcript: OpenedTranscript, step: int) -> None:
    """Checks that a statement is about the step of the run, and signed by its key."""
    before = transcript.state(step - 1).hex() if step else ""
    own = {
        "draft": transcript.draft_digest.hex(), "step": step, "before": before,
        "state": transcript.state(step).hex(), "outputs": transcript.outputs(step).hex(),
    }  # fmt: skip
    for name, value in own.items():
        if getattr(said, name) != value:
            raise TranscriptError(
                f"its {name} is not that of step {step} of the run; have the Prover regenerate it", code=_FOREIGN
            )
    if signer != transcript.manifest.public:
        raise FormatError("it is not signed by the key that signed the transcript", code=_SIGNATURE)
