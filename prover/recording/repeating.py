"""Repeats segments that a beacon names, while the run goes on, and has the chip log what came out.

At the end of each segment the chip logs the running head. Once its witness has that, and the beacon's next value is
there, the segment is due or not (`weighbridge.attest.repeats`). A due one is executed again by a process of its own
(`prover.keeping.repeat_process`), one at a time, which writes its rounding logs to `RUN.supplements/`. What is still to
be done lies in `RUN.repeats.json`, so that a recording that goes on after a crash knows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weighbridge.attest import repeats
from weighbridge.attest.beacon import FileBeacon, verify_round
from weighbridge.attest.chip_link import ChipLink
from weighbridge.attest.repeats import Declared
from weighbridge.core.durable import sync
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.numerics.conformance.device_kind import settings_of
from weighbridge.transcript.job_record import REPEATS
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.supplements import folder_of, key_path
from weighbridge.transcript.writer import TranscriptWriter

MODULE = "prover.keeping.repeat_process"
WITNESS_SECONDS = 60.0
"""How long the end of a recording waits for the chip's witness."""
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """What a recording declares, and where it finds the beacon's values.

    Attributes:
        beacon: Directory with the beacon's `info`, and `public/<round>` for each round once its time has come.
        share: Probability that a segment is due, above 0 and at most 1.
        delay_s: Seconds from the round's time until the witness must have the commitment.
    """

    beacon: str | Path
    share: float
    delay_s: int

    def declared(self) -> Declared:
        """Returns what the draft says.

        Raises:
            UsageError: There is no beacon in the directory, or a number is out of range.
            FormatError: What lies there is no beacon's.
        """
        chain = FileBeacon(Path(self.beacon)).info.chain
        return Declared(beacon=chain, share=float(self.share), delay_s=self.delay_s)


@dataclass(kw_only=True, slots=True)
class _Segment:
    """A segment that has ended and is not settled.

    Attributes:
        begin: Its first step.
        end: The step after its last one.
        before: Running head before it, in hex.
        after: Running head after it, in hex.
        index: Index of its event in the chip's log; -1 before that.
        due: Whether it is due; None before that is known.
    """

    begin: int
    end: int
    before: str
    after: str
    index: int = -1
    due: bool | None = None


