"""The chip's end of the local link: it interrupts the shim and logs what the shim reports.

One shim is attached at a time, as one rank of a job runs on one chip. The shim asks with a map that has `do`; the chip
answers each in order with `ok` (and results) or with `error` and `message`. Before an answer that takes long it sends
`wait` now and then; between answers it may send `interrupt`. An interrupt stands until the shim reports a snapshot;
others that fall into that time merge with it.

That a workload is attached is durable before it may run a kernel, and an entry says when it has left; so the counters
in both show what it did.

An interrupt is durable before the shim hears of it, and leaves one entry in the log: a snapshot, or the event
`interrupt-unserved` if the shim was lost while it stood, or `interrupt-idle` if no workload was attached; and if the
chip itself lost its power meanwhile, the next boot's entry says so. So the log shows how often the chip wanted to look.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from secrets import SystemRandom
from typing import Any

from firmware_sim.firmware import Firmware
from firmware_sim.frames import Connection
from firmware_sim.snapshot_report import Report, pack_leaves, unpack_leaves
from weighbridge.attest.tokens import OWN_EVENTS
from weighbridge.core.errors import ChipError, FormatError, UsageError, WeighbridgeError
from weighbridge.core.socket_paths import short_path

SECONDS_PER_DAY = 86_400.0

_log = logging.getLogger(__name__)
_TYPES: dict[str, type] = {
    "leaves": bytes,
    "weights": bytes,
    "safepoint": bool,
    "head": bytes,
    "running": bytes,
    "step": int,
    "op": int,
    "held": int,
    "stall_us": int,
    "unobserved": int,
}


class Interrupts:
    """Poisson interrupts: exponential gaps on the chip's clock, from the operating system's randomness."""

    def __init__(self, rate_per_day: float, clock_speed: float, fire: Callable[[], None]) -> None:
        """Prepares interrupts that call `fire`, on average `rate_per_day` times a day of the chip's clock."""
        self._per_second = rate_per_day * clock_speed / SECONDS_PER_DAY
        self._fire = fire
        self._random = SystemRandom()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interrupts", daemon=True)

    def gap_s(self) -> float:
        """Draws the host's seconds until the next interrupt."""
        return self._random.expovariate(self._per_second)

    def start(self) -> None:
        """Begins to interrupt."""
        if self._per_second > 0:
            self._thread.start()

    def stop(self) -> None:
        """Ends the interrupts."""
        self._stopped.set()

    def _run(self) -> None:
        # A wait has a longest possible value; a longer gap is as good as no interrupt at all.
        while not self._stopped.wait(min(self.gap_s(), threading.TIMEOUT_MAX)):
            self._fire()


