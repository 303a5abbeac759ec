"""The firmware: clock, counters, randomness and key of one chip, and the tokens that it signs into its log.

Everything here happens under one lock, in the order in which it enters the log. What the training process says about
itself (its position) is logged as claimed; what the firmware knows by itself (index, clock, boot, counters of work, the
roots over the leaves it was given) is computed here.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from firmware_sim.device import Device
from firmware_sim.kept_openings import SALT_SIZE, Audience, Opened, Openings, Permitted, no_worker
from firmware_sim.nvlog import NonVolatileLog, rolled_back
from firmware_sim.outbox import Outbox
from firmware_sim.reporting_policy import NO_WITNESS, Reporting
from firmware_sim.snapshot_report import Report
from firmware_sim.work_page import WorkPage
from weighbridge.attest import hidden_fields, repeats, tokens, worker_openings
from weighbridge.attest.tokens import Kind, Token, Value
from weighbridge.attest.work import NONE, Work
from weighbridge.attest.worker_openings import Box, Trusted
from weighbridge.core.digests import salt_digest, snapshot_root
from weighbridge.core.errors import ChipError, UsageError

IDLE_EVENT, UNSERVED_EVENT = "interrupt-idle", "interrupt-unserved"
"""The chip's own events: an interrupt found no workload; a workload was lost while one stood."""
ATTACHED_EVENT, DETACHED_EVENT = "workload-attached", "workload-detached"
"""More of them: a workload may run kernels from here on; it may run none any more."""

STILL_HERE_S = 5.0
"""How often a workload that waits is told that the chip lives."""

DEFAULT_HOLD = 4096
"""Kernels that an interrupt waits for a safepoint. A Recorder's own work between two safepoints takes hundreds of
kernels on a small network and more on a larger one. It must fit, or honest snapshots lose their position."""


