"""Answers a Verifier who asks for the rounding logs of a run that has its logs on demand.

What is there already is handed out. The rest is made by a process of its own (`prover.keeping.regeneration_process`),
of which only so many run at a time, as each takes as much as a training does; who comes later waits for a turn. A
process whose caller has gone, or whose deadline has passed, is ended. What it had written by then stays.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prover.keeping.archive import CHUNK, Archive, Declared
from prover.keeping.regeneration_process import MODULE
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor, read_file
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.numerics.conformance.device_kind import settings_of
from weighbridge.transcript import resumption_notes
from weighbridge.transcript.declared_device import declared_device
from weighbridge.transcript.log_kinds import on_demand, sketched
from weighbridge.transcript.supplements import decode, folder_of, key_path, supplement_name
from weighbridge.transcript.writer import DRAFT, RESUMPTIONS

AT_ONCE = 1
"""Processes that make logs at a time, unless the service is told otherwise."""
ALIVE_SECONDS = 5.0
"""How often a waiting caller hears something."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a regeneration is: steps done, and to do; 0 of 0 while it waits for a turn."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SupplementPiece:
    """One piece of one supplement; see `SupplementPiece` in `protos/weighbridge/v1/prover.proto`."""

    step: int
    offset: int
    data: bytes
    last: bool


class Regenerations:
    """Makes and hands out the supplements of one archive; safe to use from several threads."""

    def __init__(
        self, archive: Archive, *, at_once: int = AT_ONCE, key: Path | None = None, trees: bool = False
    ) -> None:
        """Answers from `archive`.

        Args:
            archive: The transcripts.
            at_once: Processes that may run at a time.
            key: Key file of recordings that keep none beside them.
            trees: Whether to sign the root of each step's tree too, where it has one: in a dispute no other leaves may
                be named then. A supplement without one is made anew, and has the same log.

        Raises:
            UsageError: No process may run.
        """
        if at_once < 1:
            raise UsageError("at least one process must be allowed to make rounding logs")
        self._archive, self._at_once, self._key, self._trees = archive, at_once, key, trees
        self._running: set[Path] = set()
        self._turn = threading.Condition()

    def pieces(
        self, transcript_id: str, steps: tuple[int, int], going: Callable[[], bool]
    ) -> Iterator[Progress | SupplementPiece]:
        """Yields signs of life and then the supplements of some steps, ascending, in pieces.

        Args:
            transcript_id: The transcript.
            steps: (first, last + 1).
            going: Whether the caller still waits; asked several times a second.

        Raises:
            TranscriptError: It is not declared, or cannot be read.
            UsageError: It has no such steps or its logs in full, its key is not here, or the repeat differs.
        """
        declared = self._found(transcript_id)
        first, last = steps
        if not 0 <= first < last <= declared.steps:
            raise UsageError(f"the transcript has the steps 0:{declared.steps}; {first}:{last} are not among them")
        draft = read_file(declared.path / DRAFT, max_bytes=DEFAULT_LIMITS.manifest)
        said = decode_cbor(draft)
        if not isinstance(said, dict) or not on_demand(said):
            raise UsageError("the transcript has its rounding logs in full; take them from FetchTranscript")
        folder, job = folder_of(declared.home), declared.coordinate is not None
        tree = self._trees and not job and not sketched(said)
        if _missing(folder, steps, bytes_digest(draft), tree):
            with self._alone(declared.home.parent if job else declared.home, going) as waiting:
                yield from waiting
                if missing := _missing(folder, steps, bytes_digest(draft), tree):  # who had the turn may have made them
                    runs = self._ranks(declared) if job else [declared]
                    request = {
                        "job": job, "tree": tree, "steps": [missing[0], missing[-1] + 1],
                        "runs": [str(each.path.resolve()) for each in runs],
                        "keys": [str(self._key_of(each).resolve()) for each in runs],
                        "outs": [str(folder_of(each.home).resolve()) for each in runs],
                    }  # fmt: skip
                    yield from _made(request, _environment(declared.path, said, missing[-1]), going)
        for step in range(first, last):
            yield from _pieces(folder / supplement_name(step), step)

    def _found(self, transcript_id: str) -> Declared:
        """Finds a transcript; of several copies the one that lies beside its key."""
        copies = [each for each in self._archive.transcripts() if each.id == transcript_id]
        with_key = (each for each in copies if key_path(each.home).is_file())
        return next(with_key, None) or self._archive.find(transcript_id)

    def _ranks(self, declared: Declared) -> list[Declared]:
        """Returns the transcripts of all ranks of the job that one is part of, in their order.

        Raises:
            UsageError: One is not here, and without it none can be repeated.
        """
        assert declared.coordinate is not None
        job, beside = declared.coordinate.job, declared.home.parent
        found = {
            each.coordinate.rank: each
            for each in [*self._archive.transcripts(), declared]
            if each.coordinate is not None and each.coordinate.job == job and each.home.parent == beside
        }
        lacking = sorted(set(range(job.ranks)) - set(found))
        if lacking:
            raise UsageError(
                f"the transcripts of ranks {lacking[:64]} of this job are not here, and no rank can be repeated "
                "without the others; put them beside it",
                code="record.regenerate.ranks",
            )
        return [found[rank] for rank in sorted(found)]

    def _key_of(self, declared: Declared) -> Path:
        beside = key_path(declared.home)
        if beside.is_file():
            return beside
        if self._key is None:
            raise UsageError(
                f"the key of {declared.name} is not beside it, so its rounding logs cannot be signed",
                code="record.regenerate.key",
            )
        return self._key

    @contextmanager
    def _alone(self, run: Path, going: Callable[[], bool]) -> Iterator[Iterator[Progress]]:
        """Takes a turn; yields what to say while waiting for it. Two processes never write for one run."""
        taken = False

        def wait() -> Iterator[Progress]:
            nonlocal taken
            said = 0.0
            while not taken:
                with self._turn:
                    if len(self._running) < self._at_once and run not in self._running:
                        self._running.add(run)
                        taken = True
                        return
                    self._turn.wait(_LOOK_SECONDS)
                _require(going)
                if time.monotonic() - said > ALIVE_SECONDS:
                    said = time.monotonic()
                    yield Progress(0, 0)

        try:
            yield wait()
        finally:
            if taken:
                with self._turn:
                    self._running.discard(run)
                    self._turn.notify_all()