class Link:
    """Serves the shim over a Unix socket."""

    def __init__(self, path: Path, firmware: Firmware) -> None:
        """Binds the socket (mode 0600, whatever lay there before is replaced).

        Args:
            path: Of the socket.
            firmware: What logs.

        Raises:
            ChipError: The path cannot be bound.
        """
        self._firmware = firmware
        self._guard = threading.Lock()  # Of the three below.
        self._attached: Connection | None = None
        self._known = False  # whether the log says that it is attached
        self._standing = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            with short_path(path) as short:
                self._listener.bind(os.fspath(short))
            path.chmod(0o600)
            self._listener.listen(4)
        except OSError as error:
            self._listener.close()
            raise ChipError(f"Cannot listen at {path} ({error}); choose another path.", code="chip.socket") from error

    def serve(self) -> None:
        """Accepts shims until the process ends; runs in a thread of its own."""
        while True:
            end, _ = self._listener.accept()
            threading.Thread(target=self._attend, args=(Connection(end),), name="shim", daemon=True).start()

    def interrupt(self) -> None:
        """Interrupts the attached shim, if no interrupt stands; logs that there is none to interrupt."""
        try:
            if not self._interrupt_workload():
                self._firmware.interrupt_idle()
        except WeighbridgeError as error:
            _log.warning("an interrupt could not be logged: %s", error)

    def _interrupt_workload(self) -> bool:
        """Returns whether there is a workload, which was interrupted then."""
        with self._guard:
            attached = self._attached
            if attached is None or self._standing:
                return attached is not None
            try:
                number = self._firmware.raise_interrupt()  # It is durable before the workload can act on it.
            except ChipError as error:
                if error.reason == "chip.log.write":
                    attached.close()  # What cannot be counted any more must not go on.
                raise
            self._standing = True
            with contextlib.suppress(OSError):  # A shim that has just left is found by its own thread.
                attached.send({"interrupt": number})
            return True

    def _attend(self, connection: Connection) -> None:
        try:
            while (message := connection.receive()) is not None:
                if message.get("do") == "open":  # it attaches no workload
                    connection.send(self._opening(message))
                    continue
                if not self._claimed(connection):
                    error = "Another workload runs on this chip; wait for its end."
                    connection.send({"error": "chip.busy", "message": error})
                    break
                if message == {"do": "bye"}:
                    self._detach(connection)
                    connection.send({"ok": True})
                    break
                connection.send(self._answer(message, connection))
        except FormatError as error:
            _log.warning("dropping the shim: %s", error)
        except OSError as error:
            _log.info("the shim left: %s", error)
        finally:
            self._detach(connection)
            connection.close()

    def _claimed(self, connection: Connection) -> bool:
        """Makes this the attached shim if there is none; returns whether it is."""
        with self._guard:
            if self._attached is None:
                self._attached, self._standing, self._known = connection, False, False
            return self._attached is connection

    def _opening(self, message: dict[str, Any]) -> dict[str, Any]:
        """Opens a snapshot to the holder of the machine, whose memory it was, and whose shim knows the salt."""
        try:
            match message:
                case {"do": "open", "index": int(index), **rest} if not rest:
                    salt, leaves, weights = self._firmware.open_snapshot(index, local=True)
                    return {"ok": True, "salt": salt, "leaves": pack_leaves(leaves), "weights": pack_leaves(weights)}
                case {"do": "open", "token": int(index), **rest} if not rest:
                    return {"ok": True, "opening": self._firmware.hidden(index)}
            raise FormatError("The chip does not understand this request.")
        except WeighbridgeError as error:
            return {"error": error.reason, "message": error.message}

    def _detach(self, connection: Connection) -> None:
        with self._guard:
            if self._attached is not connection:
                return
            self._attached = None
            known, self._known = self._known, False
            standing, self._standing = self._standing, False
            try:
                # Under the lock: else the next workload's interrupt could be taken for the one that ends here.
                if standing:
                    self._firmware.interrupt_unserved()
                if known:
                    self._firmware.workload_detached()
            except WeighbridgeError as error:
                _log.warning("the end of a workload is left to the next entry: %s", error)

    def _answer(self, message: dict[str, Any], connection: Connection) -> dict[str, Any]:
        """Does what the shim asks, and lets it go on only when the log has room and is reported as it must be."""
        try:
            if message.get("do") in ("hello", "event"):
                self._hold(connection)  # Before: what the workload is told of an entry is also what became of it.
            answer = {"ok": True, **self._do(message)}
            if message.get("do") == "snapshot":
                self._hold(connection)
            return answer
        except WeighbridgeError as error:
            return {"error": error.reason, "message": error.message}

    def _hold(self, connection: Connection) -> None:
        self._firmware.hold_workload(lambda: connection.send({"wait": True}))

    def _do(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"do": "hello", **rest} if not rest:
                firmware = self._firmware
                self._attach()
                return {
                    "ueid": firmware.device.ueid,
                    "salt": firmware.salt,
                    "hold": firmware.hold,
                    "work": str(firmware.work.path),
                }
            case {"do": "event", "name": str(name), "digest": bytes(digest), **rest} if not rest:
                if name.startswith(OWN_EVENTS):
                    raise UsageError(f"Names that begin with {' or '.join(OWN_EVENTS)} are the chip's; choose another.")
                return {"index": self._firmware.event(name, digest)}
            case {"do": "witnessed", "index": int(index), **rest} if not rest:
                return {"time_s": self._firmware.witnessed(index)}
            case {"do": "snapshot", **report}:
                return {"index": self._snapshot(report)}
            case {"do": "force", **rest} if not rest:
                if not self._firmware.forced:
                    raise ChipError(
                        "This chip takes no requests for interrupts; start it to allow them.", code="chip.forced"
                    )
                self._interrupt_workload()
                return {}
        raise FormatError("The chip does not understand this request.")

    def _attach(self) -> None:
        with self._guard:
            if not self._known:
                self._firmware.workload_attached()
                self._known = True

    def _snapshot(self, report: dict[str, Any]) -> int:
        if {key: type(value) for key, value in report.items()} != _TYPES:
            raise FormatError("A report of a snapshot has other fields than the chip knows.")
        with self._guard:
            if not self._standing:
                raise ChipError("The chip did not ask for a snapshot.", code="chip.snapshot.unasked")
        lists = {name: unpack_leaves(report[name]) for name in ("leaves", "weights")}
        index = self._firmware.snapshot(Report(**{**report, **lists}))
        with self._guard:
            self._standing = False
        return index