class Clock:
    """The chip's clock. It may run faster than the wall clock, so that a demonstration sees days in seconds."""

    def __init__(self, *, speed: float, not_before_ms: int) -> None:
        """Starts the clock at the host's time, or later if the chip's log has been there already.

        Args:
            speed: Seconds of the chip per second of the host.
            not_before_ms: Time of the newest entry, so that a log never runs backwards.
        """
        self._speed = speed
        self._start = time.monotonic()
        self._base_ms = max(time.time_ns() // 1_000_000, not_before_ms)

    def uptime_ms(self) -> int:
        """Milliseconds since boot."""
        return int((time.monotonic() - self._start) * 1000 * self._speed)

    def now_ms(self) -> tuple[int, int]:
        """(uptime, time since 1970), both in milliseconds."""
        uptime = self.uptime_ms()
        return uptime, self._base_ms + uptime


class Firmware:
    """One boot of a chip."""

    def __init__(
        self,
        directory: Path,
        device: Device,
        log: NonVolatileLog,
        *,
        rate_per_day: float,
        clock_speed: float,
        hold: int,
        forced: bool = False,
        oscillator: float = 1.0,
        reporting: Reporting | None = None,
        confidential: bool = False,
        workers: Trusted | None = None,
    ) -> None:
        """Checks the log against itself and enters this boot into it, as soon as there is room.

        Args:
            directory: The chip's directory.
            device: The booted device.
            log: Its log.
            rate_per_day: Mean interrupts per day of the chip's clock.
            clock_speed: Seconds of the chip per second of the host.
            hold: Kernels that an interrupt waits for a safepoint.
            forced: Whether the workload may ask for an interrupt.
            oscillator: Share of that speed at which the board really drives the clock; no firmware can know it.
            reporting: How the chip reports; by default it keeps its log until it is read.
            confidential: Whether it opens the snapshots of this boot on its own machine alone, and to no Verifier, and
                hides in its tokens what the workload did and claimed.
            workers: Which sealed workers it opens them to, in place of its own machine; in a confidential boot only.

        Raises:
            UsageError: There are workers, and the boot is not confidential.
            ChipError: The log contradicts itself, or lacks what it hides (`chip.log.damaged`).
        """
        self.device, self.hold, self.forced, self.confidential = device, hold, forced, confidential
        if workers is not None and not confidential:
            raise UsageError("A chip opens to workers alone in a confidential boot; start it so.")
        self._workers = workers
        self._audience: Audience = "workers" if workers else "machine" if confidential else "verifiers"
        self._log = log
        self._reporting = reporting or Reporting()
        self._outbox = Outbox(log, device.ueid, device.key, self._reporting)
        self._openings = Openings(directory)
        if workers is not None:
            self._openings.name_workers(workers.kept)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # What is cosigned, or due, is another.
        newest = self._check_log()
        done = self._openings.whole(newest).work if newest else None
        self.work = WorkPage(directory, done if isinstance(done, Work) else NONE)
        self._before = self.work.totals()  # the workload that is attached, or was last
        self._boot_count = newest.boot_count + 1 if newest else 1
        self._boot_seed = secrets.token_bytes(32)
        self.salt = secrets.token_bytes(SALT_SIZE)
        self._clock = Clock(speed=clock_speed * oscillator, not_before_ms=newest.time_ms if newest else 0)
        self._boot: dict[str, Value] | None = {
            "salt_digest": salt_digest(self.salt),
            "rate_milli": round(rate_per_day * 1000),
            "hold": hold,
            "clock_milli": round(clock_speed * 1000),
            "forced": forced,
            "reporting": self._reporting.mode,
            "witness": self._reporting.witness.public if self._reporting.witness else NO_WITNESS,
            "unserved": log.counter.standing,
            "confidential": confidential,
        }
        with self._lock:
            self._enter_boot()

    def event(self, name: str, digest: bytes) -> int:
        """Logs that the workload said something, e.g. `manifest-draft`, and returns the index.

        Raises:
            TokenError: Name or digest cannot be in a token.
            ChipError: The log cannot be written, or is full (`chip.log.full`, `chip.log.spent`).
        """
        with self._changed:
            index = self._log_event(name, digest)
            if self.confidential or repeats.is_prompt(name):  # else a report would tell which name an event has
                self._outbox.newest_prompt = index + 1
                self._changed.notify_all()
            return index

    def witnessed(self, index: int) -> int | None:
        """Returns when the witness first held an entry, in seconds since 1970 on its clock; None if not known."""
        with self._lock:
            return self._outbox.witnessed(index)

    def workload_attached(self) -> int:
        """Makes the counters ready for a workload, logs that one is attached, and returns the index.

        Raises:
            ChipError: As `event`; or the counters cannot be written.
        """
        with self._lock:
            self.work.attach()
            self._before = self.work.totals()
            return self._log_event(ATTACHED_EVENT, bytes(32))

    def workload_detached(self) -> int:
        """Logs that the workload has left, and returns the index.

        Raises:
            ChipError: As `event`.
        """
        return self._own_event(DETACHED_EVENT)

    def raise_interrupt(self) -> int:
        """Makes durable that an interrupt stands, and returns its number; only then may the workload hear of it.

        It stands until a snapshot, `interrupt_unserved` or the next boot says what became of it.

        Raises:
            ChipError: This boot is not logged yet, so no workload can run; or the interrupt cannot be made durable.
        """
        with self._lock:
            if self._boot is not None:
                raise self._log.no_room()
            return self._log.raise_interrupt()

    def interrupt_unserved(self) -> int:
        """Logs that the workload was lost while an interrupt stood, and returns the index.

        Raises:
            ChipError: As `event`.
        """
        return self._own_event(UNSERVED_EVENT, closes=True)

    def interrupt_idle(self) -> int:
        """Logs that there was no workload to interrupt, and returns the index.

        Raises:
            ChipError: As `event`.
        """
        return self._own_event(IDLE_EVENT, raises=True)

    def snapshot(self, report: Report) -> int:
        """Logs a snapshot, keeps its leaves for opening, and returns the index once both are durable.

        Raises:
            TokenError: A claim of the workload cannot be in a token.
            ChipError: The log cannot be written, or the weights are not among the live storages.
        """
        if not Counter(report.weights) <= Counter(report.leaves):
            raise ChipError("The weights are not among the live storages.", code="chip.snapshot.leaves")
        body: dict[str, Value] = {
            "root": snapshot_root(report.leaves, self.salt),
            "leaves": len(report.leaves),
            "bytes": sum(size for size, _ in report.leaves),
            "weights_root": snapshot_root(report.weights, self.salt),
            "weights_bytes": sum(size for size, _ in report.weights),
            "salt_digest": salt_digest(self.salt),
            "head": report.head,
            "running": report.running,
            "step": report.step,
            "op": report.op,
            "safepoint": report.safepoint,
            "held": report.held,
            "stall_us": report.stall_us,
            "unobserved": report.unobserved,
        }
        with self._lock:
            done = self.work.totals() - self._before
            body |= {"kernels": done.kernels, "flops": done.flops}
            # Leaves first: an entry that the log has can always be opened; leaves without an entry are overwritten.
            self._openings.keep(len(self._log), self.salt, report, self._audience)
            index = self._log_entry("snapshot", body, closes=True)
            self._outbox.newest_snapshot = index + 1
            self._changed.notify_all()
            return index

    def hold_workload(self, still_here: Callable[[], None]) -> None:
        """Returns when the workload may go on: this boot is logged, there is room, and in mode `wait` all is reported.

        Args:
            still_here: Called every few seconds, to tell the workload that the chip lives.

        Raises:
            ChipError: It may not, and the chip's patience is over (`chip.log.full`, `chip.log.spent`,
                `chip.witness.silent`), or the log lacks entries (`chip.log.rolled_back`).
        """
        deadline = time.monotonic() + self._reporting.patience_s
        while True:
            with self._changed:
                obstacle = self._outbox.obstacle(booted=self._boot is None)
                if obstacle is None:
                    return
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._log.missing or self._log.is_spent:  # Waiting helps against none of these.
                    raise obstacle
                self._changed.notify_all()  # What the workload waits for is due now.
                self._changed.wait(min(left_s, STILL_HERE_S))
            still_here()

    def wait_until_due(self, timeout_s: float) -> bool:
        """Waits until there is something to report; returns whether there is.

        In mode `wait` that is a snapshot which is not acknowledged; in both modes, a half-full NVRAM, a boot, and an
        event whose time at the witness counts (`weighbridge.attest.repeats`).
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._outbox.is_due, timeout_s)

    def head(self, nonce: bytes) -> bytes:
        """Returns a fresh token over the log's size, newest entry and root.

        Raises:
            UsageError: The nonce does not have 8 to 64 bytes.
        """
        return self.checkpoint(nonce)[1]

    def checkpoint(self, nonce: bytes) -> tuple[bytes, bytes, int]:
        """Returns the log's signed checkpoint, a fresh head token over the same size and root, and the size.

        Raises:
            UsageError: The nonce does not have 8 to 64 bytes.
        """
        if not 8 <= len(nonce) <= 64:
            raise UsageError(f"The nonce has {len(nonce)} bytes; send 8 to 64 fresh random bytes.")
        with self._lock:
            size = len(self._log)
            body: dict[str, Value] = {
                "size": size,
                "last": self._log.last,
                "root": self._log.tree.root(),
                "log_key": self._outbox.signer.key.public,
                "counter": self._log.counter.value,
            }
            return self._outbox.checkpoint(), self._head(body, nonce), size

    @property
    def cosigned(self) -> bytes:
        """The newest checkpoint that the witness has cosigned, as a note; empty if there is none."""
        with self._lock:
            return self._log.cosigned if self._outbox.cosigned_size else b""

    def consistency_proof(self, old_size: int, size: int) -> list[bytes]:
        """Returns the proof that the tree over the first `old_size` entries is a prefix of that over `size`.

        Raises:
            UsageError: The log does not reach there.
        """
        with self._lock:
            return self._log.tree.consistency_proof(old_size, size)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """Returns the proof that entry `index` is in the tree over the first `size` entries.

        Raises:
            UsageError: The log does not reach there.
        """
        with self._lock:
            return self._log.tree.inclusion_proof(index, size)

    def add_cosignature(self, data: bytes) -> int:
        """Takes in a checkpoint that the witness has cosigned; entries that it covers may make room from now on.

        Args:
            data: The note.

        Returns:
            The lowest index that can still be read.

        Raises:
            NoteError: It is malformed, or the witness that this chip trusts did not sign it (`chip.note.signature`).
            ChipError: It is of another log or another history (`chip.log.fork`), or cannot be made durable.
            UsageError: This chip trusts no witness.
        """
        with self._changed:
            if self._outbox.take_in(data):
                self._outbox.make_room()
                self._enter_boot()
                self._changed.notify_all()
            return self._log.released

    def entries(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yields (index, entry) for start <= index < end.

        Raises:
            UsageError: The log does not reach there.
            ChipError: An entry was damaged on the disk.
        """
        if not 0 <= start <= end <= len(self._log):
            raise UsageError(
                f"The log has {len(self._log)} entries, so {start} to {end} cannot be listed; ask for its head."
            )
        for index in range(start, end):
            with self._lock:
                data = self._log.read(index)
            yield index, data

    def open_snapshot(self, index: int, *, local: bool = False) -> Opened:
        """Returns salt, leaves and those of the weights region of a logged snapshot.

        Args:
            index: Its place in the log.
            local: Whether the asker holds this chip's own machine.

        Raises:
            UsageError: There is no snapshot at that index.
            ChipError: As `Openings.read`.
        """
        return self._open(index, "machine" if local else "verifiers")

    def _open(self, index: int, asker: Audience, permitted: Permitted = no_worker) -> Opened:
        with self._lock:
            token = tokens.read_own(self._log.read(index))
        return self._openings.read(token, asker, permitted)

    def open_to_worker(
        self, order: bytes, attestation: bytes, snapshots: Sequence[int], entries: Sequence[int]
    ) -> Iterator[Box]:
        """Yields what opens snapshots and hidden fields, encrypted to a worker whose evidence holds.

        Args:
            order: The job that the worker was started for.
            attestation: What its launcher says of it.
            snapshots: Places of snapshots in the log.
            entries: Places of tokens whose hidden fields are wanted; of those that hide none, nothing comes.

        Raises:
            ChipError: This boot trusts no workers, or not this one, or an entry was made in a boot that trusted others
                (`chip.worker`); or as `Openings.read`.
            UsageError: There is no entry at a place, or a place is named twice.
        """
        if self._workers is None:
            raise ChipError(
                "This chip was started for no workers; start it with `--worker-authority`, or ask on its machine.",
                code="chip.worker",
            )
        if len(set(snapshots)) < len(snapshots) or len(set(entries)) < len(entries):
            raise UsageError("A place is named twice; ask for each once.")
        found, attested = self._workers.check(order, attestation)
        permitted = partial(self._workers.permits, found)
        for index in snapshots:
            content = worker_openings.pack(*self._open(index, "workers", permitted))
            yield worker_openings.seal(content, found, attested.worker, self.device.ueid, "snapshot", index)
        for index in entries:
            if opening := self._openings.hidden(index, "workers", permitted):
                yield worker_openings.seal(opening, found, attested.worker, self.device.ueid, "token", index)

    def hidden(self, index: int) -> bytes:
        """Returns what opens the hidden fields of an entry, for the holder of this chip's machine; empty if nothing.

        Args:
            index: Its place in the log.

        Raises:
            ChipError: It is for workers alone (`chip.confidential`).
        """
        return self._openings.hidden(index, "machine")

    def _check_log(self) -> Token | None:
        """Reads the log from the first entry on that is left, and returns the newest one's claims."""
        previous, newest = self._log.last_released, None
        for index in range(self._log.released, len(self._log)):
            data = self._log.read(index)
            newest = tokens.read_own(data)
            if (newest.index, newest.previous, newest.ueid) != (index, previous, self.device.ueid):
                raise ChipError(
                    f"Entry {index} of the log does not continue the one before it.", code="chip.log.damaged"
                )
            previous = tokens.entry_digest(data)
            if newest.kind == "snapshot":
                self._outbox.newest_snapshot = index + 1
        return newest

    def _enter_boot(self) -> None:
        if self._boot is not None and self._log.has_room and not self._log.missing:
            self._outbox.newest_boot = 1 + self._log_entry("boot", self._boot, closes=True)
            self._boot = None

    def _own_event(self, name: str, *, raises: bool = False, closes: bool = False) -> int:
        with self._lock:
            return self._log_event(name, bytes(32), raises=raises, closes=closes)

    def _log_event(self, name: str, digest: bytes, *, raises: bool = False, closes: bool = False) -> int:
        if self._log.missing:
            raise rolled_back(self._log.missing)
        if self._boot is not None:
            raise self._log.no_room()
        return self._log_entry("event", {"name": name, "digest": digest}, raises=raises, closes=closes)

    def _log_entry(self, kind: Kind, body: dict[str, Value], *, raises: bool = False, closes: bool = False) -> int:
        token = self._token(kind, body, None)
        if self.confidential:  # as with leaves, what opens an entry is there before the entry
            token, opening = hidden_fields.hide(token)
            self._openings.keep_hidden(token.index, opening, self._audience)
        index = self._log.append(tokens.sign(token, self.device.key, self.device.chain), raises=raises, closes=closes)
        self._outbox.make_room()
        return index

    def _head(self, body: dict[str, Value], nonce: bytes) -> bytes:
        token = self._token("head", body, nonce)
        if self.confidential:  # no opening is kept for each who asks; the next entry has the counters
            token = replace(token, work=None)
        return tokens.sign(token, self.device.key, self.device.chain)

    def _token(self, kind: Kind, body: dict[str, Value], nonce: bytes | None) -> Token:
        uptime_ms, time_ms = self._clock.now_ms()
        return Token(
            kind=kind,
            ueid=self.device.ueid,
            nonce=nonce,
            index=len(self._log),
            previous=self._log.last,
            boot_count=self._boot_count,
            boot_seed=self._boot_seed,
            uptime_ms=uptime_ms,
            time_ms=time_ms,
            hwmodel=self.device.hwmodel,
            firmware_version=self.device.tcb.version,
            debug=self.device.tcb.mode == "debug",
            work=self.work.totals(),
            body=body,
        )
