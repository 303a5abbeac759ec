"""Starts and stops a chip's process, for tests, the demonstration and the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from firmware_sim.firmware import DEFAULT_HOLD
from firmware_sim.nvlog import DEFAULT_CAPACITY
from firmware_sim.reporting_policy import DEFAULT_PATIENCE_S, Mode
from weighbridge.core.errors import ChipError

START_TIMEOUT_S = 60.0


class ChipProcess:
    """A chip in a process of its own, as a context manager: it serves inside the block.

    The same object can be started again after `stop` or `kill`; the chip continues its log.
    """

    def __init__(
        self,
        directory: Path,
        credentials: Path,
        *,
        rate_per_day: float = 0.0,
        clock_speed: float = 1.0,
        oscillator: float = 1.0,
        hold: int = DEFAULT_HOLD,
        allow_forced: bool = False,
        confidential: bool = False,
        workers: Sequence[str] = (),
        manufacturer: Path | None = None,
        image: Path | None = None,
        address: str = "127.0.0.1:0",
        nvram: int = DEFAULT_CAPACITY,
        report: Mode = "log",
        witness: str = "",
        witness_key: Path | None = None,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        """Prepares the process; nothing runs yet.

        Args:
            directory: The chip's directory, provisioned already unless `manufacturer` is given.
            credentials: Directory of its role certificate (`Credentials.save`).
            rate_per_day: Mean interrupts per day of the chip's clock; 0 for none.
            clock_speed: Seconds of the chip per second of the host.
            oscillator: Share of that speed at which the board really drives the chip's clock.
            hold: Kernels that an interrupt waits for a safepoint.
            allow_forced: Whether the workload may ask for an interrupt.
            confidential: Whether it opens snapshots on its own machine alone, for sealed workers, and to no Verifier.
            workers: Options that name the workers that it opens them to, in place of its own machine.
            manufacturer: Directory of the authority (`CertificateAuthority.save`) that provisions the chip if needed.
            image: Firmware image to start, and to keep if it starts; else the chip starts the one that it has.
            address: Where to serve Verifiers; port 0 picks a free one.
            nvram: Bytes of memory for the log.
            report: `log` to keep the log until it is read, `wait` to go on after a snapshot when the witness has it.
            witness: `host:port` of the Verifier to report to; empty if Verifiers come and read.
            witness_key: File with the verifier key of the witness that the chip trusts.
            patience_s: Seconds after which a workload that waits is told so.
        """
        # Paths of Unix sockets are short, so the socket does not lie in the chip's directory.
        self._runtime = Path(tempfile.mkdtemp(prefix="weighbridge-chip-"))
        self.socket = self._runtime / "shim"
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = directory / "stderr.txt"
        directory.mkdir(parents=True, exist_ok=True)
        self._command = [sys.executable, "-m", "firmware_sim.chip", "--dir", str(directory)]
        self._command += ["--rate", repr(rate_per_day), "--clock-speed", repr(clock_speed), "--hold", str(hold)]
        self._command += ["--oscillator", repr(oscillator)]
        self._command += ["--credentials", str(credentials), "--address", address, "--socket", str(self.socket)]
        self._command += ["--address-file", str(self._runtime / "address")]
        self._command += ["--allow-forced"] if allow_forced else []
        self._command += ["--confidential"] if confidential else []
        self._command += workers
        self._command += ["--manufacturer", str(manufacturer)] if manufacturer else []
        self._command += ["--image", str(image)] if image else []
        self._command += ["--nvram", str(nvram), "--report", report, "--patience", repr(patience_s)]
        self._command += ["--witness", witness] if witness else []
        self._command += ["--witness-key", str(witness_key)] if witness_key else []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._runtime, ignore_errors=True)

    def start(self) -> None:
        """Starts the chip and waits until it serves.

        Raises:
            ChipError: It ended, or did not serve in time; the message has its last words.
        """
        address_file = self._runtime / "address"
        address_file.unlink(missing_ok=True)
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not address_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                words = self._log_path.read_text(errors="replace").strip().splitlines()
                raise ChipError(f"The chip did not start ({words[-1] if words else 'no message'}).", code="chip.start")
            time.sleep(0.02)
        self.address = address_file.read_text()

    def stop(self) -> None:
        """Asks the chip to stop and waits for it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Takes the chip's power away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