class Repeating:
    """The segments of one recording, from their ends to the commitments to their logs."""

    def __init__(
        self, options: Repeats, declared: Declared, chip: ChipLink, writer: TranscriptWriter, device: str, resumed: bool
    ) -> None:  # fmt: skip
        """Begins, or goes on where a crash ended the recording.

        Args:
            options: Where the beacon is.
            declared: What the draft says.
            chip: Logs the events.
            writer: Of the transcript; it has the steps that a crash left.
            device: The kind of device that records, which says under which settings a repeat runs.
            resumed: Whether the recording went on after a crash.
        """
        self._beacon, self._declared = FileBeacon(Path(options.beacon)), declared
        self._chip, self._writer, self._device = chip, writer, device
        self._path = writer.path.resolve()
        self._place = self._path.with_name(self._path.name + REPEATS)
        self._open: list[_Segment] = []
        self._edge, self._head = 0, writer.draft_digest.hex()
        self._process: subprocess.Popen[bytes] | None = None
        self._looked = 0.0
        if resumed and self._place.exists():
            self._load()
        else:
            self._save()

    def _load(self) -> None:
        told = json.loads(self._place.read_bytes())
        segments = [_Segment(**each) for each in told["open"]]
        self._edge, self._head = told["edge"], told["head"]
        if lost := [each for each in segments if each.end > self._writer.steps]:  # the crash took them away
            self._edge, self._head = lost[0].begin, lost[0].before
        self._open = [each for each in segments if each not in lost]
        for each in self._open:
            if each.index < 0:  # if the chip has logged it already, the first event counts
                self._log(each)

    def _save(self) -> None:
        told = {"edge": self._edge, "head": self._head, "open": [asdict(each) for each in self._open]}
        partial = self._place.with_name(self._place.name + ".partial")
        partial.write_text(json.dumps(told), encoding="ascii")
        sync(partial)
        os.replace(partial, self._place)
        sync(self._place.parent)

    def ends(self) -> None:
        """Notes that the segment ends with the step before the writer's next one, before its checkpoint is written."""
        end, head = self._writer.steps, self._writer.head.hex()
        if end > self._edge:
            self._open.append(_Segment(begin=self._edge, end=end, before=self._head, after=head))
            self._edge, self._head = end, head
            self._save()

    def ended(self) -> None:
        """Has the chip log the segments whose ends are noted; their files are made durable before."""
        if any(each.index < 0 for each in self._open):
            self._writer.settle()
            self._writer.flush()
            for each in self._open:
                if each.index < 0:
                    self._log(each)
        self.look()

    def _log(self, segment: _Segment) -> None:
        segment.index = self._chip.log_event(repeats.SEGMENT, bytes.fromhex(segment.after))
        self._save()

    def look(self) -> None:
        """Does what can be done by now, without waiting; several times a second it does nothing."""
        if not self._open or time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._commit(self._process)
        for segment in [each for each in self._open if each.due is None and each.index >= 0]:
            segment.due = self._is_due(segment)
        if any(each.due is False for each in self._open):
            self._open = [each for each in self._open if each.due is not False]
            self._save()
        due = next(self._due(), None)
        if self._process is None and due is not None:
            self._process = self._begin(due)

    def close(self, complete: bool) -> None:
        """Ends the last segment, and waits until all are settled; no longer than commitments may take.

        Args:
            complete: Whether the recording ended as planned. If not, it may go on later, and nothing is waited for.
        """
        try:
            if complete:
                self._writer.finish_segment()
                self.ends()
                self.ended()
                self._wait()
        finally:
            if self._process is not None:
                _end(self._process)
        if complete and not self._open:
            self._place.unlink(missing_ok=True)

    def _wait(self) -> None:
        begun = time.monotonic()
        while self._open:
            seconds = time.monotonic() - begun
            unseen = all(each.due is None and self._chip.witnessed(each.index) is None for each in self._open)
            if seconds > (min(WITNESS_SECONDS, self._declared.delay_s) if unseen else self._declared.delay_s):
                named = ", ".join(f"{each.begin} to {each.end - 1}" for each in self._open[:5])
                why = "the chip's witness has not answered" if unseen else "their logs may be due"
                _warn(f"{len(self._open)} segments (steps {named}) are not settled: {why}")
                return
            time.sleep(_LOOK_SECONDS)
            self.look()

    def _due(self) -> Iterator[_Segment]:
        return (each for each in self._open if each.due)

    def _is_due(self, segment: _Segment) -> bool | None:
        """Returns whether a segment is due; None as long as that is not known."""
        time_s = self._chip.witnessed(segment.index)
        if time_s is None:
            return None
        value = self._beacon.value(self._beacon.info.round_after(time_s * 1000))
        if value is None:
            return None
        try:
            verify_round(self._beacon.info, value)
        except FormatError as error:
            _warn(error.message)
            return None
        heads = bytes.fromhex(segment.before), bytes.fromhex(segment.after)
        return self._declared.due(value.randomness, self._writer.draft_digest, heads)

    def _begin(self, segment: _Segment) -> subprocess.Popen[bytes]:
        request = {
            "run": str(self._path), "key": str(key_path(self._path)), "out": str(folder_of(self._path)),
            "steps": [segment.begin, segment.end], "after": segment.after,
            "wait_s": self._declared.delay_s,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **settings_of(self._device)},
        )  # fmt: skip
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()  # It stays open: the process ends with it.
        except BrokenPipeError:
            pass
        return process

    def _commit(self, process: subprocess.Popen[bytes]) -> None:
        """Has the chip log what the process that has ended came to."""
        self._process, segment = None, next(self._due())
        assert process.stdout is not None
        answer: dict[str, Any] = json.loads(process.stdout.read() or b'{"error": "the process died"}')
        _end(process)
        self._open.remove(segment)
        if "error" in answer:
            _warn(f"the steps {segment.begin} to {segment.end - 1} could not be repeated: {answer['error']}")
        else:
            self._chip.log_event(repeats.commitment_event(segment.begin), bytes.fromhex(answer["commitment"]))
        self._save()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _warn(what: str) -> None:
    warnings.warn(f"{what}; a Verifier will find that the logs of these steps are missing", stacklevel=3)


def require_possible(options: Repeats, *, chip: ChipLink | None, logs: LogKind, key: bool) -> Declared:
    """Checks that a recording can repeat its segments; returns what its draft declares.

    Args:
        options: What was asked for.
        chip: The chip of the recording.
        logs: Its kind of rounding logs.
        key: Whether the caller keeps the key.

    Raises:
        UsageError: It cannot, or a number is out of range.
        FormatError: The directory holds no beacon's description.
    """
    if chip is None or logs == "full":
        raise UsageError("segments are repeated of runs with logs='on-demand' or 'sketch' on a chip")
    if key:
        raise UsageError("the process that repeats segments signs with the key in RUN.key; leave out key=")
    return options.declared()