def _missing(folder: Path, steps: tuple[int, int], draft: bytes, tree: bool) -> list[int]:
    """Returns the steps that have no supplement yet, or none with a tree if that is wanted."""
    return [step for step in range(*steps) if not _is_there(folder, step, draft, tree)]


def _is_there(folder: Path, step: int, draft: bytes, tree: bool) -> bool:
    """Whether the supplement of a step is there, whole, and of this run: another may have been recorded in its place.

    The log is expanded too. A disk may have damaged it, and a Verifier counts a damaged one as refused.
    """
    try:
        supplement = decode(read_file(folder / supplement_name(step), max_bytes=DEFAULT_LIMITS.rounding))
        supplement.log(DEFAULT_LIMITS)
    except (WeighbridgeError, OSError):
        return False
    # Step 0 may have no tree (it took over a model), and would be made anew with each request; so it stays as it is.
    return supplement.statement.draft == draft.hex() and (not tree or step == 0 or bool(supplement.statement.tree))


def _environment(run: Path, draft: Mapping[str, Any], step: int) -> dict[str, str]:
    """Returns the settings under which a step was recorded, as the transcript says, on top of this process's own."""
    place = run / RESUMPTIONS
    resumptions = resumption_notes.decode(read_file(place, max_bytes=DEFAULT_LIMITS.manifest)) if place.exists() else []
    kind = declared_device(draft, resumptions, step)
    return {**os.environ, **({} if kind is None else settings_of(kind))}


def _made(request: dict[str, Any], environment: Mapping[str, str], going: Callable[[], bool]) -> Iterator[Progress]:
    """Runs the process; yields how far it is, and every few seconds the same again.

    Raises:
        UsageError: It refused, with its code and message, or it died.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        now, said = Progress(0, 0), 0.0
        while True:
            _require(going)
            try:
                message = json.loads(lines.get(timeout=_LOOK_SECONDS) or b'{"error": null}')
                if "progress" not in message:
                    break
                now = Progress(*message["progress"])
            except queue.Empty:
                pass
            if time.monotonic() - said > ALIVE_SECONDS:
                said = time.monotonic()
                yield now
    except BrokenPipeError:
        message = {"error": None}
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    if "error" in message:
        died = "the process that makes rounding logs died; see how much memory it had"
        error = message["error"] or {"code": "record.regenerate.died", "message": died}
        raise UsageError(error["message"], code=error["code"])


def _read(stream: Any, lines: queue.SimpleQueue[bytes]) -> None:
    try:
        for line in stream:
            lines.put(line)
    except ValueError:  # it was closed meanwhile
        pass
    lines.put(b"")


def _require(going: Callable[[], bool]) -> None:
    if not going():
        raise UsageError("the caller has gone or its deadline has passed; ask again")


def _pieces(path: Path, step: int) -> Iterator[SupplementPiece]:
    try:
        with path.open("rb") as file:
            offset, data = 0, file.read(CHUNK)
            while True:
                following = file.read(CHUNK)
                yield SupplementPiece(step, offset, data, not following)
                if not following:
                    return
                offset, data = offset + len(data), following
    except OSError as error:
        raise TranscriptError(
            f"the supplement of step {step} cannot be read ({error.strerror}); ask the Prover to repair it"
        ) from None
